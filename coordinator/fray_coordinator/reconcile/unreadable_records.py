"""Remembers, by version, objects without the record that their key promises, so that no pass reads them twice."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

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
