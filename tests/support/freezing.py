"""Freezes a process between its writes, because during a write it may hold a lock that others need."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from fray_agents.runner.process_tree import descendants
from fray_coordinator.store.file_tree import LOCK_FOLDER
from tests.support.waiting import PATIENCE, PAUSE, wait_until


def freeze(pid: int, within: float = PATIENCE) -> None:
    """Stop the process while neither it nor a process that it started has a lock file of a root open.

    Raises AssertionError if it had one open at each look.
    """
    deadline = time.monotonic() + within
    while True:
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: _is_stopped(pid))
        if not any(map(_has_lock_open, [pid, *descendants(pid)])):
            return
        os.kill(pid, signal.SIGCONT)
        assert time.monotonic() < deadline, f"process {pid} had a lock file open at each look for {within} s"
        time.sleep(PAUSE)


def _is_stopped(pid: int) -> bool:
    """Whether each thread has stopped: a thread in a system call, such as flock, stops only after the call."""
    return all(_state(thread) in ("T", "Z", "X", "") for thread in Path(f"/proc/{pid}/task").iterdir())


def _state(thread: Path) -> str:
    """The thread's state in `/proc`; "" if it has just ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _has_lock_open(pid: int) -> bool:
    """Whether the process has such a file open, or will open it: the program `flock` has its name as an argument."""
    named = []
    with suppress(FileNotFoundError, ProcessLookupError):
        named.append(Path(f"/proc/{pid}/cmdline").read_text(errors="replace"))
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                named.append(os.readlink(descriptor))
    return any(f"/{LOCK_FOLDER}" in name for name in named)
