"""The records of pools, of their machines and of the scaler: who reads and changes them.

A pool's record also lists the environments that its agents prepare in advance.
"""

from collections.abc import Callable, Iterable

from fray_coordinator.concurrency import map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.protocol.environments import blobs_named, name_environment, without_environments
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.object_keys import CoordinatorKeys, MachineKeys, PoolKeys
from fray_layouts.records import AgentPoolRecord, MachineRecord, ScalerRecord
from fray_layouts.spec import EnvironmentSpec
from fray_layouts.spec_parsing import check_name


async def pool_environments(core: Core, pool: str) -> list[EnvironmentSpec]:
    """The environments of the pool. Raises InvalidInput: the name cannot be a pool's."""
    check_name("pool", pool)
    record = record_of(await core.records.read(PoolKeys.record(pool), AgentPoolRecord))
    return record.environments if record is not None else []


async def add_environment(core: Core, pool: str, environment: EnvironmentSpec) -> None:
    """Add one environment. Raises InvalidInput as `name_environment` does, or if the name cannot be a pool's."""
    check_name("pool", pool)
    await core.records.update(
        PoolKeys.record(pool), AgentPoolRecord, lambda record: name_environment(record, environment)
    )


async def clear_environments(core: Core, pool: str) -> None:
    """Remove all environments. Raises InvalidInput: the name cannot be a pool's."""
    check_name("pool", pool)
    await core.records.change(PoolKeys.record(pool), AgentPoolRecord, without_environments)


async def blobs_of_pools(core: Core, problems: dict[str, str]) -> set[str]:
    """Keys of the blobs that any pool needs; unreadable records, which may need more, are noted in `problems`."""

    async def read(key: str) -> Iterable[str]:
        record = record_of(await core.records.read(key, AgentPoolRecord))
        return blobs_named(record) if record is not None else ()

    keys = [row.key for row in await core.store.list(PoolKeys.area) if PoolKeys.parse_record(row.key) is not None]
    return {blob for blobs in await map_noting_problems(keys, read, problems) for blob in blobs}


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
