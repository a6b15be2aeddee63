"""The RPC keys of a cluster, cached for one process.

**Invariant.** Reads are bounded however often fresh keys are asked for, and delay nobody who needs only known ones.
**Unsafe sequence.** Strangers name keys that do not exist, each makes the bucket be read, and all others wait for that.
**Why this cannot happen.** Of those who want fresh keys one reads and the others wait for it, and keys that were read
less than `MIN_READ_INTERVAL` ago are fresh. Known keys are handed out without a lock.

**Invariant.** A key that was dropped is not used for long.
**Unsafe sequence.** A caller goes on with it, and so believes whoever has found it.
**Why this cannot happen.** Who asks for keys that are older than `STALE_AFTER` has them read first. It waits for that
no longer than `REFRESH_WAIT`, because calls go on while the storage is away.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from weakref import WeakSet

from fray_agents.rpc.wire.session import RpcKey

MIN_READ_INTERVAL = 1.0
"""Seconds between the beginnings of two reads: what strangers can make a process ask of the bucket."""

STALE_AFTER = 60.0
"""Seconds after which keys are not handed out without an attempt to read them again: one read a minute costs nothing,
and bounds how long a key that was dropped is believed."""

REFRESH_WAIT = 2.0
"""Seconds that a caller waits for this attempt; a read of a store that is there takes a tenth of that."""

_log = logging.getLogger(__name__)


class KeyCache:
    """A `Keyring` (without `encrypted`) that reads the keys when they are needed.

    read: gives the (id, secret) of each accepted key, newest first.
    """

    def __init__(self, read: Callable[[], Iterable[tuple[str, bytes]]]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._known: list[RpcKey] = []
        self._read_at = float("-inf")
        self._tried_at = float("-inf")
        _caches.add(self)

    def keys(self, fresh: bool = False) -> list[RpcKey]:
        """The accepted keys, newest first; read when first asked for, and again if they are stale or to be `fresh`."""
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
        """In the child of a fork: the thread that held the lock is not there."""
        self._lock = threading.Lock()


_caches: WeakSet[KeyCache] = WeakSet()


def _after_fork() -> None:
    for cache in _caches:
        cache.forked()


os.register_at_fork(after_in_child=_after_fork)
