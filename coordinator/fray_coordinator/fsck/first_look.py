"""What `fray doctor` says of a cluster that is there: records that all need, and what its last pass left undone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from fray_coordinator.clock import SystemClock, system_chance
from fray_coordinator.errors import LOOK_AT_IT, BadRecord, StoreRefused
from fray_coordinator.fsck.areas import MEANING
from fray_coordinator.records import Records, record_of
from fray_coordinator.store.open import open_store
from fray_coordinator.store.probe import Finding
from fray_layouts.names import CLUSTER, Coordinator, Secrets
from fray_layouts.records import PassRecord, Record, RpcKeys, Settings

NEEDED: tuple[tuple[str, type[Record]], ...] = (
    (CLUSTER, Settings),
    (Secrets.rpc, RpcKeys),
    (Coordinator.lease, PassRecord),
)
"""Records of the whole cluster. The last one is replaced by itself, so that it is only a warning."""


async def look_at_cluster(root: str) -> list[Finding]:
    """One finding for each record of the whole cluster that cannot be read, and for each object that the pass skipped.

    Raises:
        StoreRefused, StoreUnavailable: the root cannot be read; `probe` says why.
    """
    clock, chance = SystemClock(), system_chance()
    store = await open_store(root, clock, chance)
    try:
        return [finding async for finding in _findings(Records(store, clock, chance))]
    finally:
        await store.close()


async def _findings(records: Records) -> AsyncIterator[Finding]:
    for key, kind in NEEDED:
        try:
            found = record_of(await records.read(key, kind))
        except BadRecord as error:
            means, remedy = MEANING[kind]
            yield Finding(
                "warning" if kind is PassRecord else "error", f"{means} ({str(error).removesuffix(LOOK_AT_IT)})", remedy
            )
        except StoreRefused as error:
            yield Finding(
                "warning", f"{key} cannot be read: {error}", "ask whoever gives out the rights, if it is needed"
            )
        else:
            for what in _left_undone(found) if isinstance(found, PassRecord) else ():
                yield Finding("warning", what, "see `fray fsck`")


def _left_undone(last: PassRecord) -> Iterator[str]:
    for key, problem in last.problems.items():
        yield f"the coordinator's last pass left {key} alone: {problem.removesuffix(LOOK_AT_IT)}"
    if last.problems_untold:
        yield f"the coordinator's last pass left {last.problems_untold} more objects alone"
