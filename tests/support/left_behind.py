"""Finds what a test leaves behind in its process: later tests in that process could wait for it or count it."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fray import wait_line
from fray.rpc.resolver import running_servers
from fray_agents.runner.process_tree import descendants
from fray_agents.tasks import thread_task
from tests.support.waiting import PAUSE

PATIENCE = 60.0
"""Seconds to wait for threads and processes that are about to end; a busy machine needs long."""

Left = dict[object, str]
"""What exists: by identity, a text for the message."""


def waits() -> Left:
    """Waits in this process that are reported to somebody, and threads that wait for something of Fray."""
    lines: Left = {
        line: f"the line of a wait: {line._text or 'not shown yet'}" for line in wait_line._terminal.value.lines
    }
    threads = (thread for thread in threading.enumerate() if thread.name == "fray-wait")
    return lines | {thread: f"thread {thread.name} waits" for thread in threads}


def services() -> Left:
    """Everything that lives as long as a cluster or a server: processes, jobs in threads, servers of actors."""
    commands = {pid: command for pid in descendants() if (command := _command(pid))}
    found: Left = {pid: f"process {pid}: {command}" for pid, command in commands.items() if TRACKER not in command}
    found |= dict.fromkeys(thread_task._running, "a job in a thread")
    return found | {server: f"a server of {', '.join(server.records)}" for server in running_servers.copy()}


TRACKER = "multiprocessing.resource_tracker"
"""Python's own child process, which ends with this process."""


_started: list[subprocess.Popen[str]] = []


def started(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
    """Register a process that ends with the test, or with the module's fixtures, that started it."""
    _started.append(process)
    return process


@contextmanager
def ends_what_it_starts() -> Iterator[None]:
    """Kill the processes that the block started and did not end, so that a failing test reports one failure."""
    before = len(_started)
    try:
        yield
    finally:
        for process in _started[before:]:
            with process:
                process.kill()
        del _started[before:]


@contextmanager
def nothing_left(look: Callable[[], Left]) -> Iterator[None]:
    """Raise AssertionError if `look` finds something after the block that did not exist before it and does not end."""
    before = look().keys()
    yield
    deadline = time.monotonic() + PATIENCE
    while left := [text for one, text in look().items() if one not in before]:
        assert time.monotonic() < deadline, f"left behind: {'; '.join(left)}"
        time.sleep(PAUSE)


def _command(pid: int) -> str:
    """The command line; "" for a process that has ended, also for a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
