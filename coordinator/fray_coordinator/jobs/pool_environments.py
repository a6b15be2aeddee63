"""The environments that agents of a pool prepare in advance, which the pool's record lists."""

from collections.abc import Iterable

from fray_coordinator.concurrency import map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.protocol.pool_environments import blobs_named, name_environment, without_environments
from fray_coordinator.store.records import record_of
from fray_layouts.object_keys import PoolKeys
from fray_layouts.records import AgentPoolRecord
from fray_layouts.spec import EnvironmentSpec
from fray_layouts.spec_checks import check_name


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
