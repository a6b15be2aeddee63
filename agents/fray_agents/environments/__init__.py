"""Environments: the code, packages and image of a job, prepared on this host before its attempt starts.

`fray_agents.agent.replica_runner` calls `prepare`. Read `cache` first: it separates the job's faults from the
host's, and holds everything that is built, once per host. `workspace` unpacks the job's code there.
`python_env` installs its packages: `packages` says which they are, `uv` installs them, and `fray_layer` adds the
agent's own Fray. `images` handles the job's container image.
"""
