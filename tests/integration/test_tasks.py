"""Tasks under their runners, with real processes: how each end is reported, and that nothing survives it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pytest
from fray_agents.tasks import StartFailed, Task, TaskExit, TaskSpec

FAR = 600.0


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def spec(
    directory: Path, command: list[str] | None = None, call: Callable[[], Any] | None = None, **fields: Any
) -> TaskSpec:
    pickle = None if call is None else cloudpickle.dumps((call, (), {}))
    return TaskSpec(directory, command, pickle, dict(os.environ), **{"timeout": None, "grace": 5.0, **fields})


def sh(directory: Path, script: str, **fields: Any) -> TaskSpec:
    return spec(directory, ["sh", "-c", script], **fields)


async def run(what: TaskSpec) -> tuple[TaskExit, bytes]:
    """The end of the task, and its log."""
    task = await Task.start(what, boottime() + FAR, None)
    log = b"".join([path.read_bytes() async for _, path in task.chunks()])
    await task.gone()
    return await task.exit, log


def end_of(what: TaskSpec) -> TaskExit:
    return asyncio.run(run(what))[0]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until `condition` holds; the bound only turns a hang into a failure."""
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"never happened: {what}")


async def pids_in(path: Path, count: int) -> list[int]:
    """The process ids that the task has written to `path`, once it has written `count`."""
    await until(lambda: len(pids_now(path)) == count, f"{count} pids in {path}")
    return pids_now(path)


def pids_now(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()] if path.exists() else []


# A tree that does not want to go: each process ignores SIGTERM; one is in a session of its own, its parent long gone.
STUBBORN = """
trap '' TERM HUP INT
(trap '' TERM; echo $(exec sh -c 'echo $PPID') >> pids; while :; do sleep 0.05; done) &
setsid sh -c 'trap "" TERM; (echo $$ >> pids; while :; do sleep 0.05; done) & wait' &
sh -c '(setsid sh -c "echo \\$\\$ >> pids; while :; do sleep 0.05; done" &)'
echo $$ >> pids
while :; do sleep 0.05; done
"""


def with_task(what: TaskSpec, act: Callable[[Task], Coroutine[Any, Any, None]], lease: float = FAR) -> TaskExit:
    """Start the task, do something to it, and give its end."""

    async def main() -> TaskExit:
        task = await Task.start(what, boottime() + lease, None)
        await act(task)
        end = await task.exit
        await task.gone()
        return end

    return asyncio.run(main())


def test_success_of_a_command(tmp_path: Path) -> None:
    end, log = asyncio.run(run(sh(tmp_path, "echo out; echo err >&2")))
    assert (end.exit.kind, end.exit.code, end.complete_before_stop, end.result) == ("success", 0, True, None)
    assert sorted(line.split(b" ", 1)[1] for line in log.splitlines()) == [b"stderr F err", b"stdout F out"]
    assert end.exit.log_chunks == 1
    assert msgspec.json.decode((tmp_path / "exit.json").read_bytes(), type=type(end.exit)) == end.exit


def test_exit_code(tmp_path: Path) -> None:
    end = end_of(sh(tmp_path, "exit 3")).exit
    assert (end.kind, end.code, end.message, end.log_chunks) == ("exited", 3, "exit code 3", 0)


def test_signal(tmp_path: Path) -> None:
    end = end_of(sh(tmp_path, "kill -SEGV $$")).exit
    assert (end.kind, end.signal, end.message) == ("signalled", signal.SIGSEGV, "killed by SIGSEGV")


def test_timeout(tmp_path: Path) -> None:
    end = end_of(sh(tmp_path, "sleep 60", timeout=0.2)).exit
    assert (end.kind, end.message) == ("timeout", "ran longer than its timeout of 0.2 s (killed by SIGTERM)")


def test_out_of_memory_is_told_from_other_kills_by_the_kernel_counter(tmp_path: Path) -> None:
    counter = tmp_path / "memory.events"
    counter.write_text("oom_kill 4\n")
    for name, script in (("one", f"echo oom_kill 5 > {counter}; kill -KILL $$"), ("two", "kill -KILL $$")):
        (tmp_path / name).mkdir()
        end = end_of(sh(tmp_path / name, script, oom_counter=counter)).exit
        assert end.kind == ("out-of-memory" if name == "one" else "signalled")
        assert "SIGKILL" in end.message


def test_a_program_that_does_not_exist_is_the_jobs_failure(tmp_path: Path) -> None:
    end = end_of(spec(tmp_path, ["no-such-program"])).exit
    assert (end.kind, end.code, end.log_chunks) == ("exited", 127, 0)
    assert "'no-such-program' not found on this host" in end.message


def test_a_program_that_is_not_executable_is_the_jobs_failure(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("text")
    (tmp_path / "task").mkdir()
    end = end_of(spec(tmp_path / "task", [str(program)])).exit
    assert (end.kind, end.code) == ("exited", 126)
    assert "cannot be executed: Permission denied" in end.message


def test_a_script_whose_interpreter_is_missing_says_so(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    (tmp_path / "task").mkdir()
    end = end_of(spec(tmp_path / "task", [str(program)])).exit
    assert (end.kind, end.code) == ("exited", 127)
    assert "interpreter" in end.message


def test_what_the_host_lacks_is_not_the_jobs_failure(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="no-such-folder"):
        end_of(sh(tmp_path, "true", cwd=str(tmp_path / "no-such-folder")))
    with pytest.raises(StartFailed, match="log"):
        end_of(sh(tmp_path, "true"))  # the directory is not fresh


def test_the_environment_is_exactly_what_was_given(tmp_path: Path) -> None:
    only = TaskSpec(tmp_path, ["/usr/bin/env"], None, {"A": "1"}, None, 1.0)
    _, log = asyncio.run(run(only))
    assert sorted(line.split(b" ")[3] for line in log.splitlines()) == [
        b"A=1",
        b"FRAY_RESULT=" + bytes(tmp_path / "result"),
    ]


@pytest.mark.parametrize(
    ("written", "encoding"), [('{"a": [1, 2.5]}', "json"), ("not json", "bytes"), ("NaN", "bytes")]
)
def test_a_command_may_leave_a_result(tmp_path: Path, written: str, encoding: str) -> None:
    end = end_of(sh(tmp_path, f"printf '%s' '{written}' > $FRAY_RESULT"))
    assert end.result is not None
    assert (end.result.encoding, end.result.size) == (encoding, len(written))
    assert end.result.path.read_text() == written


def test_a_result_of_a_command_that_is_too_large(tmp_path: Path) -> None:
    end = end_of(sh(tmp_path, "echo 12345678901 > $FRAY_RESULT", result_limit=10))
    assert (end.exit.kind, end.result) == ("too-large", None)
    assert "12 bytes" in end.exit.message
    assert "write it to storage" in end.exit.message


def test_stop_kills_a_tree_that_ignores_sigterm(tmp_path: Path) -> None:
    pids: list[int] = []

    async def act(task: Task) -> None:
        pids.extend(await pids_in(tmp_path / "work/pids", 4))
        assert all(map(alive, pids))
        task.stop(0.3, "stopped")

    end = with_task(sh(tmp_path, STUBBORN), act)
    assert (end.exit.kind, end.exit.signal, end.complete_before_stop) == ("stopped", signal.SIGKILL, False)
    assert not any(map(alive, pids))


def test_a_second_stop_with_less_grace_does_not_wait_for_the_first(tmp_path: Path) -> None:
    async def act(task: Task) -> None:
        await pids_in(tmp_path / "work/pids", 4)
        task.stop(FAR, "preempted")
        task.stop(0.0, "stopped")

    assert with_task(sh(tmp_path, STUBBORN), act).exit.kind == "preempted"


def test_kill_does_not_wait(tmp_path: Path) -> None:
    async def act(task: Task) -> None:
        await pids_in(tmp_path / "work/pids", 4)
        task.kill()

    assert with_task(sh(tmp_path, STUBBORN, grace=FAR), act).exit.signal == signal.SIGKILL


def test_a_task_may_finish_in_its_grace(tmp_path: Path) -> None:
    async def act(task: Task) -> None:
        await until((tmp_path / "work/ready").exists, "the trap is set")
        task.stop(FAR, "preempted")

    end = with_task(sh(tmp_path, "trap 'exit 0' TERM; touch ready; while :; do sleep 0.02; done"), act)
    assert (end.exit.kind, end.complete_before_stop) == ("success", False)


def test_a_stop_after_the_end_changes_nothing(tmp_path: Path) -> None:
    async def act(task: Task) -> None:
        await task.exit
        task.stop(1.0, "stopped")
        task.set_deadline(0.0)
        task.kill()

    end = with_task(sh(tmp_path, "true"), act)
    assert (end.exit.kind, end.complete_before_stop) == ("success", True)


def test_daemons_left_behind_go_with_the_task(tmp_path: Path) -> None:
    end = end_of(sh(tmp_path, "setsid sh -c 'echo $$ > pid; exec sleep 600' & while ! [ -s pid ]; do sleep 0.01; done"))
    assert end.exit.kind == "success"
    assert not alive(int((tmp_path / "work/pid").read_text()))


def test_a_passed_deadline_kills_at_once(tmp_path: Path) -> None:
    pids: list[int] = []

    async def act(task: Task) -> None:
        pids.extend(await pids_in(tmp_path / "work/pids", 4))
        task.set_deadline(boottime())

    end = with_task(sh(tmp_path, STUBBORN, grace=FAR), act)
    assert end.exit.kind == "lost"
    assert "deadline" in end.exit.message
    assert not any(map(alive, pids))


def test_a_killed_runner_takes_the_task_with_it(tmp_path: Path) -> None:
    pids: list[int] = []

    async def act(task: Task) -> None:
        pids.extend(await pids_in(tmp_path / "work/pids", 2))
        os.kill(task.runner_pid, signal.SIGKILL)
        await task.gone()
        await until(lambda: not any(map(alive, pids)), "the task's group is gone")

    end = with_task(sh(tmp_path, "echo hello; sleep 600 & echo $! $$ >> pids; wait"), act)
    assert end.exit.kind == "lost"
    assert "runner" in end.exit.message


def test_the_runner_ignores_what_is_sent_to_whole_groups(tmp_path: Path) -> None:
    async def act(task: Task) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(task.runner_pid, number)
        (tmp_path / "work/go").touch()

    assert with_task(sh(tmp_path, "while ! [ -e go ]; do sleep 0.02; done"), act).exit.kind == "success"


def test_the_lock_is_held_by_the_runner_but_not_by_the_task(tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    lock = tmp_path / "lock"

    def locked() -> bool:
        with open(lock) as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    async def main(lock_fd: int) -> None:
        fcntl.flock(lock_fd, fcntl.LOCK_EX)
        script = "ls -l /proc/self/fd > fds; touch ready; while ! [ -e go ]; do sleep 0.02; done"
        task = await Task.start(sh(tmp_path / "task", script), boottime() + FAR, lock_fd)
        os.close(lock_fd)
        await until((tmp_path / "task/work/ready").exists, "the task runs")
        assert locked()
        assert str(lock) not in (tmp_path / "task/work/fds").read_text()
        (tmp_path / "task/work/go").touch()
        await task.gone()
        assert not locked()

    asyncio.run(main(os.open(lock, os.O_CREAT | os.O_RDWR)))


def test_usage_is_sampled_while_running_and_totalled_at_the_end(tmp_path: Path) -> None:
    script = "data = bytearray(60_000_000); open('file', 'wb').write(b'x' * 3_000_000)\nwhile True: pass"

    async def act(task: Task) -> None:
        await until(lambda: task.usage.memory > 60_000_000, "a sample")
        assert task.usage.cpu_percent > 10
        assert task.usage.disk >= 3_000_000
        task.kill()

    usage = with_task(spec(tmp_path, [sys.executable, "-c", script]), act).exit.usage
    assert usage is not None
    assert usage.cpu_seconds > 0.5
    assert usage.memory_peak > 60_000_000
    assert usage.disk >= 3_000_000
