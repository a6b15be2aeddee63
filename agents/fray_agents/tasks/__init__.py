"""Tasks: how one attempt of a job runs on this host, as processes or as a thread.

Called by `fray_agents.agent.replica_runner`. Read `handle` first, which is all that the agent knows of a task; then
`process_task`, the agent's side of a runner (`fray_agents.runner`), and `callable_main`, the process of a callable,
which `prestart` starts ahead; `container` is for jobs with an image. `thread_task` runs callables in this process, with
`shared_environ` and `thread_output`. `force_kill` and `leftovers` end what a runner does not; `limits` says what it
limits. `environment` with `gang_environment`, `health_check` and `upload` serve both; `current_task` is for the code
that runs in a task.
"""
