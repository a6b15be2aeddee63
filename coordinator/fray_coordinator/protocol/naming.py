"""Names, and the endpoints published under them.

**Invariant.** Who has seen (incarnation, attempt) of a name never meets a lower one; one incarnation lives at a time.

**Unsafe sequence.** Attempt 1 reads that no endpoint exists and freezes; attempt 2 publishes, and dies; its endpoint is
removed; attempt 1 wakes and publishes. Or: two creators see a free name, and both believe that they hold it. Or: a
creator takes the name and dies before its job exists, and who found the name taken waits for ever.

**Why this cannot happen.** A name is taken by CAS, which raises its incarnation, and never deleted; a publication
raises the attempt in the name's record before it writes the endpoint, on condition of what lay there before; and
callers keep the highest pair they have seen. What a dead process still writes is removed again, because the removal is
repeated. A name whose job does not come within a minute is free, and until it has come no caller is given it.
"""

from dataclasses import dataclass, field
from enum import Enum

from msgspec.structs import replace

from fray_coordinator.protocol.transitions import Status, is_terminal
from fray_layouts.records import EndpointRecord, JobRecord, NameRecord
from fray_layouts.states import NameState

SUBMISSION_SECONDS = 60.0
"""Seconds after a name was taken that its holder's job may still be on its way."""

Rank = tuple[int, int]


def rank(record: NameRecord | EndpointRecord) -> Rank:
    """(incarnation, attempt): what orders everything that is published under a name."""
    return record.incarnation, record.attempt


class NameHolder(Enum):
    """The present holder of a name."""

    FREE = "nobody"
    COMING = "a job that is not there yet; its submitter may have died, so nobody should rely on it"
    HELD = "a job that lives, or what needs no job"


def holder_of(found: NameRecord | None, holder: JobRecord | None, now: float) -> NameHolder:
    """Whether somebody has the name.

    Args:
        holder: the record of the job that the name is held for, read after the name's; None if there is none.
        now: the storage's clock.
    """
    if found is None or found.state != NameState.HELD:
        return NameHolder.FREE
    if not found.job:
        return NameHolder.HELD
    if holder is None:
        return NameHolder.COMING if now - found.since < SUBMISSION_SECONDS else NameHolder.FREE
    return NameHolder.FREE if is_terminal(holder) or holder.stop is not None else NameHolder.HELD


def taken_for(found: NameRecord | None, job: str, now: float) -> NameRecord:
    """The record once the name, which nobody has, is held for `job` in a new incarnation."""
    return replace(
        found or NameRecord(incarnation=0),
        state=NameState.HELD,
        job=job,
        incarnation=found.incarnation + 1 if found else 1,
        attempt=0,
        since=now,
    )


def freed(found: NameRecord | None, incarnation: int) -> NameRecord | None:
    """The record once this incarnation has given the name up; None if it does not have it."""
    if found is None or found.state != NameState.HELD or found.incarnation != incarnation:
        return None
    return replace(found, state=NameState.FREE)


def announced(found: NameRecord | None, endpoint: EndpointRecord) -> NameRecord | None:
    """The name's record once `endpoint` is announced; None if the name has gone to another, or to a later attempt."""
    if found is None or found.state != NameState.HELD or found.job != endpoint.job:
        return None
    if found.incarnation != endpoint.incarnation or found.attempt > endpoint.attempt:
        return None
    return replace(found, attempt=endpoint.attempt)


@dataclass(slots=True)
class HighWaterMark:
    """The highest incarnation, and the highest rank of each actor id, that a caller has met under a name."""

    incarnation: int = 0
    ranks: dict[str, Rank] = field(default_factory=dict)

    def meet(self, endpoint: EndpointRecord) -> None:
        """Remember an endpoint that a listing showed or that answered."""
        self.incarnation = max(self.incarnation, endpoint.incarnation)
        self.ranks[endpoint.actor_id] = max(self.ranks.get(endpoint.actor_id, (0, 0)), rank(endpoint))

    def accepts(self, endpoint: EndpointRecord) -> bool:
        """Whether to connect to it and to take its replies: nothing later was met."""
        known = self.ranks.get(endpoint.actor_id, (0, 0))
        return endpoint.incarnation >= self.incarnation and rank(endpoint) >= known


def may_replace(found: EndpointRecord | None, endpoint: EndpointRecord) -> bool:
    """Whether `endpoint` may be written over the one that is there."""
    return found is None or rank(found) <= rank(endpoint)


def is_stale(endpoint: EndpointRecord, job: JobRecord | None) -> bool:
    """Whether the endpoint is to be removed. job: its job's record, read after the endpoint; None if there is none."""
    return job is None or job.attempt > endpoint.attempt or job.status != Status.RUNNING
