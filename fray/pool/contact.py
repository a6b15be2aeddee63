"""How a worker notices that its driver is gone: drivers outside of jobs end without a word to anyone."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from fray.actor import current_actor

SILENCE = 300.0
"""Seconds without a call after which a worker takes its driver for gone."""


class Contact:
    """Entered by every call; sets the actor's `shutdown_event` once there was none for `SILENCE`."""

    def __init__(self) -> None:
        self._running = 0
        self._last = time.monotonic()
        self._lock = threading.Lock()
        shutdown = current_actor().shutdown_event
        threading.Thread(target=self._watch, args=(shutdown,), name="fray-contact", daemon=True).start()

    def __enter__(self) -> None:
        with self._lock:
            self._running += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            self._running -= 1
            self._last = time.monotonic()

    def _watch(self, shutdown: threading.Event) -> None:
        while not shutdown.wait(SILENCE / 10):
            with self._lock:
                if not self._running and time.monotonic() - self._last > SILENCE:
                    shutdown.set()
