"""What a test has left behind in its process, where later tests of the same process would wait for it or count it."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fray import wait_line
from fray.rpc.running import running_servers
from fray_agents.runner.process_tree import descendants
from fray_agents.tasks import thread_task
from tests.support.waiting import PAUSE

PATIENCE = 60.0
"""Seconds in which what is about to end has to have ended: a busy machine needs long."""

Left = dict[object, str]
"""What is there, by what tells one from another, and how it is told."""


def waits() -> Left:
    """Waits of this process that somebody is told of, and threads that wait for something of Fray."""
    lines: Left = {line: f"the line of a wait: {line._text or 'not shown yet'}" for line in wait_line._terminal.lines}
    threads = (thread for thread in threading.enumerate() if thread.name == "fray-wait")
    return lines | {thread: f"thread {thread.name} waits" for thread in threads}


def services() -> Left:
    """What lives as long as a cluster or a server: processes, jobs in threads, servers of actors."""
    commands = {pid: command for pid in descendants() if (command := _command(pid))}
    found: Left = {pid: f"process {pid}: {command}" for pid, command in commands.items() if TRACKER not in command}
    found |= dict.fromkeys(thread_task._running, "a job in a thread")
    return found | {server: f"a server of {', '.join(server.records)}" for server in running_servers.copy()}


TRACKER = "multiprocessing.resource_tracker"
"""Python's own child, which ends with this process."""


_started: list[subprocess.Popen[str]] = []


def started(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
    """The process, which ends with the test, or the fixtures of the module, that has started it."""
    _started.append(process)
    return process


@contextmanager
def ends_what_it_starts() -> Iterator[None]:
    """Kill what the block started and has not ended, as one that fails does not: its own failure is the only one."""
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
    """Raise AssertionError if what `look` finds after the block was not there before it, and does not go."""
    before = look().keys()
    yield
    deadline = time.monotonic() + PATIENCE
    while left := [text for one, text in look().items() if one not in before]:
        assert time.monotonic() < deadline, f"left behind: {'; '.join(left)}"
        time.sleep(PAUSE)


def _command(pid: int) -> str:
    """The command line; "" of what has ended, whether it was waited for or not."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
