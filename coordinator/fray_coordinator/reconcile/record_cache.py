"""A cache of the records in one folder, for parts of the repair that look at all of them each time."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from fray_coordinator.concurrency import map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.reconcile.unreadable_records import UnreadableRecords
from fray_coordinator.store.interface import Listed
from fray_coordinator.store.records import Stored
from fray_layouts.records import Record

R = TypeVar("R", bound=Record)


@dataclass(slots=True)
class RecordCache(Generic[R]):
    """The readable records of one folder; a refresh reads only those that have changed.

    Attributes:
        is_key: whether a listed key can hold such a record, as a `parse` of the keys says.
        known: the records, by key.
    """

    core: Core
    folder: str
    kind: type[R]
    is_key: Callable[[str], object]
    known: dict[str, Stored[R]] = field(default_factory=dict)
    _unreadable: UnreadableRecords = field(default_factory=UnreadableRecords)

    async def refresh(self, problems: dict[str, str]) -> None:
        """List the folder and read the records that have changed; those that cannot be read are noted in `problems`."""
        rows = await self.core.store.list(self.folder, versions=True)
        rows = self._unreadable.sift((row for row in rows if self.is_key(row.key)), problems)
        found = await map_noting_problems(rows, self._read, problems, lambda row: row.key)
        self.known = {stored.key: stored for stored in found if stored is not None}

    async def _read(self, row: Listed) -> Stored[R] | None:
        before = self.known.get(row.key)
        if before is not None and before.version == row.version:
            return before
        return await self._unreadable.read(self.core.records, row, self.kind)
