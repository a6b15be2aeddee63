"""Finds calls that block their connections, because the connections' reading threads run them."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from typing import Protocol

from fray_agents.threads import start_loop

INLINE_LIMIT = 0.002
"""Seconds that a call may occupy its connection's reading thread: ten times the duration of most calls."""

_log = logging.getLogger(__name__)


class InlineCaller(Protocol):
    """A connection whose reading thread runs calls itself."""

    def replace_reader(self, number: int) -> None:
        """Start another thread that reads, if the reading thread still runs the calls with that number."""


class Watchdog:
    """Finds calls that occupy the reading threads of their connections for too long, and starts replacements."""

    def __init__(self) -> None:
        self._busy: dict[InlineCaller, tuple[int, float]] = {}
        self._numbers = itertools.count(1)
        self._awake = threading.Event()
        self._started = False

    def begin(self, connection: InlineCaller) -> int:
        """Note that calls begin in the reading thread of `connection`; returns their number."""
        number = next(self._numbers)
        self._busy[connection] = number, time.monotonic()
        if not self._started:
            self._start()
        if not self._awake.is_set():
            self._awake.set()
        return number

    def end(self, connection: InlineCaller) -> None:
        self._busy.pop(connection, None)

    def _start(self) -> None:
        self._started = True
        try:
            start_loop(self._watch, "fray-watchdog")
        except RuntimeError:
            self._started = False
            raise

    def _watch(self) -> None:
        idle_since = time.monotonic()
        while self._awake.wait():
            time.sleep(INLINE_LIMIT)
            now = time.monotonic()
            for connection, (number, since) in list(self._busy.items()):
                idle_since = now
                if now - since >= INLINE_LIMIT:
                    self._busy.pop(connection, None)
                    self._replace_reader(connection, number)
            if now - idle_since > 1.0:
                self._awake.clear()
                if self._busy:  # a call began just before the event was cleared
                    self._awake.set()
                idle_since = now

    def _replace_reader(self, connection: InlineCaller, number: int) -> None:
        try:
            connection.replace_reader(number)
        except Exception:  # no thread can be started: the client waits until the call has ended
            _log.exception("a call blocks its connection")
