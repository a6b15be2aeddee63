"""Caches of what passes have read: the records of one folder, and objects without a record."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from fray_coordinator.concurrency import map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, describe_error
from fray_coordinator.store.interface import Listed
from fray_coordinator.store.records import Records, Stored
from fray_layouts.records import Record

R = TypeVar("R", bound=Record)


@dataclass(slots=True)
class UnreadableRecords:
    """The unreadable records of one folder: by key, the version and the error."""

    _known: dict[str, tuple[str | None, str]] = field(default_factory=dict)

    def sift(self, rows: Iterable[Listed], problems: dict[str, str]) -> list[Listed]:
        """The rows of a whole listing, with versions, that may hold a record; `problems` receives the others."""
        rows = list(rows)
        before, self._known = self._known, {}
        for row in rows:
            if (known := before.get(row.key)) is not None and known[0] == row.version:
                self._known[row.key] = known
                problems[row.key] = known[1]
        return [row for row in rows if row.key not in self._known]

    async def read(self, records: Records, row: Listed, kind: type[R]) -> Stored[R] | None:
        """Read the record of a row; None if absent. Raises BadRecord, and remembers the version."""
        try:
            return await records.read(row.key, kind, one_of_many=True)
        except BadRecord as error:
            self._known[row.key] = (row.version, describe_error(error))
            raise


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
