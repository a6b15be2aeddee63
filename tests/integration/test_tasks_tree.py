"""No process of a task survives its end, whatever its processes do."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from pathlib import Path

import pytest

from fray_agents.host.task_cgroups import claim_prefix
from fray_agents.runner.process_tree import descendants
from fray_agents.tasks.process_task import ProcessTask, start_runner
from tests.support.processes import is_alive
from tests.support.tasks import (
    FAR,
    STUBBORN,
    boottime,
    end_of,
    ended,
    pids_in,
    sh,
    spec,
    started,
)
from tests.support.waiting import eventually


async def test_stop_kills_a_tree_that_ignores_sigterm(tmp_path: Path) -> None:
    pids: list[int] = []

    task = await started(sh(tmp_path, STUBBORN))
    pids.extend(await pids_in(tmp_path / "work/pids", 4))
    assert all(map(is_alive, pids))
    task.stop(0.3, "stopped")
    end = await ended(task)
    assert (end.exit.kind, end.exit.signal, end.complete_before_stop) == ("stopped", signal.SIGKILL, False)
    assert not any(map(is_alive, pids))


async def test_a_second_stop_with_less_grace_does_not_wait_for_the_first(tmp_path: Path) -> None:
    task = await started(sh(tmp_path, STUBBORN))
    await pids_in(tmp_path / "work/pids", 4)
    task.stop(FAR, "preempted")
    task.stop(0.0, "stopped")
    assert (await ended(task)).exit.kind == "preempted"


async def test_kill_does_not_wait(tmp_path: Path) -> None:
    task = await started(sh(tmp_path, STUBBORN, grace=FAR))
    await pids_in(tmp_path / "work/pids", 4)
    task.kill()
    assert (await ended(task)).exit.signal == signal.SIGKILL


async def test_a_task_may_finish_in_its_grace(tmp_path: Path) -> None:
    task = await started(sh(tmp_path, "trap 'exit 0' TERM; touch ready; while :; do sleep 0.02; done"))
    await eventually((tmp_path / "work/ready").exists)
    task.stop(FAR, "preempted")
    end = await ended(task)
    assert (end.exit.kind, end.complete_before_stop) == ("success", False)


async def test_a_stop_after_the_end_changes_nothing(tmp_path: Path) -> None:
    task = await started(sh(tmp_path, "true"))
    await task.exit
    task.stop(1.0, "stopped")
    task.set_deadline(0.0)
    task.kill()
    end = await ended(task)
    assert (end.exit.kind, end.complete_before_stop) == ("success", True)


def test_daemons_left_behind_go_with_the_task(tmp_path: Path) -> None:
    end = end_of(sh(tmp_path, "setsid sh -c 'echo $$ > pid; exec sleep 600' & while ! [ -s pid ]; do sleep 0.01; done"))
    assert end.exit.kind == "success"
    assert not is_alive(int((tmp_path / "work/pid").read_text()))


async def test_a_passed_deadline_kills_at_once(tmp_path: Path) -> None:
    pids: list[int] = []

    task = await started(sh(tmp_path, STUBBORN, grace=FAR))
    pids.extend(await pids_in(tmp_path / "work/pids", 4))
    task.set_deadline(boottime())
    end = await ended(task)
    assert end.exit.kind == "preempted"
    assert "deadline" in end.exit.message
    assert not any(map(is_alive, pids))


async def test_a_deadline_that_has_passed_cannot_be_renewed(tmp_path: Path) -> None:
    """A host that was frozen as a whole wakes up. The agent's renewal and the runner's look come in any order."""

    task = await started(sh(tmp_path, "sleep 600"))
    os.kill(task.runner_pid, signal.SIGSTOP)
    soon = boottime() + 0.05
    task.set_deadline(soon)
    await eventually(lambda: boottime() > soon)
    task.set_deadline(boottime() + FAR)
    os.kill(task.runner_pid, signal.SIGCONT)
    await task.wait()
    assert (await ended(task)).exit.kind == "preempted"


async def test_a_task_whose_deadline_has_passed_is_not_started(tmp_path: Path) -> None:
    task = await ProcessTask.start(sh(tmp_path, "touch started"), boottime() - 1, None)
    await task.wait()
    assert (await task.exit).exit.kind == "preempted"
    assert not (tmp_path / "work/started").exists()


def has_cgroup(prefix: str, runner: int) -> bool:
    return os.path.exists(f"{prefix}{runner}")


@pytest.mark.parametrize("grouped", [False, True])
async def test_a_killed_runner_takes_the_whole_tree_with_it(tmp_path: Path, grouped: bool) -> None:
    """This includes processes that left the session, and in a cgroup even those that hide their origin."""
    prefix = claim_prefix() if grouped else ""
    script = STUBBORN.replace("setsid", "env -i setsid") if prefix else STUBBORN
    task = await ProcessTask.start(sh(tmp_path, script), boottime() + FAR, None, None, prefix)
    pids = await pids_in(tmp_path / "work/pids", 4)
    os.kill(task.runner_pid, signal.SIGKILL)
    end = await task.exit
    assert not any(map(is_alive, pids))
    assert end.exit.kind == "lost"
    assert "runner" in end.exit.message


@pytest.mark.parametrize("kind", ["success", "lost"])
async def test_a_task_ends_with_its_runner_though_a_fork_of_the_agents_process_holds_their_pipe(
    tmp_path: Path, kind: str
) -> None:
    task = await started(sh(tmp_path, "while ! [ -e go ]; do sleep 0.02; done"))
    held = os.open(f"/proc/{task.runner_pid}/fd/1", os.O_WRONLY)  # as a child of a fork while the runner was started
    if kind == "success":
        (tmp_path / "work/go").touch()
    else:
        os.kill(task.runner_pid, signal.SIGKILL)
    assert (await ended(task)).exit.kind == kind
    os.close(held)


async def test_a_task_has_a_cgroup_of_its_own_which_ends_with_it(tmp_path: Path) -> None:
    prefix = claim_prefix()
    script = "cat /proc/self/cgroup; setsid sleep 600 & echo $! > pid"
    task = await ProcessTask.start(sh(tmp_path, script), boottime() + FAR, None, None, prefix)
    log = b"".join([path.read_bytes() async for _, path in task.chunks()]).decode()
    await task.wait()
    assert (f"/{Path(prefix).name}{task.runner_pid}\n" in log) == bool(prefix)
    assert not has_cgroup(prefix, task.runner_pid)
    assert not is_alive(int((tmp_path / "work/pid").read_text()))


async def test_nothing_is_left_of_a_prestarted_process_that_nobody_needed() -> None:
    prefix = claim_prefix()
    runner = await start_runner(None, prefix, ["sleep", "600"])
    (sleeping,) = await eventually(lambda: descendants(runner.pid))
    assert runner.stdin is not None
    runner.stdin.close()
    await runner.wait()
    assert not is_alive(sleeping)
    assert not has_cgroup(prefix, runner.pid)


async def test_the_runner_ignores_signals_to_whole_groups(tmp_path: Path) -> None:
    task = await started(sh(tmp_path, "while ! [ -e go ]; do sleep 0.02; done"))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(task.runner_pid, number)
    (tmp_path / "work/go").touch()
    assert (await ended(task)).exit.kind == "success"


async def test_the_lock_is_held_by_the_runner_but_not_by_the_task(tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    lock = tmp_path / "lock"

    def locked() -> bool:
        with open(lock) as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    lock_fd = os.open(lock, os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock_fd, fcntl.LOCK_EX)
    script = "ls -l /proc/self/fd > fds; touch ready; while ! [ -e go ]; do sleep 0.02; done"
    task = await ProcessTask.start(sh(tmp_path / "task", script), boottime() + FAR, lock_fd)
    os.close(lock_fd)
    await eventually((tmp_path / "task/work/ready").exists)
    assert locked()
    assert str(lock) not in (tmp_path / "task/work/fds").read_text()
    (tmp_path / "task/work/go").touch()
    await task.wait()
    assert not locked()


# Enlarges its pipe, prints more than one read of the runner takes, and ends.
PARTING_WORDS = """
import fcntl, os, sys, time
fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20)
open("ready", "w").close()
while not os.path.exists("go"): time.sleep(0.02)
os.write(1, b"x" * 999_999 + b"\\n")
"""


async def test_a_runner_that_looks_late_sees_the_events_in_their_order(tmp_path: Path) -> None:
    """A frozen runner finds the task's end, its last words and a stop at once. The task had succeeded before."""

    task = await started(spec(tmp_path, [sys.executable, "-c", PARTING_WORDS]))
    assert task.pid is not None
    await eventually((tmp_path / "work/ready").exists)
    os.kill(task.runner_pid, signal.SIGSTOP)
    (tmp_path / "work/go").touch()
    await eventually(lambda: not is_alive(task.pid or 0))
    task.stop(FAR, "stopped")
    os.kill(task.runner_pid, signal.SIGCONT)
    end = await ended(task)
    assert (end.exit.kind, end.complete_before_stop) == ("success", True)
    log = b"".join(path.read_bytes() for path in (tmp_path / "log").iterdir())
    assert log.count(b"x") == 999_999
