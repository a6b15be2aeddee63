"""A thread that gives back what is idle, and ends once nothing is left to give back.

**Invariant.** As long as there is something that may become idle, a thread looks at it.
**Unsafe sequence.** The thread finds nothing left. Before it has ended, something new comes, sees a thread, and starts
none; it is never given back.
**Why this cannot happen.** `begin` and the last look, with the note that the thread ends, are under one lock.
"""

import contextlib
import threading
import time
from collections.abc import Callable

from fray_runtime.threads import start_loop

IDLE_SECONDS = 10.0
"""Seconds after its last use in which memory is kept for the next message."""


class IdleWatch:
    """Looks at intervals, in a thread of its own.

    Args:
        lock: held during each look.
        interval: returns the seconds until the next look.
        look: gives back what is idle, and returns whether anything is left.
    """

    def __init__(
        self,
        name: str,
        lock: "threading.Lock | threading.RLock",
        interval: Callable[[], float],
        look: Callable[[], bool],
    ) -> None:
        self._name, self._lock, self._interval, self._look = name, lock, interval, look
        self._runs = False

    def begin(self) -> None:
        """Look from now on. The lock must be held."""
        if not self._runs:
            with contextlib.suppress(RuntimeError):  # no thread can be started; the next use tries again
                start_loop(self._run, self._name)
                self._runs = True

    def forked(self) -> None:
        """In a child: the thread is not here."""
        self._runs = False

    def _run(self) -> None:
        while True:
            time.sleep(self._interval())
            with self._lock:
                if not self._look():
                    self._runs = False
                    return
