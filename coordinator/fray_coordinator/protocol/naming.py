"""Names of actors, the endpoints published under them, and the checkpoints of durable actors.

**Names and endpoints.**

**Invariant.** A caller that has seen (incarnation, attempt) of a name never meets a lower pair, and one incarnation of
a name lives at a time.

**Unsafe sequence.**

1. Attempt 1 reads that no endpoint exists, and freezes.
2. Attempt 2 publishes its endpoint and dies, and the endpoint is removed.
3. Attempt 1 wakes and publishes its own.

Or: creators A and B both see that a name is free, and both believe that they hold it. Or: A takes the name and dies
before its job exists, and B, which found the name taken, waits for ever.

**Why this cannot happen.** A creator takes a name by a compare-and-swap that raises the incarnation, and the name's
record is never deleted. A publication first raises the attempt in the name's record, and then writes the endpoint on
condition of what was there before. Callers keep the highest pair that they have seen. The removal of endpoints is
repeated, so an endpoint that a dead process still writes is removed, too. A name whose job does not appear within a
minute is free again, and until the job appears no caller is given the name.

**Checkpoints** of a durable actor: one sequence of create-only numbers for all attempts of its job.

**Invariant.** The checkpoint with the highest number holds every call that was acknowledged.

**Unsafe sequence.**

1. Attempt 1 freezes before it writes a checkpoint.
2. Attempt 2 restores an older checkpoint and answers calls.
3. Attempt 1 wakes, writes the next number, and answers calls too.
4. There are two histories, and the next restore loses one of them.

Or: attempt 1 wakes while another cluster is at its root, where no number shows attempt 2.

**Why this cannot happen.** An attempt first creates the next number as a fence that holds the state it restored, so the
number that an earlier attempt would write next is taken. After every applied create the writer confirms the root and
lists the numbers with their versions. What was created in another cluster is not listed at its version, and is created
again. A fence that is not the highest is made again from the highest; a checkpoint that is not the highest is not
acknowledged. A writer deletes lower numbers only after its own exists. A reader that lists a number and then does not
find it lists again.
"""

from dataclasses import dataclass, field
from enum import Enum

from msgspec.structs import replace

from fray_coordinator.protocol.transitions import Status, is_terminal
from fray_layouts.records import EndpointRecord, JobRecord, NameRecord
from fray_layouts.states import NameState

SUBMISSION_SECONDS = 60.0
"""Seconds after a name was taken for which its holder's job may still be on its way. A submission takes two or three
writes, so a minute is ample."""

Rank = tuple[int, int]


def rank(record: NameRecord | EndpointRecord) -> Rank:
    """The pair (incarnation, attempt), which orders everything that is published under a name."""
    return record.incarnation, record.attempt


class NameHolder(Enum):
    """The present holder of a name."""

    FREE = "nobody"
    COMING = "a job that is not there yet; its submitter may have died, so nobody should rely on it"
    HELD = "a job that lives, or a holder that needs no job"


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
    """The record once the name, which nobody holds, is held for `job` in a new incarnation."""
    return replace(
        found or NameRecord(),
        state=NameState.HELD,
        job=job,
        incarnation=found.incarnation + 1 if found else 1,
        attempt=0,
        since=now,
    )


def freed(found: NameRecord | None, incarnation: int) -> NameRecord | None:
    """The record once this incarnation has given the name up; None if this incarnation does not hold it."""
    if found is None or found.state != NameState.HELD or found.incarnation != incarnation:
        return None
    return replace(found, state=NameState.FREE)


def announced(found: NameRecord | None, endpoint: EndpointRecord) -> NameRecord | None:
    """The name's record once `endpoint` is announced; None if another job or a later attempt holds the name."""
    if found is None or found.state != NameState.HELD or found.job != endpoint.job:
        return None
    if found.incarnation != endpoint.incarnation or found.attempt > endpoint.attempt:
        return None
    return replace(found, attempt=endpoint.attempt)


@dataclass(slots=True)
class HighWaterMark:
    """The highest incarnation of a name, and the highest rank of each actor id, that a caller has met."""

    incarnation: int = 0
    ranks: dict[str, Rank] = field(default_factory=dict)

    def meet(self, endpoint: EndpointRecord) -> None:
        """Remember an endpoint that a listing showed or that answered."""
        self.incarnation = max(self.incarnation, endpoint.incarnation)
        self.ranks[endpoint.actor_id] = max(self.ranks.get(endpoint.actor_id, (0, 0)), rank(endpoint))

    def accepts(self, endpoint: EndpointRecord) -> bool:
        """Whether to connect to the endpoint and to take its replies: the caller has met nothing later."""
        known = self.ranks.get(endpoint.actor_id, (0, 0))
        return endpoint.incarnation >= self.incarnation and rank(endpoint) >= known


def may_replace(found: EndpointRecord | None, endpoint: EndpointRecord) -> bool:
    """Whether `endpoint` may be written over the one that was found."""
    return found is None or rank(found) <= rank(endpoint)


def is_stale(endpoint: EndpointRecord, job: JobRecord | None) -> bool:
    """Whether the endpoint must be removed. job: its job's record, read after the endpoint; None if there is none."""
    return job is None or job.attempt > endpoint.attempt or job.status != Status.RUNNING


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint in the sequence.

    Attributes:
        attempt: of the job whose process wrote it.
        writer: a unique id of that process.
        fence: it was written to shut earlier attempts out, not to acknowledge calls.
        state: None if the actor never wrote one.
    """

    number: int
    attempt: int
    writer: str
    fence: bool
    state: bytes | None


def fence(highest: Checkpoint | None, attempt: int, writer: str) -> Checkpoint | None:
    """The first checkpoint that a process writes, after it has read the highest one.

    None: a later attempt has already written, so the process must neither write nor answer any more.
    """
    if highest is None:
        return Checkpoint(1, attempt, writer, True, None)
    if highest.attempt > attempt:
        return None
    return Checkpoint(highest.number + 1, attempt, writer, True, highest.state)


def checkpoint(last: Checkpoint, state: bytes) -> Checkpoint:
    """The checkpoint that makes `state` durable. last: the previous checkpoint that this process wrote."""
    return Checkpoint(last.number + 1, last.attempt, last.writer, False, state)


def landed_before(found: Checkpoint | None, wanted: Checkpoint) -> bool:
    """Whether an earlier write of the same process, whose outcome it never learnt, has taken the number."""
    return found is not None and found.writer == wanted.writer
