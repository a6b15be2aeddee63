"""The keys of a cluster as one process knows them.

Invariant: who asks for what is known never waits for a read, and reads are bounded however often one is asked for.
Unsafe: strangers name keys that do not exist, each makes the bucket be read, and all others wait for that. Why not
here: the known keys are handed out without a lock; of those who want them fresh one reads and the others wait for it,
and what was read less than `PAUSE` ago is fresh.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from fray_agents.rpc.session import RpcKey

PAUSE = 1.0
"""Seconds between the beginnings of two reads."""


class KeyCache:
    """See `Keyring.keys`.

    Args:
        read: the (id, secret) of the accepted keys, newest first.
    """

    def __init__(self, read: Callable[[], Iterable[tuple[str, bytes]]]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._known: list[RpcKey] = []
        self._read_at = float("-inf")

    def keys(self, fresh: bool = False) -> list[RpcKey]:
        """The accepted keys, newest first; read when first asked for, and again if they shall be `fresh`."""
        if self._known and not fresh:
            return self._known
        with self._lock:
            begun = time.monotonic()
            if not self._known or (fresh and begun - self._read_at >= PAUSE):
                self._known = [RpcKey(name, secret) for name, secret in self._read()]
                self._read_at = begun
            return self._known
