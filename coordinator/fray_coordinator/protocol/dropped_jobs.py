"""Jobs that run by their records under a live agent that does not list them.

**Invariant.** A job that its live holder has dropped runs again; one that the holder has, or may have, stays with it.

**Unsafe sequence.** An agent composes a beat, then claims a job; the beat lands after the claim and says nothing of the
job; an observer takes the job for dropped and puts it back, and two agents run it.

**Why this cannot happen.** An agent lists a claim from before it sends it until it knows that the claim is not applied,
and a job until its end is written; so every beat that is composed after the claim has landed lists the job. An observer
reads the job first, then the agent's record. Of two beats that are applied afterwards the second was composed after the
first was applied, hence after the claim. The job is put back on condition of the very version that was read before
both. And an agent that meets the job in the index, as its own, does not take it up again without a write.
"""

from dataclasses import dataclass

from fray_coordinator.protocol.heartbeat import is_fenced
from fray_layouts.records import AgentRecord

UNLISTED_BEATS = 2
"""Beats that do not list the job, counted from the first sighting: one may have been composed before it."""


@dataclass(frozen=True, slots=True)
class MissedJob:
    """A running job that its live holder did not list. version: of the job's record; beat: in the record read after."""

    version: str
    beat: int


def is_unlisted(job: str, held_since: float, holder: AgentRecord, now: float) -> bool:
    """Whether the holder lives, does not list the job, and should by now.

    A lease from the future is no agent's doing.

    Args:
        held_since: the storage's time of the job's lease.
        now: the storage's clock.
    """
    young = 0 <= now - held_since <= UNLISTED_BEATS * holder.interval
    return not is_fenced(holder) and job not in holder.holdings and not young


def is_dropped(first: MissedJob, last: MissedJob) -> bool:
    """Whether the holder has dropped the job, by two sightings of it unlisted."""
    return last.version == first.version and last.beat >= first.beat + UNLISTED_BEATS
