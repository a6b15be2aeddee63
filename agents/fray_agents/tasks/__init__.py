"""Tasks: how one attempt of a job runs on this host, as processes or as a thread.

Called by `fray_agents.agent.replica_runner`. Read `handle` first, which is all that the agent knows of a task; then
`process_task`, the agent's side of a runner (`fray_agents.runner`), and `callable_main`, the main module of the process
of a callable, which `prestart` starts in advance. `container` runs jobs that have an image. `thread_task` runs
callables in this process, with `shared_environ` and `thread_output`. `force_kill` and `leftovers` end processes that a
runner does not end; `limits` sets what the runner enforces. Both kinds of task use `environment` with
`gang_environment`, `health_check` and `upload`. `current_task` is for code that runs in a task.
"""
