"""The keys of a cluster as one process knows them.

Invariant: reads are bounded however often one is asked for, and keep nobody who knows what he needs. Unsafe: strangers
name keys that do not exist, each makes the bucket be read, and all others wait for that. Why not here: of those who
want fresh keys one reads and the others wait for it, and what was read less than `MIN_READ_INTERVAL` ago is fresh; the
known keys are handed out without a lock.

Invariant: a key that was dropped is not used for long. Unsafe: a caller goes on with it, and so believes who has found
it. Why not here: who asks for keys that are `STALE_AFTER` has them read first, and waits for that `REFRESH_WAIT` at
most, because calls go on while the storage is away.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from weakref import WeakSet

from fray_agents.rpc.wire.session import RpcKey

MIN_READ_INTERVAL = 1.0
"""Seconds between the beginnings of two reads."""

STALE_AFTER = 60.0
"""Seconds after which keys are not handed out without an attempt to read them again."""

REFRESH_WAIT = 2.0
"""Seconds that who wants the known keys waits for this attempt."""

_log = logging.getLogger(__name__)


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
        self._tried_at = float("-inf")
        _caches.add(self)

    def keys(self, fresh: bool = False) -> list[RpcKey]:
        """The accepted keys, newest first; read when first asked for, and again if they are old or shall be `fresh`."""
        if fresh or not self._known:
            return self._fresh()
        now = time.monotonic()
        if now - max(self._read_at, self._tried_at) >= STALE_AFTER:
            self._tried_at = now
            trying = threading.Thread(target=self._try, name="fray-keys", daemon=True)
            trying.start()
            trying.join(REFRESH_WAIT)
        return self._known

    def _fresh(self) -> list[RpcKey]:
        with self._lock:
            begun = time.monotonic()
            if not self._known or begun - self._read_at >= MIN_READ_INTERVAL:
                self._known = [RpcKey(name, secret) for name, secret in self._read()]
                self._read_at = begun
            return self._known

    def _try(self) -> None:
        try:
            self._fresh()
        except Exception as error:
            _log.warning("calls go on with the keys that are known, for others cannot be read: %s", error)

    def forked(self) -> None:
        """In the child of a fork: whoever read is not there."""
        self._lock = threading.Lock()


_caches: WeakSet[KeyCache] = WeakSet()


def _after_fork() -> None:
    for cache in _caches:
        cache.forked()


os.register_at_fork(after_in_child=_after_fork)
