"""The lease of a role that one process has at a time, such as the reconciler's and the scaler's.

**All roles.**

**Invariant.** Some process soon has the role, whoever dies; two that both believe that they have it do no harm.

**Unsafe sequence.**

1. Process B reads the lease and is frozen for an hour. Holder A renews the lease all the time.
2. B wakes, reads the lease in the second before A's next renewal, and finds it as old as the hour it slept.
3. B takes the lease from a live holder.

**Why this cannot happen.** The lease ages only between two successful reads that are at most two intervals apart and
show the same state. A lease that cannot be read ages in the same way, and is then replaced. And the lease protects
nothing: every write of its holder is conditional by itself, and every call to another system is idempotent.

**The reconciler.** Its lease, and what its record hands on to the next holder.

**Invariant.** Some process soon runs the pass, whoever dies; two at once do no harm.

**Unsafe sequence.**

1. Process A holds the lease and dies.
2. Its successor B begins without suspects, and dies before any suspect is old enough.
3. Each further successor does the same, and no death is ever declared.

**Why this cannot happen.** The suspects are in the lease's record, and a successor inherits them. The lease ages as
that of any role. If the record cannot be read, only hints and suspects are lost, and suspects are observed again.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from heapq import nlargest, nsmallest
from typing import Protocol

from msgspec.structs import replace

from fray_coordinator.protocol.failure_detection import MAX_GAP_INTERVALS, merge_suspects
from fray_coordinator.protocol.heartbeat import TRUST_INTERVALS
from fray_layouts.bounds import MAX_SAFE_INTEGER
from fray_layouts.records import AgentRecord, ClusterSettings, PoolSummary, ReconcilerRecord, Suspect
from fray_layouts.states import AgentState

LEASE_INTERVALS = 3
"""Intervals for which the lease must stand still before another process may take it. The holder writes once in each,
and may be late."""


UNREADABLE_HOLDER = "unreadable"
"""The holder of a lease whose record cannot be read. No agent has this id, since every agent's id ends in a time."""


class RoleLease(Protocol):
    """A record that says who has the role, and how often that holder has renewed it."""

    holder: str
    progress: int


def is_unchanged(before: RoleLease, now: RoleLease) -> bool:
    """Whether the holder has written nothing between two reads. Others may have written into its record."""
    return (before.holder, before.progress) == (now.holder, now.progress)


def lease_age(age: float, unchanged: bool, gap: float | None, interval: float) -> float:
    """Seconds for which the lease has been seen to stand still, after one more successful read of it.

    Args:
        age: the result after the read before.
        unchanged: the holder has written nothing since that read.
        gap: seconds since that read; None if this is the first.
        interval: seconds between two renewals by the holder.
    """
    if not unchanged:
        return 0.0
    if gap is None or gap > MAX_GAP_INTERVALS * interval:
        return age
    return age + gap


def may_take(lease: RoleLease | None, age: float, interval: float) -> bool:
    """Whether the lease is free, or has stood still for long enough."""
    return lease is None or not lease.holder or age >= LEASE_INTERVALS * interval


QUIET_INTERVALS = 8
"""How many times longer the intervals of passes, repairs and listings are at most while the cluster is quiet: a minute
between two passes is as often as idle agents beat."""

MAX_PROBLEMS = 50
"""Problems that the lease's record names, so that it stays small; the others are counted."""

MAX_SUSPECTS = 1000
"""Suspects that the lease's record names: those silent for longest. A successor begins anew with the others."""

MAX_POOLS = 1000
"""Pools that the lease's record describes: those with the most agents."""


def is_outdated(holder: AgentRecord) -> bool:
    """Whether the version of the holder does not know gangs, so that nobody gathers them while it runs the pass."""
    return holder.state == AgentState.LIVE and not holder.supports_placements


def next_pass_in(agents: Iterable[AgentRecord], nothing_to_do: bool, settings: ClusterSettings) -> float:
    """Seconds from the start of a pass to that of the next one.

    A pass is due as often as the shortest interval that an agent promises, so that ages accumulate (see
    `failure_detection`), and no job's holder promises a long one. An agent that takes up work wakes the pass.

    Args:
        agents: the records of all agents that have not ended.
        nothing_to_do: no job is open, no gang or reservation is there, no file waits, no agent is silent.
    """
    records = list(agents)
    if not nothing_to_do or any(agent.holdings for agent in records):
        return settings.pass_interval
    shortest = min((agent.interval for agent in records), default=0.0)
    return _bounded(shortest, settings)


def promised_interval(record: ReconcilerRecord, settings: ClusterSettings) -> float:
    """Seconds within which the lease's holder renews it, within the bounds of what a holder may promise."""
    return _bounded(record.interval, settings)


def is_quiet(record: ReconcilerRecord, settings: ClusterSettings) -> bool:
    """Whether the holder looks at the agents more rarely, as nothing was left to do."""
    return promised_interval(record, settings) > settings.pass_interval


def _bounded(interval: float, settings: ClusterSettings) -> float:
    return min(max(interval, settings.pass_interval), QUIET_INTERVALS * settings.pass_interval)


def inherited_suspects(record: ReconcilerRecord, age: float, old_holder: AgentRecord | None) -> dict[str, Suspect]:
    """The suspects with which a successor begins.

    The age of the lease counts as silence of the old holder only if its beat is still the one in the lease. Otherwise
    it lived on after its last pass, and nobody knows how long it has been silent. No more counts than the holder's own
    trust: perhaps nobody could write meanwhile, and once writing works again, a live holder has the rest of the
    time-out for a heartbeat.
    """
    suspects = dict(record.suspects)
    if old_holder is not None and old_holder.state == AgentState.LIVE and old_holder.beat == record.holder_beat:
        credit = Suspect(beat=old_holder.beat, age=min(age, TRUST_INTERVALS * old_holder.interval))
        suspects = merge_suspects({record.holder: credit}, suspects)
    return suspects


def renewed(record: ReconcilerRecord, holder: str, holder_beat: int) -> ReconcilerRecord:
    """The record after its holder has renewed it, which it does whenever it has made progress."""
    return replace(record, holder=holder, progress=(record.progress + 1) % MAX_SAFE_INTEGER, holder_beat=holder_beat)


def after_pass(
    record: ReconcilerRecord,
    holder: str,
    holder_beat: int,
    suspects: Mapping[str, Suspect],
    pools: Mapping[str, PoolSummary],
    problems: Mapping[str, str],
    repaired_at: float,
    interval: float,
) -> ReconcilerRecord:
    """The holder's write after each pass: the renewal, and as much of its knowledge as keeps the record small."""
    most_silent = nlargest(MAX_SUSPECTS, suspects.items(), key=lambda item: item[1].age)
    largest = nlargest(MAX_POOLS, pools.items(), key=lambda item: item[1].agents)
    return replace(
        renewed(record, holder, holder_beat),
        suspects=dict(most_silent),
        pools=dict(largest),
        problems=named_problems(problems),
        problems_omitted=max(len(problems) - MAX_PROBLEMS, 0),
        repaired_at=repaired_at,
        interval=interval,
    )


def named_problems(problems: Mapping[str, str]) -> dict[str, str]:
    """The problems that the record names: one of each folder, then a second of each, so no folder hides another's."""
    seen: Counter[str] = Counter()
    turns: list[tuple[int, int, str]] = []
    for number, key in enumerate(problems):
        folder = key.partition("/")[0]
        turns.append((seen[folder], number, key))
        seen[folder] += 1
    return {key: problems[key] for _, _, key in nsmallest(MAX_PROBLEMS, turns)}


def after_run_without_lease(
    record: ReconcilerRecord, suspects: Mapping[str, Suspect], alive: set[str]
) -> ReconcilerRecord:
    """The write of a run without the lease (`fray coordinate --once`). It keeps the suspects for later runs."""
    merged = merge_suspects(suspects, record.suspects)
    return replace(record, suspects={name: s for name, s in merged.items() if name in alive})
