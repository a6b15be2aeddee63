"""What `fray doctor` says of a cluster that is there already: what its coordinator's pass could not do."""

from __future__ import annotations

from collections.abc import Iterator

from fray_coordinator.clock import SystemClock, system_chance
from fray_coordinator.errors import LOOK_AT_IT, BadRecord
from fray_coordinator.fsck.areas import MEANING
from fray_coordinator.records import Records
from fray_coordinator.store.open import open_store
from fray_coordinator.store.probe import Finding
from fray_layouts.names import Coordinator
from fray_layouts.records import PassRecord


async def look_at_pass(root: str) -> list[Finding]:
    """A warning if the pass's record cannot be read, and one for each object that the last pass could not deal with.

    Raises:
        StoreRefused, StoreUnavailable: the root cannot be read; `probe` says why.
    """
    clock, chance = SystemClock(), system_chance()
    store = await open_store(root, clock, chance)
    try:
        lease = await Records(store, clock, chance).read(Coordinator.lease, PassRecord)
    except BadRecord as error:
        means, remedy = MEANING[PassRecord]
        return [Finding("warning", f"{means} ({str(error).removesuffix(LOOK_AT_IT)})", remedy)]
    finally:
        await store.close()
    return [Finding("warning", what, "see `fray fsck`") for what in _left_undone(lease.record)] if lease else []


def _left_undone(last: PassRecord) -> Iterator[str]:
    for key, problem in last.problems.items():
        yield f"the coordinator's last pass left {key} alone: {problem.removesuffix(LOOK_AT_IT)}"
    if last.problems_untold:
        yield f"the coordinator's last pass left {last.problems_untold} more objects alone"
