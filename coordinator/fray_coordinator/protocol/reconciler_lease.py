"""The lease of the coordinator's pass.

**Invariant.** Some process runs the pass soon, whoever dies; two at once do no harm.

**Unsafe sequence.** The holder dies and its successor begins with empty suspects, and dies too, so that no death is
ever declared.

**Why this cannot happen.** Suspects live in the lease's record and are inherited; the lease ages as `role_lease`
says. What is lost with a record that cannot be read is suspects, which are observed again, and hints.
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
"""Problems that the lease's record names; it counts the rest, to stay small."""

MAX_SUSPECTS = 1000
"""Suspects that the lease's record names, the most silent; a successor begins anew with the others."""

MAX_POOLS = 1000
"""Pools that the lease's record describes, the largest."""


def is_outdated(holder: AgentRecord) -> bool:
    """Whether the holder is of a version that does not know gangs: while it runs the pass, nobody gathers them."""
    return holder.state == AgentState.LIVE and not holder.places


def inherited_suspects(record: ReconcilerRecord, age: float, old_holder: AgentRecord | None) -> dict[str, Suspect]:
    """The suspects a successor begins with.

    The lease's age is credited to the old holder only if its beat is still the one it noted in the lease: otherwise it
    lived on after its last pass, and how long it has been silent is not known. No more is credited than ends the
    holder's own trust: perhaps nobody could write meanwhile, and once somebody can, a live holder has the rest to beat.
    """
    suspects = dict(record.suspects)
    if old_holder is not None and old_holder.state == AgentState.LIVE and old_holder.beat == record.holder_beat:
        credit = Suspect(beat=old_holder.beat, age=min(age, TRUST_INTERVALS * old_holder.interval))
        suspects = merge_suspects({record.holder: credit}, suspects)
    return suspects


def renewed(record: ReconcilerRecord, holder: str, holder_beat: int) -> ReconcilerRecord:
    """The record as its holder leaves it whenever it has come further."""
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
    """The holder's write after each pass: the renewal, and as much of its knowledge as stays small."""
    most_silent = nlargest(MAX_SUSPECTS, suspects.items(), key=lambda item: item[1].age)
    largest = nlargest(MAX_POOLS, pools.items(), key=lambda item: item[1].agents)
    return replace(
        renewed(record, holder, holder_beat),
        suspects=dict(most_silent),
        pools=dict(largest),
        problems=problems_told(problems),
        problems_omitted=max(len(problems) - MAX_PROBLEMS, 0),
        repaired_at=repaired_at,
    )


def problems_told(problems: Mapping[str, str]) -> dict[str, str]:
    """As many problems as are named: one of each folder, then a second of each, so that no folder hides another's."""
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
    """The write of a run without the lease (`fray coordinate --once`): its suspects, from which later runs go on."""
    merged = merge_suspects(suspects, record.suspects)
    return replace(record, suspects={name: s for name, s in merged.items() if name in alive})
