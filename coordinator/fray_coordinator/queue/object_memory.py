"""The memory of one participant for immutable objects that it reads by their names, so that each is read once."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence

from fray_coordinator.concurrency import map_concurrently

MAX_REMEMBERED_NAMES = 100_000
"""Names and objects that are remembered. They take some 15 MB; a consumer that needs more reads some objects again."""

Names = frozenset[str]


class ObjectMemory:
    """Objects that hold names, such as receipts.

    Answers come from what the caller itself has read, since concurrent calls may have listed earlier or later ones.

    load: reads one object.
    """

    def __init__(self, load: Callable[[str], Awaitable[Names]]) -> None:
        self._load = load
        self._known: OrderedDict[str, Names] = OrderedDict()
        self._size = 0

    async def holds(self, name: str, keys: Sequence[str]) -> bool:
        """Whether one of these objects has the name. Raises as `load` does."""

        async def has(key: str) -> bool:
            return name in await self._read(key)

        return any(await map_concurrently(keys, has))

    def forget(self, keys: Collection[str]) -> None:
        """Forget objects that are deleted."""
        for key in keys:
            if (known := self._known.pop(key, None)) is not None:
                self._size -= 1 + len(known)

    async def _read(self, key: str) -> Names:
        if (known := self._known.get(key)) is not None:
            self._known.move_to_end(key)
            return known
        found = await self._load(key)
        self.forget([key])
        self._known[key] = found
        self._size += 1 + len(found)
        while self._size > MAX_REMEMBERED_NAMES:
            self.forget([next(iter(self._known))])
        return found
