"""Summaries of jobs that the repair has read: of a million, only the fields that the next repair decides by."""

from dataclasses import dataclass

from fray_coordinator.protocol.claiming import waits_until
from fray_coordinator.protocol.retention import due_at
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.protocol.transitions import is_terminal
from fray_coordinator.store.records import Stored
from fray_layouts.records import ClusterSettings, JobRecord
from fray_layouts.spec import blobs_of


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that has ended. `parent`: the id of the parent that may not go before it, "" if none; `blobs`: its own."""

    version: str
    due_at: float
    parent: str
    blobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OpenJob:
    """A job that has not ended.

    Attributes:
        holder: id of the agent in its lease; "" if none.
        held_since: the storage's time of the lease.
        entry: key of its entry in the index, while it waits.
        waits_until: the storage's time after which it is overdue, while it waits.
        stops: somebody wants it to end.
        parent: id of the parent that it ends with, launched by its attempt `parent_attempt`; "" if there is none.
        blobs: keys of the blobs that it needs.
    """

    version: str
    status: str
    attempt: int
    holder: str
    held_since: float
    entry: str
    waits_until: float
    stops: bool
    parent: str
    parent_attempt: int
    blobs: tuple[str, ...]


def summarize(job: Stored[JobRecord], settings: ClusterSettings) -> OpenJob | EndedJob:
    """The summary of a job's record."""
    record = job.record
    link, lease, blobs = record.parent, record.lease, tuple(blobs_of(record.spec))
    parent = link.job if link is not None and not link.detached else ""
    if is_terminal(record):
        return EndedJob(job.version, due_at(record, settings), parent, blobs)
    return OpenJob(
        version=job.version,
        status=record.status,
        attempt=record.attempt,
        holder=lease.agent if lease is not None else "",
        held_since=lease.since if lease is not None else 0.0,
        entry=entry_of(record).key(),
        waits_until=waits_until(record),
        stops=record.stop is not None,
        parent=parent,
        parent_attempt=link.attempt if link is not None else 0,
        blobs=blobs,
    )
