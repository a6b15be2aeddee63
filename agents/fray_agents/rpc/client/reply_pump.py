"""A thread that reads a channel's replies when they are due and no caller's thread reads them.

It starts with the first call whose caller does not wait at once. Before it reads, it gives the callers time: a thread
that waits, or makes further calls, reads replies itself, without the cost of a change of threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from fray_agents.threads import start_loop

PUMP_DELAY = 0.001
"""Seconds that the pump waits for a thread that waits itself, or makes further calls."""


class ReplyPump:
    """A background thread that calls `read` soon after `wake`; see the module.

    Attributes:
        unwatched: calls so far whose callers did not wait at once.
        woken: it will call `read`, which sets this to False.
    """

    def __init__(self, read: Callable[[], None], lock: threading.Lock) -> None:
        """Prepare a pump without a thread yet. lock: the channel's, which guards `woken`."""
        self.unwatched = 0
        self.woken = False
        self._read = read
        self._lock = lock
        self._wanted: threading.Event | None = None
        self._hurry = threading.Event()
        self._ended = False

    def wake(self) -> None:
        """Have the replies read soon, unless a caller's thread begins to read them before."""
        with self._lock:
            if self._wanted is None:
                wanted = threading.Event()
                start_loop(lambda: self._run(wanted), "fray-pump")
                self._wanted = wanted
            self.woken = True
        self._wanted.set()

    def hurry(self) -> None:
        """Read at once when woken: a caller will not read."""
        self._hurry.set()

    def end(self) -> None:
        """End the thread."""
        self._ended = True
        if self._wanted is not None:
            self._wanted.set()

    def _run(self, wanted: threading.Event) -> None:
        while wanted.wait() and not self._ended:
            wanted.clear()
            seen = -1
            while seen != self.unwatched:  # a thread that makes calls without a pause looks for replies itself
                seen = self.unwatched
                if self._hurry.wait(PUMP_DELAY):
                    break
            self._hurry.clear()
            self._read()
