"""The part of `fray doctor` for an existing cluster: its shared records, and the objects that its last pass skipped."""

from collections.abc import AsyncIterator, Iterator

from fray_coordinator.clock import SystemClock, system_random
from fray_coordinator.errors import REMOVE_HINT, BadRecord, StoreRefused
from fray_coordinator.fsck.areas import CONSEQUENCES
from fray_coordinator.protocol.cluster_identity import why_not_here
from fray_coordinator.store.opening import open_store
from fray_coordinator.store.probe import Finding
from fray_coordinator.store.records import Records, record_of
from fray_coordinator.store.store import Store
from fray_layouts.object_keys import CLUSTER_KEY, CoordinatorKeys, SecretKeys
from fray_layouts.records import ClusterSettings, ReconcilerRecord, Record, RpcSecrets

CLUSTER_RECORDS: tuple[tuple[str, type[Record]], ...] = (
    (CLUSTER_KEY, ClusterSettings),
    (SecretKeys.rpc, RpcSecrets),
    (CoordinatorKeys.reconciler, ReconcilerRecord),
)
"""Records of the whole cluster. Agents replace the last one by themselves, so it is only a warning."""


async def check_cluster(root: str) -> list[Finding]:
    """Return a finding for each unreadable record of the whole cluster, and for each object that the last pass skipped.

    Raises StoreRefused, StoreUnavailable: the root cannot be read; `probe` reports why.
    """
    clock, rng = SystemClock(), system_random()
    store = await open_store(root, clock, rng)
    try:
        return [finding async for finding in _findings(store, Records(store, clock, rng))]
    finally:
        await store.close()


async def _findings(store: Store, records: Records) -> AsyncIterator[Finding]:
    for key, kind in CLUSTER_RECORDS:
        try:
            found = record_of(await records.read(key, kind))
        except BadRecord as error:
            means, remedy = CONSEQUENCES[kind]
            yield Finding(
                "warning" if kind is ReconcilerRecord else "error",
                f"{means} ({str(error).removesuffix(REMOVE_HINT)})",
                remedy,
            )
        except StoreRefused as error:
            yield Finding(
                "warning",
                f"{key} cannot be read: {error}",
                "if the record is needed, ask the bucket's owner for the right",
            )
        else:
            if isinstance(found, ClusterSettings) and (why := why_not_here(found, store.address, store.root)):
                yield Finding("error", why, "")
            for what in _skipped_objects(found) if isinstance(found, ReconcilerRecord) else ():
                yield Finding("warning", what, "see `fray fsck`")


def _skipped_objects(last: ReconcilerRecord) -> Iterator[str]:
    for key, problem in last.problems.items():
        yield f"the reconciler's last pass skipped {key}: {problem.removesuffix(REMOVE_HINT)}"
    if last.problems_omitted:
        yield f"the reconciler's last pass skipped {last.problems_omitted} more objects"
