"""What an agent learns from its pool's doorbell: new jobs, or only a new plan of placements."""

from __future__ import annotations

from fray_agents.agent.pool_notices import PoolBell
from fray_coordinator.core import Core
from fray_coordinator.jobs import notifications
from fray_coordinator.store.interface import ANY
from fray_layouts.object_keys import CLUSTER_KEY, PoolKeys
from fray_layouts.records import Doorbell, Resources
from tests.support.members import trusted_member
from tests.support.virtual import Cluster

BELL = PoolKeys.doorbell("default")


class BellListener:
    """An agent's bell, and how often it rang."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.rings = 0
        self.bell = PoolBell(trusted_member(core, Resources(cpu=1000)), self._rang)

    def _rang(self) -> None:
        self.rings += 1

    async def polled(self) -> tuple[int, bool]:
        """Poll the bell: how often it has rung, and whether the index is to be listed; then counts it as listed."""
        await self.bell.poll()
        for_jobs, self.bell.rang_for_jobs = self.bell.rang_for_jobs, False
        return self.rings, for_jobs

    async def version(self) -> str:
        found = await self.core.store.get(BELL)
        assert found is not None
        return found.version

    async def ring_for_plan(self, replaces: str) -> None:
        await self.core.records.put(BELL, Doorbell(rung_at=1.0, replaces=replaces), ANY)


async def test_a_ring_for_a_plan_that_came_after_the_last_ring_lists_nothing(cluster: Cluster) -> None:
    listener = BellListener(await cluster.core())
    assert await listener.polled() == (0, False)
    await notifications.ring(listener.core, "default")
    assert await listener.polled() == (1, True)
    await listener.ring_for_plan(await listener.version())
    assert await listener.polled() == (2, False)
    await listener.ring_for_plan(await listener.version())
    assert await listener.polled() == (3, False)
    assert await listener.polled() == (3, False)


async def test_a_ring_for_a_job_before_that_for_the_plan_is_heard_too(cluster: Cluster) -> None:
    listener = BellListener(await cluster.core())
    await notifications.ring(listener.core, "default")
    await listener.polled()
    await notifications.ring(listener.core, "default")
    await listener.ring_for_plan(await listener.version())
    assert await listener.polled() == (2, True)


async def test_a_ring_for_a_plan_hides_no_ring_that_was_not_answered_yet(cluster: Cluster) -> None:
    listener = BellListener(await cluster.core())
    await notifications.ring(listener.core, "default")
    await listener.bell.poll()
    await listener.ring_for_plan(await listener.version())
    assert await listener.polled() == (2, True)


async def test_an_odd_bell_is_a_ring(cluster: Cluster) -> None:
    listener = BellListener(await cluster.core())
    await notifications.ring(listener.core, "default")
    await listener.polled()
    await listener.core.store.put(BELL, b"no bell", ANY)
    assert await listener.polled() == (2, True)


async def test_a_bell_of_this_cluster_costs_no_further_read_and_any_other_makes_the_root_be_confirmed(
    cluster: Cluster,
) -> None:
    listener, connection = BellListener(await cluster.core()), cluster.connections[-1]
    for bell, reads in (
        (notifications.new_bell(listener.core), 0),
        (Doorbell(rung_at=1.0, cluster="another"), 1),
        (Doorbell(rung_at=2.0), 2),
    ):
        await listener.core.records.put(BELL, bell, ANY)
        await listener.polled()
        await listener.core.store.list("pending/")
        assert connection.asked.count(("get_if_changed", "cluster.json")) == reads


async def test_a_doorbell_that_was_removed_costs_no_more_than_one_that_never_was(cluster: Cluster) -> None:
    """A root is confirmed when an object is gone, and once is enough."""
    listener = BellListener(await cluster.core())
    await notifications.ring(listener.core, "default")
    await listener.polled()
    await listener.core.store.delete(BELL)
    for _ in range(5):
        await listener.polled()
    assert cluster.connections[-1].asked.count(("get_if_changed", CLUSTER_KEY)) == 1
    await notifications.ring(listener.core, "default")
    assert await listener.polled() == (2, True)
