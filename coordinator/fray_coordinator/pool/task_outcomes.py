"""Outcomes of tasks as objects: workers write batches, and drivers read the batches written since their last read.

A batch's name begins with the storage's time of its writing, so a driver lists only names after those it has read. A
slow write may appear late under an earlier name. Therefore the driver lists from `LATE_WRITE_SECONDS` before the newest
name that it knows, and once per repair interval from the beginning. Then it also reads again the objects that held no
outcomes: a foreign object, or a copy that was not complete yet.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from fray_coordinator.concurrency import map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.errors import REMOVE_HINT, BadRecord
from fray_coordinator.store.interface import ABSENT
from fray_layouts.errors import Malformed
from fray_layouts.escaping import escaped
from fray_layouts.pool_records import TaskOutcome, decode_outcomes, encode_outcomes
from fray_layouts.queue_keys import TaskKeys

log = logging.getLogger("fray")

LATE_WRITE_SECONDS = 5.0
"""Seconds by which a batch may appear later than the time in its name and still be found by the next read."""


async def write_outcomes(core: Core, tasks: TaskKeys, outcomes: Iterable[TaskOutcome]) -> None:
    """Store a batch. Once this returns, its tasks may be acknowledged. Raises StoreUnavailable."""
    await core.store.put(tasks.outcome(core.now(), core.rng.token()), encode_outcomes(outcomes), ABSENT)


@dataclass(slots=True)
class OutcomeReader:
    """Reads the outcomes of a driver's tasks."""

    core: Core
    tasks: TaskKeys
    _seen: set[str] = field(default_factory=set)
    _unreadable: dict[str, str] = field(default_factory=dict)
    _from: float = 0.0
    _full_listing_at: float = 0.0

    async def poll(self) -> list[TaskOutcome]:
        """The outcomes that no earlier call returned, oldest batch first; an unreadable object is logged once.

        Raises StoreUnavailable: poll again later.
        """
        now = self.core.clock.boottime()
        full = now >= self._full_listing_at
        after = None if full else self.tasks.outcomes_after(max(self._from - LATE_WRITE_SECONDS, 0.0))
        rows = await self.core.store.list(self.tasks.outcomes, after)
        keys = [row.key for row in rows if self.tasks.time_of(row.key) is not None]
        fresh = [key for key in keys if key not in self._seen and (full or key not in self._unreadable)]
        unreadable: dict[str, str] = {}
        batches = await map_noting_problems(fresh, self._read, unreadable)
        self._seen.update(key for key in fresh if key not in unreadable)
        self._log_unreadable(unreadable)
        if full:
            self._full_listing_at = now + self.core.settings.repair_interval
        return [outcome for batch in batches for outcome in batch]

    async def _read(self, key: str) -> list[TaskOutcome]:
        found = await self.core.store.get(key)
        if found is None:
            return []
        try:
            outcomes = decode_outcomes(found.data)
        except Malformed as error:
            raise BadRecord(f"{key} holds no outcomes: {error}{REMOVE_HINT}") from None
        self._from = max(self._from, self.tasks.time_of(key) or 0.0)
        return outcomes

    def _log_unreadable(self, unreadable: dict[str, str]) -> None:
        for key, problem in unreadable.items():
            if key not in self._unreadable:
                log.warning("outcomes of tasks may be missing: %s", escaped(problem))
        self._unreadable.update(unreadable)
