"""Summaries of the jobs that the repair has read: of a million jobs, it keeps only the fields that it decides by."""

from dataclasses import dataclass, replace
from functools import lru_cache

from msgspec import Struct

from fray_coordinator.protocol.archiving import archive_time
from fray_coordinator.protocol.claiming import waits_until
from fray_coordinator.protocol.placements.entries import entry_of_gang
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.protocol.stopping import holders_of
from fray_coordinator.protocol.transitions import is_terminal
from fray_coordinator.store.records import Stored
from fray_layouts.index_keys import PendingKey, PlacementKey
from fray_layouts.object_keys import ReservationKeys
from fray_layouts.records import ClusterSettings, JobRecord
from fray_layouts.spec import blobs_of, is_gang


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that has ended and is not archived yet.

    Attributes:
        archive_at: time on the storage's clock from which its record may be archived.
        parent: id of the parent that is kept under `jobs/` as long as this job; "" if there is none.
        blobs: keys of the blobs that it names.
    """

    version: str
    archive_at: float
    parent: str
    blobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SharedFields:
    """What jobs that have not ended have in common if one user submitted them at one time; it is kept once for all.

    Attributes:
        holder: id of the agent in the lease; "" if none.
        members: ids of the agents that run it, if it is a gang.
        entry: the index entry while it waits, without id and time; a gang's entry stays until the gang has ended.
        stops: somebody has asked it to stop.
        parent: id of the parent that it ends with, whose attempt `parent_attempt` launched it; "" if there is none.
        blobs: keys of the blobs that it needs.
        reservation: id of the reservation in which it waits or runs; "" for none.
    """

    status: str
    attempt: int
    holder: str
    members: tuple[str, ...]
    entry: PendingKey | PlacementKey
    stops: bool
    parent: str
    parent_attempt: int
    blobs: tuple[str, ...]
    reservation: str


class OpenJob(Struct, frozen=True, gc=False):
    """A job that has not ended: a million of them may wait, so it holds only what differs from job to job.

    Attributes:
        held_since: time of the lease, or of the gang's start, on the storage's clock.
        waits_until: time on the storage's clock after which a waiting job is overdue.
        submitted_at: time of its submission on the storage's clock.
    """

    version: str
    held_since: float
    waits_until: float
    submitted_at: float
    shared: SharedFields

    def entry_key(self, job_id: str) -> str:
        """The key of the job's index entry."""
        entry = self.shared.entry
        if isinstance(entry, PlacementKey):
            return replace(entry, owner=job_id, time=self.submitted_at).key()
        return replace(entry, job=job_id, time=self.submitted_at).key()


def summarize(job: Stored[JobRecord], settings: ClusterSettings) -> OpenJob | EndedJob:
    """Make the summary of a job's record."""
    record = job.record
    link, lease, blobs = record.parent, record.lease, tuple(blobs_of(record.spec))
    parent = link.job if link is not None and not link.detached else ""
    if is_terminal(record):
        return EndedJob(job.version, archive_time(record, settings), parent, blobs)
    placement = entry_of_gang(record)
    shared = SharedFields(
        status=record.status,
        attempt=record.attempt,
        holder=lease.agent if lease is not None else "",
        members=tuple(holders_of(record)) if is_gang(record.spec) else (),
        entry=replace(placement, owner="", time=0.0) if placement else replace(entry_of(record), job="", time=0.0),
        stops=record.stop is not None,
        parent=parent,
        parent_attempt=link.attempt if link is not None else 0,
        blobs=blobs,
        reservation=ReservationKeys.of_pool(record.spec.pool),
    )
    return OpenJob(
        version=job.version,
        held_since=lease.since if lease is not None else record.started_at or 0.0,
        waits_until=waits_until(record),
        submitted_at=record.submitted_at,
        shared=_the_one_kept(shared),
    )


@lru_cache(maxsize=10_000)
def _the_one_kept(fields: SharedFields) -> SharedFields:
    """The first of equal fields, so that jobs share one object. Jobs of very many kinds at a time keep some twice."""
    return fields
