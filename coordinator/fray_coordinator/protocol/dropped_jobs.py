"""Dropped jobs: jobs whose records say RUNNING, under a live agent that does not list them.

**Invariant.** A job that its live holder has dropped runs again. A job that the holder has, or may have, stays with it.

**Unsafe sequence.**

1. Agent A composes a heartbeat, and then claims a job.
2. The heartbeat is applied after the claim, and does not list the job.
3. Observer O believes that A has dropped the job, and requeues it.
4. A and another agent both run it.

**Why this cannot happen.** A lists a claim from before it sends it until it knows that the claim was not applied, and
it lists a job until the job's end is written. So every heartbeat that A composes after the claim was applied lists the
job. O reads the job first, then A's record, and then waits for two more heartbeats. A composed the second of these
after the first was applied, hence after the claim. The job is requeued only on condition of the version that O read
first. And if A later finds the job in the index as its own, A does not take it up again without a write.
"""

from dataclasses import dataclass

from fray_coordinator.protocol.heartbeat import is_fenced
from fray_layouts.records import AgentRecord

UNLISTED_BEATS = 2
"""Heartbeats without the job, counted from the first one that did not list it. One of them may have been composed
before the claim was applied, so it takes two."""


@dataclass(frozen=True, slots=True)
class MissedJob:
    """A running job that its live holder did not list.

    version: of the job's record; beat: of the holder's record, read afterwards.
    """

    version: str
    beat: int


def is_unlisted(job: str, held_since: float, holder: AgentRecord, now: float) -> bool:
    """Whether the holder lives, does not list the job, and has held it long enough that it should.

    No agent writes a lease with a time in the future, so such a lease counts as old.

    Args:
        held_since: the storage's time of the job's lease.
        now: the storage's clock.
    """
    young = 0 <= now - held_since <= UNLISTED_BEATS * holder.interval
    return not is_fenced(holder) and job not in holder.holdings and not young


def is_dropped(first: MissedJob, last: MissedJob) -> bool:
    """Whether the holder has dropped the job, by the first and the last time that it was seen unlisted."""
    return last.version == first.version and last.beat >= first.beat + UNLISTED_BEATS
