"""Environments: what a job brings along, made ready on this host before its attempt starts.

`fray_agents.agent.replica_runner` calls `prepare`. Read `errors` first, which tells the job's fault from the host's;
then `cache`, where everything that is built lies, once per host. `workspace` unpacks the job's code there, and
`python_env` has its packages installed: `packages` says what they are, `uv` installs them, and `fray_layer` adds the
agent's own Fray. `images` has the job's container image.
"""
