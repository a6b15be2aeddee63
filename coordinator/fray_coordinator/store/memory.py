"""Objects in this process's memory: for private clusters in threads, and for simulations.

It uses no threads and no real time, so the answers depend only on the calls and on the clock. Versions are digests of
the content, so that code which relies on more than S3 promises fails here too.
"""

import bisect
import hashlib
from collections.abc import Iterator
from itertools import islice

from fray_coordinator.clock import Clock
from fray_coordinator.store.interface import (
    ABSENT,
    ANY,
    NOT_MODIFIED,
    Applied,
    Expectation,
    Listed,
    NotModified,
    Object,
    PreconditionFailed,
    Version,
    check_length,
    max_bytes,
)


def digest(data: bytes) -> Version:
    """The version of a body if the storage has no versions of its own: 128 bits of BLAKE2b, in hex."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class MemoryContents:
    """Objects by key, with the keys in order. Code points sort like their UTF-8 bytes."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self._keys: list[str] = []

    def set(self, key: str, value: Object) -> None:
        if key not in self.objects:
            bisect.insort(self._keys, key)
        self.objects[key] = value

    def remove(self, key: str) -> None:
        if self.objects.pop(key, None):
            del self._keys[bisect.bisect_left(self._keys, key)]

    def keys(self, prefix: str, after: str | None) -> Iterator[str]:
        start = bisect.bisect_left(self._keys, prefix)
        if after is not None:
            start = max(start, bisect.bisect_right(self._keys, after))
        for key in islice(self._keys, start, None):
            if not key.startswith(prefix):
                return
            yield key


class MemoryBackend:
    """The backend of objects in memory; it never fails.

    Args:
        root: for messages.
        contents: shared by all backends of the same root.
    """

    scheme = "memory"
    local = True

    def __init__(self, root: str, contents: MemoryContents, clock: Clock) -> None:
        self.root = self.address = root
        self._contents = contents
        self._clock = clock

    async def get(self, key: str) -> Object | None:
        found = self._contents.objects.get(key)
        if found is not None:
            check_length(len(found.data), max_bytes(key), key)
        return found

    async def get_if_changed(self, key: str, version: Version | None) -> Object | NotModified | None:
        current = await self.get(key)
        return NOT_MODIFIED if current is not None and current.version == version else current

    async def put(self, key: str, data: bytes, expect: Expectation) -> Applied:
        self._check(key, expect)
        written = Object(bytes(data), digest(data), self._clock.wall())
        self._contents.set(key, written)
        return Applied(written.version, written.updated)

    async def delete(self, key: str, expect: Expectation) -> None:
        if key in self._contents.objects:
            self._check(key, expect)
            self._contents.remove(key)

    async def withdraw(self, key: str, expect: Version, aside: str) -> None:
        await self.delete(key, expect)

    async def list(self, prefix: str, after: str | None, limit: int | None, versions: bool) -> list[Listed]:
        keys = islice(self._contents.keys(prefix, after), limit)
        return [self._row(key) if versions else Listed(key) for key in keys]

    def server_offset(self) -> float | None:
        return 0.0

    async def close(self) -> None:
        """Does nothing: the contents stay for the next backend that opens this root."""

    def _row(self, key: str) -> Listed:
        current = self._contents.objects[key]
        return Listed(key, current.version, current.updated)

    def _check(self, key: str, expect: Expectation) -> None:
        current = self._contents.objects.get(key)
        if expect is not ANY and expect != (current.version if current else ABSENT):
            raise PreconditionFailed(key)
