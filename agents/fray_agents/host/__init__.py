"""The host: everything that an agent uses of the machine on which it runs.

`fray_agents.agent` and `fray_agents.tasks` call it. `agent_lock` shows whether an agent of this host is alive.
`capacity` measures the resources for tasks and finds the programs that jobs may ask for, a `container_engine` among
them; `accelerators` are its chips and GPUs. `task_cgroups` finds where tasks may have cgroups of their own.
`processes` starts programs. `gce_metadata` asks a VM of Google Cloud what it is.
"""
