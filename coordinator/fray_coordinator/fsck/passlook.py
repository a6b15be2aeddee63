"""What `fray doctor` says of a cluster that is there already: whether its coordinator's pass can run."""

from __future__ import annotations

from fray_coordinator.clock import SystemClock, system_chance
from fray_coordinator.errors import LOOK_AT_IT, BadRecord
from fray_coordinator.fsck.areas import MEANING
from fray_coordinator.records import Records
from fray_coordinator.store.open import open_store
from fray_coordinator.store.probe import Finding
from fray_layouts.names import Coordinator
from fray_layouts.records import PassRecord


async def look_at_pass(root: str) -> list[Finding]:
    """An error if the pass cannot run, and a warning for each object that the last one skipped.

    Raises:
        StoreRefused, StoreUnavailable: the root cannot be read; `probe` says why.
    """
    clock, chance = SystemClock(), system_chance()
    store = await open_store(root, clock, chance)
    try:
        lease = await Records(store, clock, chance).read(Coordinator.lease, PassRecord)
    except BadRecord as error:
        means, remedy = MEANING[PassRecord]
        return [Finding("error", f"{means} ({str(error).removesuffix(LOOK_AT_IT)})", remedy)]
    finally:
        await store.close()
    skipped = [problem.removesuffix(LOOK_AT_IT) for problem in lease.record.problems.values()] if lease else []
    return [Finding("warning", f"the coordinator's last pass skipped {one}", "see `fray fsck`") for one in skipped]
