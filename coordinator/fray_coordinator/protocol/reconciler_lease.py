"""The lease of the reconciler, and what its record hands on to the next holder.

**Invariant.** Some process soon runs the pass, whoever dies; two at once do no harm.

**Unsafe sequence.**

1. Process A holds the lease and dies.
2. Its successor B begins without suspects, and dies before any suspect is old enough.
3. Each further successor does the same, and no death is ever declared.

**Why this cannot happen.** The suspects are in the lease's record, and a successor inherits them. The lease ages as
`role_lease` says. If the record cannot be read, only hints and suspects are lost, and suspects are observed again.
"""

from collections import Counter
from collections.abc import Mapping
from heapq import nlargest, nsmallest

from msgspec.structs import replace

from fray_coordinator.protocol.failure_detection import merge_suspects
from fray_coordinator.protocol.heartbeat import TRUST_INTERVALS
from fray_layouts.bounds import MAX_SAFE_INTEGER
from fray_layouts.records import AgentRecord, PoolSummary, ReconcilerRecord, Suspect
from fray_layouts.states import AgentState

MAX_PROBLEMS = 50
"""Problems that the lease's record names, so that it stays small; the others are counted."""

MAX_SUSPECTS = 1000
"""Suspects that the lease's record names: those silent for longest. A successor begins anew with the others."""

MAX_POOLS = 1000
"""Pools that the lease's record describes: those with the most agents."""


def is_outdated(holder: AgentRecord) -> bool:
    """Whether the version of the holder does not know gangs, so that nobody gathers them while it runs the pass."""
    return holder.state == AgentState.LIVE and not holder.supports_placements


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
