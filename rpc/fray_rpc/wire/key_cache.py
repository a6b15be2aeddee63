"""The RPC keys of a cluster, cached for one process.

**Invariant.** The number of reads is bounded however often fresh keys are asked for, and reads delay no caller that
needs only known keys.
**Unsafe sequence.** Strangers name keys that do not exist, each makes this process read the bucket, and all other
callers wait for that.
**Why this cannot happen.** Of the callers that want fresh keys one reads and the others wait for it, and keys that were
read less than `KEY_READ_INTERVAL` ago count as fresh. Known keys are returned without a lock.

**Invariant.** A dropped key is not used for long.
**Unsafe sequence.** A caller goes on using it, and so trusts anybody who has found it.
**Why this cannot happen.** If the keys are older than `KEY_RECHECK_INTERVAL`, a caller that asks for them has them read
first. It waits for that at most `REFRESH_WAIT`, because calls must go on during an outage of the storage.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from weakref import WeakSet

from fray_rpc.wire.session import KEY_READ_INTERVAL, KEY_RECHECK_INTERVAL, RpcKey
from fray_runtime.threads import nobody_waits, start_thread

REFRESH_WAIT = 2.0
"""Most seconds that a caller waits for that read; a store that is reachable takes a tenth of this."""

_log = logging.getLogger(__name__)


class KeyCache:
    """A `Keyring` (without `encrypted`) that reads the keys when they are needed.

    read: returns the (id, secret) of each accepted key, newest first.
    """

    def __init__(self, read: Callable[[], Iterable[tuple[str, bytes]]]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._known: list[RpcKey] = []
        self._read_at = float("-inf")
        self._tried_at = float("-inf")
        _caches.add(self)

    def keys(self, fresh: bool = False) -> list[RpcKey]:
        """The accepted keys, newest first; they are read at the first call, and again if stale or if `fresh`."""
        if fresh or not self._known:
            return self._fresh()
        now = time.monotonic()
        if now - max(self._read_at, self._tried_at) >= KEY_RECHECK_INTERVAL:
            self._tried_at = now
            start_thread(self._try_refresh, "fray-keys", nobody_waits).join(REFRESH_WAIT)
        return self._known

    def _fresh(self) -> list[RpcKey]:
        with self._lock:
            begun = time.monotonic()
            if not self._known or begun - self._read_at >= KEY_READ_INTERVAL:
                self._known = [RpcKey(name, secret) for name, secret in self._read()]
                self._read_at = begun
            return self._known

    def _try_refresh(self) -> None:
        try:
            self._fresh()
        except Exception as error:
            _log.warning("calls go on with the known keys, because the keys cannot be read: %s", error)

    def forked(self) -> None:
        """In the child of a fork: replace the lock, because the thread that held it does not exist here."""
        self._lock = threading.Lock()


_caches: WeakSet[KeyCache] = WeakSet()


def _after_fork() -> None:
    for cache in _caches:
        cache.forked()


os.register_at_fork(after_in_child=_after_fork)
