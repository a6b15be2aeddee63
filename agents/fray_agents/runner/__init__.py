"""The runner: a small process that owns one task on this host, so that no task outlives the agent's claim to it.

The agent starts `__main__.py` by path with `-I -S` (the standard library only, so it starts in some 15 ms) and keeps
a pipe to it. From then on only the runner holds the task. It is the parent of every process that the task ever starts,
as a subreaper also of orphans. It reads the task's output into log chunk files and measures the task. It kills the
whole tree when asked to, when the agent's end of the pipe closes, and when the deadline passes, which the agent keeps
moving on. So an agent that is killed, frozen or merely busy leaves no task behind and stalls none.

If the runner itself does not answer (stopped, or stuck), the agent kills the tree and then the runner, `RUNNER_TIMEOUT`
seconds after the task should have ended; see `fray_agents.tasks.force_kill`.

What it cannot control: a process of another user id (a setuid program) may refuse its signals, and then the runner
waits for it; a process that a daemon starts on request is not in the tree, unless it is in the job's own container. If
the runner itself is killed with SIGKILL, the kernel kills the task's main process (PR_SET_PDEATHSIG), and the agent
kills everything that is in the task's cgroup or was started with its directory in the environment; see
`fray_agents.tasks.force_kill`.

Read `supervisor` (the loop) first, then `agent_pipe` (requests and events), `spawn`, `process_tree`, `task_cgroup` (and
out-of-memory kills), `task_log`, `meter`, `untrusted_files` (files that the task left), `exit_report` (how it ended).
`fray_agents.tasks.process_task` is the agent's side.
"""
