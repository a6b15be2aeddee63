"""Who is called silent, where the storage gives wrong times now and then."""

from __future__ import annotations

from fray_coordinator.jobs.lookup import is_silent, read_agents
from fray_coordinator.store.interface import ABSENT, Object
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import AgentRecord
from tests.support.virtual import Cluster, StoreConnection


async def test_an_agent_is_not_called_silent_for_one_wrong_time(cluster: Cluster) -> None:
    core, connection = await cluster.core(), cluster.connections[-1]
    await core.records.put(AgentKeys.key("a"), AgentRecord(id="a", host="h", pool="default"), ABSENT)
    _spoil_times(connection, wrong=1)
    (agent,) = await read_agents(core, {})
    assert not is_silent(agent, core.now())


async def test_an_agent_that_beats_no_more_is_called_silent(cluster: Cluster) -> None:
    core, connection = await cluster.core(), cluster.connections[-1]
    await core.records.put(AgentKeys.key("a"), AgentRecord(id="a", host="h", pool="default"), ABSENT)
    _spoil_times(connection, wrong=10)
    (agent,) = await read_agents(core, {})
    assert is_silent(agent, core.now())


def _spoil_times(connection: StoreConnection, wrong: int) -> None:
    """Make the next reads say that the object was written an hour before."""
    real, left = connection.get, [3600.0] * wrong

    async def get(key: str) -> Object | None:
        found = await real(key)
        return found and Object(found.data, found.version, found.updated - (left.pop() if left else 0.0))

    connection.get = get  # type: ignore[method-assign]
