"""Checks of the index of placements: gangs that it lacks, and entries that nobody needs."""

from collections.abc import Iterator

from fray_coordinator.fsck.report import BY_REPAIR, Problem, SuspectedProblem
from fray_coordinator.fsck.snapshot import Snapshot
from fray_coordinator.placements.owner_table import record_key
from fray_coordinator.protocol.placements.entries import entry_of_gang, is_needed
from fray_coordinator.protocol.placements.owners import GANG
from fray_coordinator.protocol.placements.rounds import OwnerRecord
from fray_layouts.index_keys import PlacementKey
from fray_layouts.object_keys import JobKeys


def missing_gang_entries(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find gangs without an entry. Submitters create it before the record, and it stays until the gang has ended."""
    entries = set(seen.keys[PlacementKey.area])
    for job in seen.jobs.values():
        with seen.judging(JobKeys.key(job.id)):
            key, entry = JobKeys.key(job.id), entry_of_gang(job)
            if entry is not None and entry.key() not in entries and (job.inbox is None or seen.is_settled(key)):
                what = "it is a gang without an entry in placements/, so nobody gathers its members"
                yield SuspectedProblem(Problem(key, what, BY_REPAIR), seen.versions(key))


def unneeded_owner_entries(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find entries of `placements/` whose owners ended long ago or never existed."""
    for key in seen.keys[PlacementKey.area]:
        with seen.judging(key):
            entry = PlacementKey.parse(key)
            owner = record_key(entry) if entry is not None else ""
            if entry is None or seen.is_doubtful(owner) or not seen.is_settled(owner):
                continue
            of_kind = seen.jobs if entry.kind == GANG else seen.reservations
            record: OwnerRecord | None = of_kind.get(entry.owner)
            if not is_needed(entry, record, seen.now - seen.patience, seen.settings):
                what = "the index has an entry of an owner that has ended, or never existed"
                yield SuspectedProblem(Problem(key, what, BY_REPAIR), seen.versions(owner))
