"""Notifies the callers of lost calls, and makes new calls wait until that is done.

A new call must not run elsewhere before those that were made earlier and are lost, and their callers decide about
these once they know.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from fray_agents.rpc.client.client_calls import PendingCall

LOSS_NEWS_TIMEOUT = 5.0
"""Most seconds that a new call waits until all callers know which calls are lost."""


class LossReport:
    """The report of a closed channel about the calls that it has lost; see the module."""

    def __init__(self) -> None:
        self._told = threading.Event()
        self._reporter = 0  # id of the thread that tells the callers

    def tell(self, failed: Iterable[PendingCall]) -> None:
        """Notify the callers of these calls."""
        self._reporter = threading.get_ident()
        try:
            for pending in failed:
                pending.notify()
        finally:
            self._told.set()

    def wait(self) -> None:
        """Return once all callers are told. A callback that is told, and makes a call, does not wait for itself."""
        if self._reporter != threading.get_ident():
            self._told.wait(LOSS_NEWS_TIMEOUT)
