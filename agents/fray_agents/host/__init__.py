"""The host: everything that an agent uses of the machine on which it runs.

`fray_agents.agent` and `fray_agents.tasks` call it, and servers of calls do for sockets and addresses. `agent_lock`
shows whether an agent of this host is alive. `directories` are this user's alone; `file_threads` do long work in them.
`network` finds the host's address. `capacity` measures the resources for tasks. `software` finds the programs that jobs
may ask for, a `container_engine` among them. `task_cgroups` finds where tasks may have cgroups of their own. `forks`
and `bound_process` start programs.
"""
