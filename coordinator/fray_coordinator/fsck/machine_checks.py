"""Machines that nobody looks after."""

from collections.abc import Iterator

from fray_coordinator.fsck.report import Problem, SuspectedProblem
from fray_coordinator.fsck.snapshot import Snapshot
from fray_layouts.object_keys import CoordinatorKeys, PoolKeys
from fray_layouts.records import AgentPoolRecord, MachineRecord, ScalerRecord
from fray_layouts.states import MachineState


def unattended(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Machines of pools that say nothing of machines, and of which no scaler knows what they said before."""
    for key, stored in seen.stored.items():
        machine = stored.record
        if not isinstance(machine, MachineRecord) or machine.state == MachineState.GONE:
            continue
        pool, scaler = PoolKeys.record(machine.pool), CoordinatorKeys.scaler
        if seen.is_doubtful(pool) or seen.is_doubtful(scaler) or not seen.is_settled(key, pool):
            continue
        if not _says(seen, pool) and not _remembers(seen, machine.pool):
            what = f"pool {machine.pool} says nothing of machines any more, so nobody removes this one, which is paid"
            remedy = "`fray pool set` the pool as it was, with --min 0 --max 0: a scaler then removes it"
            yield SuspectedProblem(Problem(key, what, remedy), seen.versions(pool, scaler))


def _says(seen: Snapshot, pool: str) -> bool:
    record = seen.stored[pool].record if pool in seen.stored else None
    return isinstance(record, AgentPoolRecord) and record.provisioning is not None


def _remembers(seen: Snapshot, pool: str) -> bool:
    stored = seen.stored.get(CoordinatorKeys.scaler)
    return stored is not None and isinstance(stored.record, ScalerRecord) and pool in stored.record.pools
