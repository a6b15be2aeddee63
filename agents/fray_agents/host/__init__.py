"""The host: what an agent uses of the machine that it runs on.

Called by `fray_agents.agent` and `fray_agents.tasks`, and by servers of calls for sockets and addresses. `agent_lock`
shows whether an agent of this host is alive; `directories` are this user's alone, `file_threads` do long work there;
`network` knows the host's address; `capacity` measures what tasks may use, `software` finds what else they may ask for,
`container_engine` among it, `task_cgroups` where they may have cgroups of their own.
"""
