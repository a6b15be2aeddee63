"""Failure detection: declaring agents dead, and reaping them.

**Invariant.** No outage and no frozen observer kills an agent; a dead agent's jobs are all put back.

**Unsafe sequence.** An observer compares wall clocks, or counts the time in which it could not read either; or it reaps
once, and a claim that lands afterwards leaves a job in nobody's hands.

**Why this cannot happen.** Age accumulates only between two successful reads at most two intervals apart and only while
the beat stands still; death is a conditional write, after which no beat can be applied; and the dead record lists what
is left to put back, marked reaped only when every listed job has been seen in agreement with the index. A state that
the observer does not know tells neither life nor death: the beat does, for which it then waits as long as any agent
may promise.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from fray_coordinator.protocol.heartbeat import DEATH_INTERVALS, is_fenced, max_interval
from fray_layouts.records import AgentRecord, ClusterSettings, Suspect
from fray_layouts.states import AgentState

MAX_GAP_INTERVALS = 2
"""Promised intervals between two reads at most for the time between them to count: an observer that was frozen or cut
off for longer does not know whether the agent was, too."""

MASS_FAILURE_DIVISOR = 3
"""More than one in so many live agents at once is a mass failure, which is rather the network's than theirs."""


def observe(agent: AgentRecord, own: Suspect | None, reported: Suspect | None, gap: float | None) -> Suspect:
    """The suspicion of the agent after one more successful read of its record.

    Args:
        own: what this observer knew after its previous read; None at its first.
        reported: what other observers knew. Their silence may be the same as ours, so it is compared, never added to.
        gap: seconds since this observer's previous successful read; None at its first.
    """
    known = own if own is not None and own.beat == agent.beat else Suspect(beat=agent.beat)
    if known is own and gap is not None and gap <= MAX_GAP_INTERVALS * agent.interval:
        known = replace(known, age=known.age + gap)
    return known if reported is None or reported.beat != agent.beat else _merged(known, reported)


def has_timed_out(agent: AgentRecord, suspect: Suspect) -> bool:
    return suspect.age >= DEATH_INTERVALS * agent.interval


def defer_mass_failure(timed_out: Mapping[str, Suspect], live: int) -> dict[str, Suspect]:
    """The agents that get one more full time-out, because so many at once look like the observer's own fault.

    One agent alone is no mass: waiting twice could not tell its silence from its death either, and in a cluster of two
    it would double every detection.
    """
    if len(timed_out) < 2 or len(timed_out) * MASS_FAILURE_DIVISOR <= live:
        return {}
    return {name: Suspect(beat=s.beat, deferred=True) for name, s in _not_deferred(timed_out).items()}


def _not_deferred(timed_out: Mapping[str, Suspect]) -> dict[str, Suspect]:
    return {name: suspect for name, suspect in timed_out.items() if not suspect.deferred}


def merge_suspects(mine: Mapping[str, Suspect], theirs: Mapping[str, Suspect]) -> dict[str, Suspect]:
    """Two observers' knowledge: the higher beat wins; at equal beat the greater age; a deferral counts."""
    merged = dict(theirs)
    for name, suspect in mine.items():
        other = merged.get(name)
        if other is None or suspect.beat > other.beat:
            merged[name] = suspect
        elif suspect.beat == other.beat:
            merged[name] = _merged(suspect, other)
    return merged


def _merged(one: Suspect, other: Suspect) -> Suspect:
    """Two observers' knowledge of one agent at one beat: a time-out begun anew for one is begun anew for both."""
    if one.deferred != other.deferred:
        return one if one.deferred else other
    return one if one.age >= other.age else other


def declare_dead(agent: AgentRecord, beat: int) -> AgentRecord | None:
    """The record of the agent declared dead, if it has not ended and is still at the beat that was observed."""
    if is_fenced(agent) or agent.beat != beat:
        return None
    return replace(agent, state=AgentState.DEAD)


def is_lost(unchanged: float, settings: ClusterSettings) -> bool:
    """Whether the agent has ended whose record cannot be read and has not changed for so many seconds.

    No beat can follow what its agent cannot read. So, unlike the age of a beat, this may be counted through outages.
    What the agent had promised before is not known: it is given the longest interval of all.
    """
    return unchanged >= DEATH_INTERVALS * max_interval(settings)


def lost_agent(agent: str) -> AgentRecord:
    """The record of a dead agent of which no more is known: the repair finds what it held by its jobs' records."""
    return AgentRecord(id=agent, host="unknown", pool="unknown", state=AgentState.DEAD)


def needs_reaping(agent: AgentRecord) -> bool:
    """Whether jobs listed in this record may still have to be put back."""
    return is_fenced(agent) and bool(agent.holdings) and not agent.reaped
