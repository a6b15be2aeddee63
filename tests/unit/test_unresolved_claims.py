"""Claims whose outcome was unknown at first."""

from __future__ import annotations

import pytest

from fray_coordinator.errors import StoreUnavailable
from fray_coordinator.jobs.claiming import Claimed, NotClaimed, try_claim
from fray_coordinator.store.interface import ANY, Applied, Expectation, PreconditionFailed, Unknown
from fray_layouts.index_keys import PendingKey
from fray_layouts.object_keys import JobKeys
from tests.support.scripted_agents import join, launch
from tests.support.virtual import Cluster, StoreConnection


class Late:
    """Holds back one write to a key; `land` sends it to the store after all."""

    def __init__(self, connection: StoreConnection, prefix: str) -> None:
        self._connection, self._prefix, self._put = connection, prefix, connection.put
        self._held: tuple[str, bytes, Expectation] | None = None
        connection.put = self.put  # type: ignore[method-assign]

    async def put(self, key: str, data: bytes, expect: Expectation) -> Applied:
        if key.startswith(self._prefix):
            self._held = self._held or (key, data, expect)
            raise Unknown("no answer")
        return await self._put(key, data, expect)

    async def land(self) -> None:
        assert self._held is not None
        await self._put(*self._held)

    def heal(self) -> None:
        self._connection.put = self._put  # type: ignore[method-assign]


async def test_a_claim_in_doubt_that_is_no_longer_wanted_cannot_land_any_more(cluster: Cluster) -> None:
    holder = await join(cluster, "holder")
    parent = await launch(holder.core)
    held = await holder.claim()
    child = await launch(holder.core, attempt_of_parent=1, name="child", id="one", parent=parent.id)
    (key,) = [key for key in cluster.keys("pending/") if child.id in key]
    entry = PendingKey.parse(key)
    assert entry is not None
    claimer = await join(cluster, "claimer")
    late = Late(cluster.connections[-1], f"jobs/{child.id}")
    with pytest.raises(StoreUnavailable):
        await try_claim(claimer.core, entry, "claimer", "host")
    late.heal()
    await holder.end(held, kind="preempted")  # now the child waits for its parent's next attempt
    answer = await try_claim(claimer.core, entry, "claimer", "host", in_doubt=True)
    assert isinstance(answer, NotClaimed)
    assert answer.until is not None
    with pytest.raises(PreconditionFailed):
        await late.land()


@pytest.mark.parametrize("parent_is", ["spoilt", "refused"])
async def test_a_claim_in_doubt_is_resolved_in_any_state_of_the_parents_record(
    cluster: Cluster, parent_is: str
) -> None:
    """A claim dropped in doubt could land late: the job would run under an agent that does not list it."""

    holder = await join(cluster, "holder")
    parent = await launch(holder.core)
    await holder.claim()
    child = await launch(holder.core, attempt_of_parent=1, name="child", parent=parent.id)
    (key,) = [key for key in cluster.keys("pending/") if child.id in key]
    entry = PendingKey.parse(key)
    assert entry is not None
    claimer = await join(cluster, "claimer")
    late = Late(cluster.connections[-1], f"jobs/{child.id}")
    with pytest.raises(StoreUnavailable):
        await try_claim(claimer.core, entry, "claimer", "host")
    late.heal()
    if parent_is == "spoilt":
        await holder.core.store.put(JobKeys.key(parent.id), b"no record", ANY)
    else:
        cluster.connections[-1].refused = [("get", JobKeys.key(parent.id))]
    answer = await try_claim(claimer.core, entry, "claimer", "host", in_doubt=True)
    assert isinstance(answer, NotClaimed)
    with pytest.raises(PreconditionFailed):
        await late.land()


async def test_a_claim_in_doubt_that_landed_is_found(cluster: Cluster) -> None:
    claimer = await join(cluster, "claimer")
    job = await launch(claimer.core)
    (key,) = cluster.keys("pending/")
    entry = PendingKey.parse(key)
    assert entry is not None
    late = Late(cluster.connections[-1], f"jobs/{job.id}")
    with pytest.raises(StoreUnavailable):
        await try_claim(claimer.core, entry, "claimer", "host")
    await late.land()
    late.heal()
    assert isinstance(await try_claim(claimer.core, entry, "claimer", "host", in_doubt=True), Claimed)
