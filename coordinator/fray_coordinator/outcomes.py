"""Outcomes of tasks as objects: workers write batches, drivers read what came since they looked last.

The name of a batch begins with the storage's time at which it was written, so a driver lists behind what it has read.
A write may land late, under a name in the past: the driver lists from `MARGIN` before the newest name it knows, and
from the beginning once every repair interval.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fray_coordinator.core import Core, each
from fray_coordinator.errors import BadRecord
from fray_coordinator.store.api import ABSENT
from fray_layouts.errors import Malformed
from fray_layouts.queue_names import Tasks
from fray_layouts.tasks import Outcome, pack, unpack

MARGIN = 5.0
"""Seconds that a batch may land after the time in its name and still be found by the next look."""


async def write(core: Core, tasks: Tasks, outcomes: Iterable[Outcome]) -> None:
    """Make a batch durable; what it is about may be acknowledged once this returns. Raises StoreUnavailable."""
    await core.store.put(tasks.outcome(core.now(), core.chance.token()), pack(outcomes), ABSENT)


@dataclass(slots=True)
class Reader:
    """One driver's view of the outcomes of its tasks."""

    core: Core
    tasks: Tasks
    _seen: set[str] = field(default_factory=set)
    _from: float = 0.0
    _full_look: float = 0.0

    async def look(self) -> list[Outcome]:
        """The outcomes that no earlier look has returned, oldest batch first. Raises StoreUnavailable, BadRecord."""
        now = self.core.clock.boottime()
        full = now >= self._full_look
        after = None if full else self.tasks.outcomes_after(max(self._from - MARGIN, 0.0))
        rows = await self.core.store.list(self.tasks.outcomes, after)
        keys = [row.key for row in rows if self.tasks.time_of(row.key) is not None]
        batches = await each([key for key in keys if key not in self._seen], self._read)
        self._seen.update(keys)
        if full:
            self._full_look = now + self.core.settings.repair_interval
        return [outcome for batch in batches for outcome in batch]

    async def _read(self, key: str) -> list[Outcome]:
        found = await self.core.store.get(key)
        if found is None:
            return []
        try:
            outcomes = unpack(found.data)
        except Malformed as error:
            raise BadRecord(f"{key} holds no outcomes: {error}; remove it, and its tasks run again") from None
        self._from = max(self._from, self.tasks.time_of(key) or 0.0)
        return outcomes
