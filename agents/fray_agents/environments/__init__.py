"""Environments: what a job brings along, made ready on this host before its attempt starts.

`fray_agents.agent.attempt_runner` calls `prepare`. Read `errors` first, which tells the job's fault from the host's;
then `cache`, where everything that is built lies, once per host. `workspace` unpacks the job's code there;
`images` has its container image.
"""
