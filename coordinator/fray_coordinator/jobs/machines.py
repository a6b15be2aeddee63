"""Reads and changes the records of machines, of pools and of the scaler."""

from collections.abc import Callable

from fray_coordinator.concurrency import map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.machine_keys import MachineKeys
from fray_layouts.object_keys import CoordinatorKeys, PoolKeys
from fray_layouts.records import AgentPoolRecord, MachineRecord, ScalerRecord
from fray_layouts.spec_checks import check_name


async def read_pools(core: Core, problems: dict[str, str]) -> dict[str, AgentPoolRecord]:
    """The records of all pools that have settings, by name; those that cannot be read are noted in `problems`."""

    async def read(pool: str) -> tuple[str, AgentPoolRecord | None]:
        return pool, record_of(await core.records.read(PoolKeys.record(pool), AgentPoolRecord, one_of_many=True))

    names = [name for row in await core.store.list(PoolKeys.area) if (name := PoolKeys.parse_record(row.key))]
    found = await map_noting_problems(names, read, problems, PoolKeys.record)
    return {pool: record for pool, record in found if record is not None}


async def read_machines(core: Core, problems: dict[str, str], pool: str = "") -> list[Stored[MachineRecord]]:
    """The records of all machines, or of one pool's, by name; those that cannot be read are noted in `problems`."""
    prefix = MachineKeys.folder(pool) if pool else MachineKeys.area
    keys = sorted(row.key for row in await core.store.list(prefix) if MachineKeys.parse(row.key) is not None)
    found = await map_noting_problems(
        keys, lambda key: core.records.read(key, MachineRecord, one_of_many=True), problems
    )
    return [machine for machine in found if machine is not None]


async def read_scaler(core: Core) -> ScalerRecord | None:
    """The scaler's record, as its last run wrote it; None if there was no run."""
    return record_of(await core.records.read(CoordinatorKeys.scaler, ScalerRecord))


async def change_pool(core: Core, pool: str, decide: Callable[[AgentPoolRecord], AgentPoolRecord | None]) -> None:
    """Write the change that `decide` makes to the pool's record, or to a new one if it has none; None writes nothing.

    Raises InvalidInput: the name cannot be a pool's.
    """
    check_name("pool", pool)
    key = PoolKeys.record(pool)
    await core.records.update(key, AgentPoolRecord, lambda record: decide(record or AgentPoolRecord()))
