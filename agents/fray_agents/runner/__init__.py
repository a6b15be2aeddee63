"""The runner: a small process that owns one task on this host, so that no task outlives the agent's claim to it.

The agent starts `__main__.py` by path with `-I -S` (the standard library only, so it starts in some 15 ms) and keeps
a pipe to it. From then on the runner alone holds the task: it is the parent, as a subreaper also of orphans, of
every process the task ever starts, reads its output into log chunk files, measures it, and kills the whole tree when
asked to, when the agent's end of the pipe closes, or when the deadline passes that the agent keeps moving on. So an
agent that is killed, frozen or merely busy leaves no task behind and stalls none.

If the runner itself does not answer (stopped, or stuck), the agent kills the tree and then the runner: `RUNNER_TIMEOUT`
seconds after the task should have ended, see `fray_agents.tasks.force_kill`.

What it cannot hold: a task of another user id (a setuid program) may refuse its signals, and then the runner waits
for it; a process started by a daemon on request is not of the tree, unless it is of the job's own container. If the
runner itself is killed with SIGKILL, the kernel kills the task's main process (PR_SET_PDEATHSIG) and the agent whatever
is in the task's cgroup or was started with its directory in the environment, see `fray_agents.tasks.leftovers`.

Read `supervisor` (the loop) first, then `agent_pipe` (requests and events), `spawn`, `prestarted` (a process started
ahead), `process_tree`, `container`, `task_cgroup`, `task_log`, `meter`, `cgroups` (and out-of-memory kills),
`untrusted_files` (what the task left), `last_words` (what it said on stderr) and `exit_report` (how it ended).
`fray_agents.tasks.process_task` is the agent's side.
"""
