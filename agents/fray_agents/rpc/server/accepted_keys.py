"""The keys that a server accepts, read again in a thread of their own, because that may take long.

**Invariant.** `KEY_RECHECK_INTERVAL` seconds after a key was dropped it opens nothing.
**Unsafe sequence.** It is known here, nobody names another one, and so nobody reads the keys again.
**Why this cannot happen.** They are read again after that time as well, and the server closes connections that were
opened with a key that is gone. While the keys cannot be read, those that are known count.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from fray_agents.rpc.wire.session import Keyring, RpcKey

KEY_READ_INTERVAL = 1.0
"""Seconds between two reads of the keys, however many callers name unknown ones: it bounds what strangers can cause."""

KEY_RECHECK_INTERVAL = 60.0
"""Seconds after which the keys are read again though all that were named are known: one read a minute costs nothing."""

_log = logging.getLogger(__name__)


class AcceptedKeys:
    """The accepted keys as they were read last; used by one thread, which is woken when they have been read.

    Args:
        wake: called in the thread that has read them.

    Attributes:
        known: empty until the first read.
        reading: a thread reads them.
    """

    def __init__(self, keyring: Keyring, wake: Callable[[], None]) -> None:
        self._keyring = keyring
        self._wake = wake
        self._read_at = float("-inf")
        self._results: deque[Sequence[RpcKey] | None] = deque()
        self.known: Sequence[RpcKey] = ()
        self.reading = False

    def due_in(self, wanted: bool) -> float:
        """Seconds until the keys are to be read; `wanted`: callers have named a key that is not known."""
        if not wanted and not self.known:
            return KEY_RECHECK_INTERVAL  # nobody has called yet
        return self._read_at + (KEY_READ_INTERVAL if wanted else KEY_RECHECK_INTERVAL) - time.monotonic()

    def read(self) -> None:
        """Begin to read the keys. Raises RuntimeError: no thread can be started."""
        threading.Thread(target=self._read, name="fray-keys", daemon=True).start()
        self.reading = True

    def news(self) -> Iterator[bool]:
        """Take over what was read: for each read that has ended, whether it succeeded."""
        while self._results:
            keys = self._results.popleft()
            self.reading = False
            self._read_at = time.monotonic()
            if keys is not None:
                self.known = keys
            yield keys is not None

    def _read(self) -> None:
        keys: Sequence[RpcKey] | None = None
        try:
            keys = self._keyring.keys(fresh=True)
        except Exception as error:
            _log.warning("the keys of callers cannot be read: %s", error)
        self._results.append(keys)
        self._wake()
