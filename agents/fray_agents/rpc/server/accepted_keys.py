"""The keys that a server accepts; a separate thread reads them again, because that may take long.

**Invariant.** From `KEY_RECHECK_INTERVAL` seconds after a key was dropped, it opens nothing.
**Unsafe sequence.** The server knows the dropped key. No caller names another, so the server never reads them again.
**Why this cannot happen.** The server also reads them again after that time, and closes connections that were opened
with a key that is gone. While the keys cannot be read, the known ones stay valid.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from fray_agents.rpc.wire.session import KEY_READ_INTERVAL, KEY_RECHECK_INTERVAL, Keyring, RpcKey
from fray_agents.threads import start_thread

_log = logging.getLogger(__name__)


class AcceptedKeys:
    """The accepted keys as last read; one thread uses this, and is woken after each read.

    Args:
        wake: called in the thread that has read the keys.

    Attributes:
        known: empty until the first read.
        reading: a thread is reading them.
    """

    def __init__(self, keyring: Keyring, wake: Callable[[], None]) -> None:
        self._keyring = keyring
        self._wake = wake
        self._read_at = float("-inf")
        self._results: deque[Sequence[RpcKey] | None] = deque()
        self.known: Sequence[RpcKey] = ()
        self.reading = False

    def due_in(self, wanted: bool) -> float:
        """Seconds until the keys must be read; `wanted`: callers have named an unknown key."""
        if not wanted and not self.known:
            return KEY_RECHECK_INTERVAL  # nobody has called yet
        return self._read_at + (KEY_READ_INTERVAL if wanted else KEY_RECHECK_INTERVAL) - time.monotonic()

    def read(self) -> None:
        """Start to read the keys. Raises RuntimeError: no thread can be started."""
        start_thread(self._read, "fray-keys", lambda error: self._have_read(None))
        self.reading = True

    def news(self) -> Iterator[bool]:
        """Apply the results of finished reads; for each, whether it succeeded."""
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
        self._have_read(keys)

    def _have_read(self, keys: Sequence[RpcKey] | None) -> None:
        self._results.append(keys)
        self._wake()
