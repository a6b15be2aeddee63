"""The heartbeat: one record per agent, with its holdings and its mailbox.

**Invariant.** An agent that might hold a job is listed as holding it, and mail is never lost for longer than a repair.

**Unsafe sequence.** A sender reads the record, the agent beats, the sender's old body overwrites the new beat and its
holdings; or the agent clears mail it has not acted on, because a beat that was superseded is taken for applied.

**Why this cannot happen.** Every write is conditional, senders change one flag of the body they read, a superseded beat
is decided again from what is there, and the mail is cleared by an applied beat *before* the jobs are read: a sender
that sets its job's flag and then finds mail unread knows that the jobs will be read after its flag.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from fray_layouts.records import AgentRecord, ClusterSettings, Holding, Resources
from fray_layouts.states import AgentState

TRUST_INTERVALS = 3
"""A holder trusts its leases for this many promised intervals after the first send of an applied beat."""

DEATH_INTERVALS = 5
"""An observer waits this many: more than the holder's trust, so that tasks are gone before jobs are put back."""

ENDED_STATES = frozenset({AgentState.DEAD, AgentState.LEFT})
"""The states in which an agent has ended for good. One that this version does not know may be a state of life."""

LARGE_FLEETS = (100, 1000)
"""Live agents above which the intervals are twice, and then four times as long."""

MAX_INTERVAL_STRETCH = 1 << len(LARGE_FLEETS)
"""By how much the intervals of the largest fleets are longer."""

MAX_BEATS_PER_SECOND = 250.0
"""What all agents together write at most, up to 60,000 of them: a quarter of what a bucket takes at first."""


@dataclass(frozen=True, slots=True)
class HeartbeatInput:
    """The agent's own part of its next heartbeat."""

    holdings: Mapping[str, Holding]
    interval: float
    free: Resources
    problem: str = ""
    unfit: bool = False
    leaving: bool = False
    requests: Mapping[str, int] = field(default_factory=dict)


def next_beat(record: AgentRecord, own: HeartbeatInput) -> AgentRecord:
    """The next body of the agent's record, on top of `record`; it takes the mail in `record`."""
    return replace(
        record,
        beat=record.beat + 1,
        holdings=dict(own.holdings),
        interval=own.interval,
        free=own.free,
        problem=own.problem,
        unfit=own.unfit,
        requests=dict(own.requests),
        mail=False,
        drain=record.drain or own.leaving,
        state=AgentState.LEFT if own.leaving and not own.holdings else record.state,
    )


def is_fenced(record: AgentRecord | None) -> bool:
    """Whether the agent whose record this is must stop for ever under its id, and others put back what it held."""
    return record is None or record.state in ENDED_STATES


def with_mail(record: AgentRecord) -> AgentRecord | None:
    """The record with mail in it; None if it holds unread mail already, or nobody will read it."""
    return None if record.mail or is_fenced(record) else replace(record, mail=True)


def draining(record: AgentRecord) -> AgentRecord | None:
    """The record with a wish that the agent take no more work and leave; None if it has it already."""
    if record.drain or is_fenced(record):
        return None
    return replace(record, drain=True, mail=True)


def beat_interval(holds_leases: bool, live_agents: int, settings: ClusterSettings) -> float:
    """Seconds between beats to promise: short with leases; longer in fleets above 100, 1,000 and 5,000 agents.

    The intervals grow so that the beats, and the pass, which reads every one, stay within the store's rates. But no
    more than observers believe, however many agents there seem to be: who trusted for longer would be dead meanwhile.
    """
    stretch = 1 << sum(live_agents > fleet for fleet in LARGE_FLEETS)
    interval = settings.beat_interval if holds_leases else settings.idle_beat_interval
    return min(paced_interval(interval * stretch, live_agents, MAX_BEATS_PER_SECOND), max_interval(settings))


def max_interval(settings: ClusterSettings) -> float:
    """The longest interval that any agent promises, and that observers believe."""
    return MAX_INTERVAL_STRETCH * max(settings.beat_interval, settings.idle_beat_interval)


def with_bounded_interval(record: AgentRecord, settings: ClusterSettings) -> AgentRecord:
    """The record as observers take it, who wait for what an agent may promise, whatever a strange record says.

    One of years would never be over, and within one of an instant nobody looks twice: no age would accumulate. Of an
    agent in a state that this version does not know, the longest is believed: perhaps such agents beat rarely.
    """
    if record.state != AgentState.LIVE and not is_fenced(record):
        return replace(record, interval=max_interval(settings))
    shortest = min(settings.beat_interval, settings.idle_beat_interval)
    interval = min(max(record.interval, shortest), max_interval(settings))
    return record if interval == record.interval else replace(record, interval=interval)


def paced_interval(interval: float, count: int, a_second: float) -> float:
    """Seconds between two rounds, at least `interval`, so that `count` agents (or objects) make `a_second` a second."""
    return max(interval, count / a_second)


def trusted_until(first_send: float, interval: float) -> float:
    """The end of the trust that an applied beat confirms, first sent at `first_send` (boot time, seconds)."""
    return first_send + TRUST_INTERVALS * interval


def task_deadline(now: float, trusted: float, settings: ClusterSettings, ends_with_trust: bool) -> float:
    """Boot time until which a task may run if its runner hears nothing more of its agent.

    While the store does not answer, a live agent renews it step by step until the outage grace is over; a frozen agent
    renews nothing, so its tasks end with its trust, or sooner: with that of the shortest promise, which the next beat
    may make. Renewing begins one interval early, or the tasks would be gone before they hear of it; two intervals from
    then are still less than what an observer waits.

    Args:
        trusted: when the agent's trust ends.
        ends_with_trust: there is no grace for this task.
    """
    if ends_with_trust or now < trusted - settings.beat_interval:
        return min(trusted, trusted_until(now, settings.beat_interval))
    return max(trusted, min(now + 2 * settings.beat_interval, trusted + settings.outage_grace))
