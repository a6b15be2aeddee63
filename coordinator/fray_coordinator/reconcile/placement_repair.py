"""Repairs the index of placements: adds missing entries of gangs, and deletes entries that nobody needs."""

from collections.abc import Mapping

from fray_coordinator.concurrency import map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.jobs import placement_index
from fray_coordinator.placements.owner_table import record_key
from fray_coordinator.protocol.placements.entries import entry_of_gang, is_needed
from fray_coordinator.protocol.placements.owners import GANG
from fray_coordinator.protocol.placements.rounds import OwnerRecord
from fray_coordinator.store.records import record_of
from fray_layouts.index_keys import PlacementKey
from fray_layouts.records import JobRecord, ReservationRecord


async def repair_entries(core: Core, gangs: Mapping[str, str], problems: dict[str, str]) -> None:
    """Add the missing entries of gangs, then delete the entries that nobody needs.

    Args:
        gangs: of all gangs that have not ended: by the key of the entry that each must have, the key of its record.
        problems: receives the errors, by key.
    """
    entries = {row.key for row in await core.store.list(PlacementKey.area)} - {PlacementKey.bell}

    async def enter(entry: str) -> None:
        job = record_of(await core.records.read(gangs[entry], JobRecord, one_of_many=True))
        if job is not None and (wanted := entry_of_gang(job)) is not None and wanted.key() not in entries:
            await placement_index.enter(core, job)
            await placement_index.ring_bell(core)

    await map_noting_problems(sorted(gangs.keys() - entries), enter, problems, lambda entry: gangs[entry])
    await map_noting_problems(sorted(entries - gangs.keys()), lambda key: _remove_unneeded(core, key), problems)


async def _remove_unneeded(core: Core, key: str) -> None:
    entry, present = PlacementKey.parse(key), await core.store.get(key)
    if entry is None or present is None:
        return
    kind: type[OwnerRecord] = JobRecord if entry.kind == GANG else ReservationRecord
    record = record_of(await core.records.read(record_key(entry), kind, one_of_many=True))
    if not is_needed(entry, record, core.now(), core.settings):
        await core.store.delete(key, present.version)
