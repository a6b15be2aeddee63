"""Summaries of the jobs that the repair has read: of a million jobs, it keeps only the fields that it decides by."""

from dataclasses import dataclass

from fray_coordinator.protocol.archiving import archive_time
from fray_coordinator.protocol.claiming import waits_until
from fray_coordinator.protocol.placements.entries import entry_of_gang
from fray_coordinator.protocol.retention import due_at
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.protocol.stopping import holders_of
from fray_coordinator.protocol.transitions import is_terminal
from fray_coordinator.store.records import Stored
from fray_layouts.object_keys import ReservationKeys
from fray_layouts.records import ClusterSettings, JobRecord
from fray_layouts.spec import blobs_of, is_gang


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that has ended and is not archived yet.

    Attributes:
        archive_at, due_at: time on the storage's clock from which its record may be archived, or removed.
        parent: id of the parent that is kept under `jobs/` as long as this job; "" if there is none.
        blobs: keys of the blobs that it names.
    """

    version: str
    archive_at: float
    due_at: float
    parent: str
    blobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OpenJob:
    """A job that has not ended.

    Attributes:
        id: of the job.
        holder: id of the agent in its lease; "" if none.
        members: ids of the agents that run it, if it is a gang.
        held_since: time of the lease, or of the gang's start, on the storage's clock.
        entry: key of its index entry while it waits; a gang's entry stays until the gang has ended.
        waits_until: time on the storage's clock after which a waiting job is overdue.
        stops: somebody has asked it to stop.
        parent: id of the parent that it ends with, whose attempt `parent_attempt` launched it; "" if there is none.
        blobs: keys of the blobs that it needs.
        reservation: id of the reservation in which it waits or runs; "" for none.
        submitted_at: time of its submission on the storage's clock.
    """

    id: str
    version: str
    status: str
    attempt: int
    holder: str
    members: tuple[str, ...]
    held_since: float
    entry: str
    waits_until: float
    stops: bool
    parent: str
    parent_attempt: int
    blobs: tuple[str, ...]
    reservation: str
    submitted_at: float


def summarize(job: Stored[JobRecord], settings: ClusterSettings) -> OpenJob | EndedJob:
    """Make the summary of a job's record."""
    record = job.record
    link, lease, blobs = record.parent, record.lease, tuple(blobs_of(record.spec))
    parent = link.job if link is not None and not link.detached else ""
    if is_terminal(record):
        return EndedJob(job.version, archive_time(record, settings), due_at(record, settings), parent, blobs)
    return OpenJob(
        id=record.id,
        version=job.version,
        status=record.status,
        attempt=record.attempt,
        holder=lease.agent if lease is not None else "",
        members=tuple(holders_of(record)) if is_gang(record.spec) else (),
        held_since=lease.since if lease is not None else record.started_at or 0.0,
        entry=(entry_of_gang(record) or entry_of(record)).key(),
        waits_until=waits_until(record),
        stops=record.stop is not None,
        parent=parent,
        parent_attempt=link.attempt if link is not None else 0,
        blobs=blobs,
        reservation=ReservationKeys.of_pool(record.spec.pool),
        submitted_at=record.submitted_at,
    )
