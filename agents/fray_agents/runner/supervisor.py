"""The runner's loop: one thread waits for agent, output, children and clock at once, and never for just one of them."""

from __future__ import annotations

import math
import os
import select
import signal
import time

from fray_agents.runner import exit_kinds, process_tree
from fray_agents.runner.agent_pipe import AgentPipe, StartRequest
from fray_agents.runner.exit_report import KEPT_BYTES, bounded_exit, exit_fields, read_exception
from fray_agents.runner.limits import LimitWatch
from fray_agents.runner.meter import UsageMeter
from fray_agents.runner.process_tree import ENGINE_TIMEOUT, ContainerProcesses
from fray_agents.runner.spawn import IGNORED, NotExecutable, PrestartedProcess, spawn
from fray_agents.runner.task_cgroup import TaskCgroup, oom_counter, oom_kills
from fray_agents.runner.task_log import LogChunks, OutputStream, SecretMask
from fray_agents.runner.untrusted_files import file_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_REPORT_INTERVAL = 2.0
"""Seconds between two reports of usage; each takes a sample, which reads a few files for each process of the task."""

_CONTAINER_SEARCH_INTERVAL = 0.2
"""Seconds between two searches for a container that is not seen yet; each reads a file for each process of the host."""

_CHANGED_LOG = (
    "the task changed its own log, which lies beside its work directory, so a part of its output is lost; let it "
    "change and remove only what it has made"
)

_SPOOL_INTERVAL = 0.2
"""Seconds between two reads of the log's folder while the log is full and the agent has to upload some of it."""


def main(kept_fds: str, cgroup_prefix: str, *prestarted_command: str) -> None:
    """Run the task that the agent requests on stdin.

    Args:
        kept_fds: descriptors, separated by commas, that stay open as long as the task runs.
        cgroup_prefix: path of the task's cgroup without this process's id at its end; "": it has no cgroup of its own.
        prestarted_command: starts the task's process in advance; see `PrestartedProcess`.
    """
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)  # orders come over the pipe; end-of-file means that the agent ended
    for fd in filter(None, kept_fds.split(",")):
        os.set_inheritable(int(fd), False)
    process_tree.become_subreaper()
    agent = AgentPipe(0, 1)
    cgroup = TaskCgroup(cgroup_prefix and f"{cgroup_prefix}{os.getpid()}")
    cgroup.create()
    prestarted = _prestarted(list(prestarted_command), cgroup) if prestarted_command else None
    request = agent.start_request()
    end = request and _run(request, agent, cgroup, prestarted)
    _kill_all(cgroup)
    cgroup.remove()
    if end:
        agent.send("exit", **end | {"exit": bounded_exit(end["exit"])})
        agent.finish()


def _kill_all(cgroup: TaskCgroup) -> None:
    """Kill the tree and its cgroup, even if the rest of this runner fails; return when nothing is left of them."""
    while not process_tree.reap()[1] or cgroup.is_populated():
        cgroup.kill()
        process_tree.signal_all(signal.SIGKILL)
        time.sleep(process_tree.KILL_INTERVAL)


def _prestarted(command: list[str], cgroup: TaskCgroup) -> PrestartedProcess | None:
    try:
        return PrestartedProcess(command, cgroup.fork)
    except (NotExecutable, OSError):  # the task's own start will report the reason
        return None


def _run(
    request: StartRequest, agent: AgentPipe, cgroup: TaskCgroup, prestarted: PrestartedProcess | None
) -> dict[str, Any]:
    """The fields of the "exit" event; processes of the task are left only if the host or this runner failed."""
    if _boottime() >= request.deadline:
        return _exit_event({"kind": exit_kinds.PREEMPTED, "message": "not started: its agent's deadline had passed"})
    try:
        os.mkdir(request.path("log"))
        os.makedirs(request.path("work"), exist_ok=True)  # it exists if the job has a workspace
        task = Supervisor(request, agent, cgroup, prestarted)
    except NotExecutable as error:
        return _exit_event({"kind": exit_kinds.EXITED, "code": error.code, "message": str(error)})
    except Exception as error:
        return _exit_event(
            {"kind": exit_kinds.START_FAILED, "message": f"the task could not be started on this host: {error}"}
        )
    try:
        return task.run()
    except Exception as error:
        message = f"the task's runner failed: {type(error).__name__}: {error}"
        return _exit_event({"kind": exit_kinds.HOST_FAILED, "message": message}, task.log_chunks)


def _exit_event(fields: dict[str, Any], log_chunks: int = 0) -> dict[str, Any]:
    return {"exit": fields | {"log_chunks": log_chunks}, "complete_before_stop": False}


class Supervisor:
    """Starts the task and supervises it until nothing of it is left.

    Raises (from the constructor):
        NotExecutable: the job's program cannot be executed.
        OSError: the host cannot start it.
    """

    def __init__(
        self, request: StartRequest, agent: AgentPipe, cgroup: TaskCgroup, prestarted: PrestartedProcess | None = None
    ) -> None:
        self._request = request
        self._agent = agent
        self._cgroup = cgroup
        self._deadline = request.deadline
        self._wakeup = _wakeup_on_sigchld()
        self._oom_counter = request.oom_counter or oom_counter(cgroup.path)
        self._oom_kills = oom_kills(self._oom_counter)
        self._status: int | None = None  # of the main process, once it ended
        self._tree_gone = False
        self._container = ContainerProcesses(request.directory) if request.in_container else None
        self._cause = ""
        self._cause_message = ""
        self._kill_at: float | None = None
        self._terminated = False
        pids = self._container.pids if self._container else process_tree.descendants
        self._meter = UsageMeter(request.path("work"), os.path.basename(request.command[0]), pids)
        limited = TaskCgroup("") if self._container else cgroup  # an engine has cgroups of its own
        self._limits = LimitWatch(request.limits, limited, self._meter)
        self._chunks = LogChunks(
            request.path("log"),
            request.spool_limit,
            lambda number: agent.send("chunk", number=number),
            request.seal_interval,
        )
        self._pid, out, err = (prestarted and prestarted.take(request)) or _spawn(request, cgroup)
        started = time.monotonic()
        self._ends_at = None if request.timeout is None else started + request.timeout
        self._report_at = started + _REPORT_INTERVAL
        self._sample_at = self._next_sample(started)
        self._stderr = OutputStream("stderr", err, kept=KEPT_BYTES, secrets=request.secrets)
        self._streams = [OutputStream("stdout", out, secrets=request.secrets), self._stderr]
        if request.preamble:
            self._chunks.append_file(request.preamble)

    def run(self) -> dict[str, Any]:
        """Supervise until the tree is gone; the fields of the "exit" event."""
        self._agent.send("started", pid=self._pid)
        while not self._tree_gone:
            self._wait()
            self._reap()
            self._listen()
            self._enforce()
            self._copy_output()
            self._measure()
        while self._read_output():
            pass
        self._check_at_end()
        self._seal(is_last=True)
        if self._chunks.changed:
            self._blame(exit_kinds.EXITED, _CHANGED_LOG)
        return self._outcome()

    @property
    def log_chunks(self) -> int:
        """Number of sealed log chunks."""
        return self._chunks.count

    def _wait(self) -> None:
        """Wait until there is something to read, a child has ended, or the next action is due."""
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        if not self._agent.closed:
            poll.register(self._agent.inlet, select.POLLIN)
        if self._agent.congested:
            poll.register(self._agent.outlet, select.POLLOUT)
        full, now = self._chunks.full(), time.monotonic()
        for stream in self._streams:
            if stream.open and not full and now >= stream.read_at:
                poll.register(stream.fd, select.POLLIN)
        poll.poll(1000 * self._patience(full))
        _drain(self._wakeup)

    def _patience(self, full: bool) -> float:
        """Seconds until the next action is due; at most the sampling interval, however the clocks differ."""
        now = time.monotonic()
        if self._killing(now):
            return process_tree.KILL_INTERVAL
        due = [
            self._sample_at,
            self._ends_at,
            self._kill_at,
            self._chunks.due(),
            now + _SPOOL_INTERVAL if full else None,
            *(stream.read_at for stream in self._streams if stream.open and stream.read_at > now),
        ]
        waits = [self._deadline - _boottime(), *(at - now for at in due if at is not None)]
        return max(0.0, min(waits))

    def _reap(self) -> None:
        ended, childless = process_tree.reap()
        self._tree_gone = (
            childless and not self._cgroup.is_populated() and not (self._container and self._container.pids())
        )
        if self._pid in ended:
            self._status = ended[self._pid]
            self._kill_at = time.monotonic()  # processes that it left behind are killed

    def _listen(self) -> None:
        if self._agent.closed:
            return
        self._agent.flush()
        for message in self._agent.messages():
            if "deadline" in message:
                if _boottime() < self._deadline:  # after that the job may have another holder
                    self._deadline = message["deadline"]
            elif "stop" in message:
                self._stop(message["why"], f"{message['why']} while it ran", message["stop"])
            else:
                self._stop(exit_kinds.STOPPED, "killed by its agent", 0.0)

    def _enforce(self) -> None:
        now = time.monotonic()
        if self._agent.closed:
            self._stop(exit_kinds.LOST, "killed because its agent ended", 0.0)
        elif _boottime() >= self._deadline:
            self._stop(
                exit_kinds.PREEMPTED, "killed because its agent did not renew the deadline: frozen, or cut off", 0.0
            )
        elif self._ends_at is not None and now >= self._ends_at:
            self._ends_at = None
            self._stop(
                exit_kinds.TIMEOUT, f"ran longer than its timeout of {self._request.timeout:g} s", self._request.grace
            )
        if self._chunks.lacks_room and not self._cause:
            self._stop(*self._limits.on_full_disk(self._request.directory), 0.0)
        if self._chunks.changed:
            self._stop(exit_kinds.EXITED, _CHANGED_LOG, 0.0)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill(now - self._kill_at)

    def _kill(self, since: float) -> None:
        """Kill what is left; `since` seconds ago this began. At first an engine gets time to record the end."""
        if self._container is not None:
            self._container.kill()
            if since < ENGINE_TIMEOUT and (self._container.seen or self._status is not None):
                return
        self._cgroup.kill()
        process_tree.signal_all(signal.SIGKILL)

    def _stop(self, cause: str, message: str, grace: float) -> None:
        """End the task; the first cause and the shortest grace count."""
        self._reap()
        if self._status is not None:
            return
        self._blame(cause, message)
        if grace > 0 and not self._terminated:
            self._terminated = True
            if self._container is None:
                process_tree.signal_all(signal.SIGTERM)
            elif not self._container.terminate():
                grace = 0.0  # its program does not run yet
            self._agent.send("sigterm_sent")
        kill_at = time.monotonic() + grace
        self._kill_at = kill_at if self._kill_at is None else min(kill_at, self._kill_at)

    def _killing(self, now: float) -> bool:
        return self._kill_at is not None and now >= self._kill_at

    def _copy_output(self) -> None:
        if not self._chunks.full():
            self._read_output(time.monotonic())
        due = self._chunks.due()
        if due is not None and time.monotonic() >= due:
            self._seal()

    def _read_output(self, now: float = math.inf) -> bool:
        """Move output from the pipes that are to be read by now to the log; whether there was any."""
        to_read = [stream for stream in self._streams if stream.open and now >= stream.read_at]
        read = [pieces for stream in to_read if (pieces := stream.read()) is not None]
        for pieces in read:
            self._chunks.begin()
            self._chunks.append(pieces)
        return bool(read)

    def _check_at_end(self) -> None:
        """Fail a task that filled its disk after the last check; a failed attempt needs no work directory."""
        if self._chunks.lacks_room and not self._chunks.recover():
            self._blame(*self._limits.on_full_disk(self._request.directory))
            import shutil  # only here: this import takes as long as the runner's whole start

            shutil.rmtree(self._request.path("work"), ignore_errors=True)
            if lost := self._chunks.give_up():
                self._cause_message += f"; {lost:,} bytes of its output are lost"
        elif exceeded := self._limits.exceeded_at_end():
            self._blame(*exceeded)

    def _blame(self, cause: str, message: str) -> None:
        """Note why the attempt ends; the first cause counts."""
        if not self._cause:
            self._cause, self._cause_message = cause, message

    def _seal(self, *, is_last: bool = False) -> None:
        for stream in self._streams:
            self._chunks.append(stream.flush(is_last=is_last))
        self._chunks.seal()

    def _measure(self) -> None:
        now = time.monotonic()
        if now < self._sample_at:
            return
        usage = self._meter.sample()
        if passed := self._limits.passed(now):
            self._stop(*passed, 0.0)
        if now >= self._report_at:
            self._report_at = now + _REPORT_INTERVAL
            if not self._agent.congested:
                self._agent.send("usage", usage=usage)
        self._sample_at = self._next_sample(now)

    def _next_sample(self, now: float) -> float:
        is_starting = self._container is not None and not self._container.seen
        return min(self._report_at, now + (_CONTAINER_SEARCH_INTERVAL if is_starting else self._limits.interval))

    def _outcome(self) -> dict[str, Any]:
        result_size, result_problem = _result(self._request.path("result"))
        usage = self._meter.total()
        fields = exit_fields(
            status=self._status or 0,
            cause=self._cause,
            cause_message=self._cause_message,
            out_of_memory=self._limits.killed_by_kernel() if oom_kills(self._oom_counter) > self._oom_kills else "",
            killed_unasked=self._limits.killed_by_others(),
            refused=self._limits.refused_by_kernel(),
            stderr=self._stderr.last,
            error=read_exception(self._request.path("error.json")) if self._request.is_call else {},
            result_size=result_size,
            result_problem=result_problem,
            result_limit=self._request.result_limit,
            in_unseen_container=self._container is not None and not self._container.seen,
        )
        for name in ("message", "exception", "traceback"):
            if text := fields.get(name):
                masked = SecretMask(self._request.secrets).masked(text.encode(errors="surrogatepass"), is_last=True)
                fields[name] = masked.decode(errors="surrogatepass")
        end = fields | {"usage": usage, "log_chunks": self.log_chunks}
        return {"exit": end, "complete_before_stop": end["kind"] == exit_kinds.SUCCESS and not self._cause}


def _spawn(request: StartRequest, cgroup: TaskCgroup) -> tuple[int, int, int]:
    stdin = os.open(request.stdin, os.O_RDONLY)
    try:
        return spawn(request.command, request.env, request.start_directory, stdin, cgroup.fork)
    finally:
        os.close(stdin)


def _result(path: str) -> tuple[int, str]:
    """Bytes of a command's result file, and why it cannot be used; "" if it can."""
    try:
        return file_size(path), ""
    except FileNotFoundError:
        return 0, ""
    except OSError as error:
        return 0, str(error)


def _wakeup_on_sigchld() -> int:
    """A descriptor that becomes readable when a child ends."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    return read


def _drain(fd: int) -> None:
    try:
        os.read(fd, 4096)
    except BlockingIOError:
        return


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
