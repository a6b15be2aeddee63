"""Heartbeats: each agent has one record, with the jobs that it holds and its mailbox.

**Invariant.** An agent that might hold a job lists it, and no mail is lost for longer than one repair interval.

**Unsafe sequence.**

1. Sender S reads the record of agent A to put mail into it.
2. A writes a heartbeat that lists a new job.
3. S writes its old body over it, and the job is listed no longer.

Or: A clears mail that it has not acted on, because it believes that a heartbeat was applied which another write had
superseded.

**Why this cannot happen.** Every write is conditional, and S changes one flag of the body that it read. If A's
heartbeat is superseded, A decides again from the current record. A clears the mail by an applied heartbeat *before* it
reads its jobs. So a sender that first sets the flag of its job, and then finds the mail unread, knows that A will read
the job after that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from fray_layouts.records import AgentRecord, Ask, ClusterSettings, Holding, KeptRoom, Resources
from fray_layouts.states import AgentState

TRUST_INTERVALS = 3
"""A holder trusts its leases for this many promised intervals after it first sent an applied heartbeat."""

DEATH_INTERVALS = 5
"""An observer waits for this many promised intervals: longer than the holder's trust, so that the tasks are gone before
the jobs are requeued."""

ENDED_STATES = frozenset({AgentState.DEAD, AgentState.LEFT})
"""The states in which an agent has ended for good. An agent in an unknown state may be alive."""

LARGE_FLEETS = (100, 1000)
"""Numbers of live agents above which the intervals are twice, and then four times as long."""

MAX_INTERVAL_STRETCH = 1 << len(LARGE_FLEETS)
"""The factor by which the intervals of the largest fleets are longer."""

MAX_BEATS_PER_SECOND = 250.0
"""Heartbeats that all agents together write in a second at most, in fleets of up to 60,000: a quarter of the rate that
a new bucket accepts."""


@dataclass(frozen=True, slots=True)
class HeartbeatInput:
    """The agent's own part of its next heartbeat.

    Attributes:
        holdings: what it holds, by the id of the job or of the placement's owner.
        interval: seconds within which it promises the next heartbeat.
        free: the resources that it offers.
        problem: what is wrong with it, for people; "" if nothing is.
        unfit: it takes no work until the problem is gone.
        leaving: it takes no more work, and ends.
        requests: how many requests it has sent to the store, by kind.
        asks: jobs that it keeps out for owners of placements.
        kept: the free room that it keeps for these.
    """

    holdings: Mapping[str, Holding]
    interval: float
    free: Resources
    problem: str = ""
    unfit: bool = False
    leaving: bool = False
    requests: Mapping[str, int] = field(default_factory=dict)
    asks: Sequence[Ask] = ()
    kept: Mapping[str, KeptRoom] = field(default_factory=dict)


def next_beat(record: AgentRecord, own: HeartbeatInput) -> AgentRecord:
    """The next body of the agent's record, made from `record`; it clears the mail in `record`."""
    return replace(
        record,
        beat=record.beat + 1,
        holdings=dict(own.holdings),
        interval=own.interval,
        free=own.free,
        problem=own.problem,
        unfit=own.unfit,
        requests=dict(own.requests),
        asks=list(own.asks),
        kept=dict(own.kept),
        mail=False,
        drain=record.drain or own.leaving,
        state=AgentState.LEFT if own.leaving and not own.holdings else record.state,
    )


def is_fenced(record: AgentRecord | None) -> bool:
    """Whether the agent with this record must stop for ever under its id, and others requeue its jobs."""
    return record is None or record.state in ENDED_STATES


def with_mail(record: AgentRecord) -> AgentRecord | None:
    """The record with mail in it; None if it has unread mail already, or if its agent has ended."""
    return None if record.mail or is_fenced(record) else replace(record, mail=True)


def draining(record: AgentRecord) -> AgentRecord | None:
    """The record with the request to take no more work and to leave; None if it has that or its agent has ended."""
    if record.drain or is_fenced(record):
        return None
    return replace(record, drain=True, mail=True)


def beat_interval(holds_leases: bool, live_agents: int, settings: ClusterSettings) -> float:
    """Seconds between the heartbeats of an agent: short with leases, longer in large fleets.

    It is longer above 100, 1,000 and 5,000 agents, so that the heartbeats, and the pass that reads every one of them,
    stay within the store's rates. It never exceeds what observers believe, however many agents there seem to be: an
    agent that trusted its leases for longer would be declared dead meanwhile.
    """
    stretch = 1 << sum(live_agents > fleet for fleet in LARGE_FLEETS)
    interval = settings.beat_interval if holds_leases else settings.idle_beat_interval
    return min(paced_interval(interval * stretch, live_agents, MAX_BEATS_PER_SECOND), max_interval(settings))


def max_interval(settings: ClusterSettings) -> float:
    """The longest interval that any agent promises, and that observers believe."""
    return MAX_INTERVAL_STRETCH * max(settings.beat_interval, settings.idle_beat_interval)


def with_bounded_interval(record: AgentRecord, settings: ClusterSettings) -> AgentRecord:
    """The record as observers use it: its interval is within the bounds of what an agent may promise.

    A strange record may promise years, which would never be over, or an instant, within which nobody looks twice, so
    that no age would accumulate. If this version does not know the agent's state, the longest interval counts: such
    agents may beat rarely.
    """
    if record.state != AgentState.LIVE and not is_fenced(record):
        return replace(record, interval=max_interval(settings))
    shortest = min(settings.beat_interval, settings.idle_beat_interval)
    interval = min(max(record.interval, shortest), max_interval(settings))
    return record if interval == record.interval else replace(record, interval=interval)


def paced_interval(interval: float, count: int, a_second: float) -> float:
    """Seconds between requests: at least `interval`, and so long that `count` participants make `a_second` a second."""
    return max(interval, count / a_second)


def trusted_until(first_send: float, interval: float) -> float:
    """The boot time, in seconds, until which an agent trusts its leases after an applied heartbeat.

    first_send: the boot time at which that heartbeat was first sent.
    """
    return first_send + TRUST_INTERVALS * interval


def task_deadline(now: float, trusted: float, settings: ClusterSettings, ends_with_trust: bool) -> float:
    """Boot time until which a task may run if its runner hears nothing more from its agent.

    While the store does not answer, a live agent moves the deadline on step by step until the outage grace is over. A
    frozen agent moves nothing, so its tasks end with its trust, or sooner: at the end of the shortest trust that the
    next heartbeat may promise. Moving begins one interval before the trust ends, since the tasks would otherwise be
    killed before they hear of it. Two intervals from then are still less than what an observer waits.

    Args:
        trusted: when the agent's trust ends.
        ends_with_trust: there is no grace for this task.
    """
    if ends_with_trust or now < trusted - settings.beat_interval:
        return min(trusted, trusted_until(now, settings.beat_interval))
    return max(trusted, min(now + 2 * settings.beat_interval, trusted + settings.outage_grace))
