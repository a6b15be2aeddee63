"""Freezes a process at the moment at which it holds one of the store's lock files.

A process holds a lock for a tenth of a millisecond now and then. So the process is stopped, looked at and continued
until it is caught with a lock. On a busy machine, only a thread with real-time priority looks often enough.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SECONDS = 8.0


def freeze_in_lock(pid: int, locks: Path) -> bool:
    """Stop the process while it holds a lock in the folder; return False, and let it run, if it was not caught."""
    deadline = time.monotonic() + SECONDS
    with _before_others():
        while time.monotonic() < deadline:
            try:
                os.kill(pid, signal.SIGSTOP)
            except ProcessLookupError:
                return False
            if _holds_one_of(pid, locks):
                return True
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.0002)
    return False


@contextmanager
def _before_others() -> Iterator[None]:
    """Give this thread real-time priority, if this user may have that."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _holds_one_of(pid: int, locks: Path) -> bool:
    """Lines look like `1: FLOCK  ADVISORY  WRITE 4711 00:2f:1234 0 EOF`."""
    rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    own = {int(row[5].split(":")[2]) for row in rows if row[1] == "FLOCK" and row[4] == str(pid)}
    return bool(own) and not own.isdisjoint(entry.inode() for entry in os.scandir(locks))
