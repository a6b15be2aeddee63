"""Failure detection: when an agent is declared dead, when it must be reaped, and which jobs were dropped.

**Dead agents.**

**Invariant.** Neither an outage of the store nor a frozen observer makes a live agent dead. Every job of a dead agent
is requeued.

**Unsafe sequence.**

1. Observer O cannot read the store for a minute, and neither can agent A write its heartbeat.
2. O counts that minute, or compares the clocks of two hosts, and declares A dead although A lives.

Or: A is dead and O reaps it once. A claim that A had sent before is applied afterwards, and nobody runs that job.

**Why this cannot happen.** O adds time to the age of a heartbeat only between two successful reads that are at most two
intervals apart, and only while the beat is unchanged. Death is a conditional write, after which no heartbeat of that
agent can be applied. The dead record lists the jobs that are left to requeue; it is marked reaped only when each of
them has been seen to agree with the index. If O does not know the agent's state, the state says neither that the agent
lives nor that it is dead; O then goes by the beat alone, and waits as long as any agent may promise.

**Dropped jobs.** These are jobs whose records say RUNNING, under a live agent that does not list them.

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

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from fray_coordinator.protocol.heartbeat import DEATH_INTERVALS, is_fenced, max_interval
from fray_layouts.records import AgentRecord, ClusterSettings, Suspect
from fray_layouts.states import AgentState

MAX_GAP_INTERVALS = 2
"""Promised intervals that two reads may be apart for the time between them to count. An observer that was frozen or cut
off for longer does not know whether the agent was, too."""

MASS_FAILURE_DIVISOR = 3
"""More than one in so many live agents at once is a mass failure: the network or the observer is a likelier cause than
all of these agents."""


def observe(agent: AgentRecord, own: Suspect | None, reported: Suspect | None, gap: float | None) -> Suspect:
    """The suspicion of the agent after one more successful read of its record.

    Args:
        own: what this observer knew after its previous read; None at its first read.
        reported: what other observers knew. They may have counted the same time as this one, so the two ages are
            compared and never added. An age that would have made its observer declare the agent dead is not believed:
            the record that has it may be damaged, and this observer's own count comes to the same end.
        gap: seconds since this observer's previous successful read; None at its first read.
    """
    known = own if own is not None and own.beat == agent.beat else Suspect(beat=agent.beat)
    if known is own and gap is not None and gap <= MAX_GAP_INTERVALS * agent.interval:
        known = replace(known, age=known.age + gap)
    believed = reported is not None and reported.beat == agent.beat and not has_timed_out(agent, reported)
    return _merged(known, reported) if reported is not None and believed else known


def has_timed_out(agent: AgentRecord, suspect: Suspect) -> bool:
    """Whether the heartbeat has stood still for so long that the agent counts as dead."""
    return suspect.age >= DEATH_INTERVALS * agent.interval


def defer_mass_failure(timed_out: Mapping[str, Suspect], live: int) -> dict[str, Suspect]:
    """The agents that get one more full time-out: so many at once look like a fault of the observer.

    One agent alone is not deferred. A second wait would not tell its silence from its death either, and in a cluster of
    two agents it would double the time of every detection.
    """
    if len(timed_out) < 2 or len(timed_out) * MASS_FAILURE_DIVISOR <= live:
        return {}
    return {name: Suspect(beat=s.beat, deferred=True) for name, s in _not_deferred(timed_out).items()}


def _not_deferred(timed_out: Mapping[str, Suspect]) -> dict[str, Suspect]:
    return {name: suspect for name, suspect in timed_out.items() if not suspect.deferred}


def merge_suspects(mine: Mapping[str, Suspect], theirs: Mapping[str, Suspect]) -> dict[str, Suspect]:
    """The knowledge of two observers together.

    The higher beat wins, then the one that is deferred, then the greater age.
    """
    merged = dict(theirs)
    for name, suspect in mine.items():
        other = merged.get(name)
        if other is None or suspect.beat > other.beat:
            merged[name] = suspect
        elif suspect.beat == other.beat:
            merged[name] = _merged(suspect, other)
    return merged


def _merged(one: Suspect, other: Suspect) -> Suspect:
    """The knowledge of two observers about one agent at the same beat.

    If one of them has deferred it, both wait for the new time-out.
    """
    if one.deferred != other.deferred:
        return one if one.deferred else other
    return one if one.age >= other.age else other


def declare_dead(agent: AgentRecord, beat: int) -> AgentRecord | None:
    """The record of the agent declared dead, if it has not ended and is still at the beat that was observed."""
    if is_fenced(agent) or agent.beat != beat:
        return None
    return replace(agent, state=AgentState.DEAD)


def is_lost(unchanged: float, settings: ClusterSettings) -> bool:
    """Whether an agent has ended whose record cannot be read and has not changed for `unchanged` seconds.

    No agent can write a heartbeat after a record that it cannot read. So, unlike the age of a heartbeat, this time
    counts through outages. The promise of the agent is unknown, so it gets the longest interval that any agent may
    promise.
    """
    return unchanged >= DEATH_INTERVALS * max_interval(settings)


def lost_agent(agent: str) -> AgentRecord:
    """The record of a dead agent of which only the id is known. The repair finds its jobs by their own records."""
    return AgentRecord(id=agent, host="unknown", pool="unknown", state=AgentState.DEAD)


def needs_reaping(agent: AgentRecord) -> bool:
    """Whether jobs listed in this record may still have to be requeued."""
    return is_fenced(agent) and bool(agent.holdings) and not agent.reaped


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
