"""Tasks: how one attempt of a job runs on this host, as processes or as a thread.

Called by `fray_agents.agent.replica_runner`. Read `task_handle` first, which is all that the agent knows of a task;
then `process_task`, the agent's side of a runner (`fray_agents.runner`), and `callable_main`, the main module of the
process of a callable, which `prestart` starts in advance. `container` runs jobs that have an image. `thread_task` runs
callables in this process. `force_kill` ends processes that a runner does not end. Both kinds of task use `environment`
for their variables and limits, `health_check`, and `upload` with `output_files`. `fray_runtime.current_task` is for
code that runs in a task.
"""
