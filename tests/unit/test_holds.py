"""Which jobs an agent claims while it keeps room for a gang: those that come first, and those that end in time."""

from __future__ import annotations

import asyncio
from typing import Any

from fray_agents.agent.claimer import Claimer
from fray_agents.agent.held import HeldBundle, HeldPlacement
from fray_agents.agent.membership import Membership
from fray_coordinator.core import Core
from fray_coordinator.protocol.placements.owners import owner_of_job
from fray_coordinator.store.records import Stored
from fray_layouts.records import JobRecord, Placement, Resources
from fray_layouts.spec import EntrypointSpec, JobSpec, ResourceSpec
from fray_layouts.states import HoldingPhase
from tests.support.members import trusted_member
from tests.support.scripted_agents import launch
from tests.support.virtual import Cluster

HOST = Resources(cpu=4000, memory=2**40, disk=2**40)


def keeping(core: Core, cpu: float, until: float | None = None, priority: int = 0) -> Membership:
    """An agent of four cores that keeps room for two bundles of a gang."""
    member = trusted_member(core, HOST)
    spec = JobSpec(
        name="g",
        entrypoint=EntrypointSpec(command=["x"]),
        replicas=8,
        resources=ResourceSpec(cpu=cpu / 2),
        priority=priority,
    )
    placement = Placement(round=1, until=until)
    job = JobRecord(id="g", spec=spec, status="gathering", submitted_at=core.now(), placement=placement)
    owner = owner_of_job(job)
    bundles = tuple(HeldBundle(number=number, wants=owner.parts[0].shape) for number in range(2))
    member.leases.add_placement(HeldPlacement(owner, Stored(owner.key, job, {}, "1", 0.0), bundles))
    return member


async def claimed_by(member: Membership, seconds: float = 300.0) -> set[str]:
    """The names of the jobs that the agent claims within this time."""

    async def take(held: Any) -> None:
        return

    task = asyncio.create_task(Claimer(member, take, lambda: None, print).run())
    await asyncio.sleep(seconds)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return {lease.job.record.spec.name for lease in member.leases.held.values() if lease.job is not None}


async def test_later_jobs_have_only_the_room_that_is_not_kept(cluster: Cluster) -> None:
    core = await cluster.core()
    member = keeping(core, cpu=3)
    await asyncio.sleep(1)
    for name in ("a", "b"):
        await launch(core, name=name)
    assert len(await claimed_by(member)) == 1
    assert member.leases.unreserved().cpu == 0


async def test_jobs_that_come_before_the_owner_go_first(cluster: Cluster) -> None:
    core = await cluster.core()
    earlier = await launch(core, name="earlier")
    await asyncio.sleep(1)
    member = keeping(core, cpu=4)
    await asyncio.sleep(1)
    await launch(core, name="later")
    await launch(core, name="urgent", priority=5)
    assert await claimed_by(member) == {earlier.spec.name, "urgent"}


async def test_an_agent_that_has_voted_lets_no_urgent_job_go_first(cluster: Cluster) -> None:
    core = await cluster.core()
    member = keeping(core, cpu=4)
    (placement,) = member.leases.placements.values()
    assert member.leases.reserve(placement.bundles, member.host_kind)
    placement.phase = HoldingPhase.RESERVED
    await launch(core, name="urgent", priority=5)
    assert await claimed_by(member) == set()


async def test_a_later_job_that_ends_in_time_may_use_the_room(cluster: Cluster) -> None:
    core = await cluster.core()
    member = keeping(core, cpu=4, until=core.now() + 100)
    await asyncio.sleep(1)
    await launch(core, name="short", timeout=40.0, grace=5.0)
    await launch(core, name="long", timeout=200.0)
    await launch(core, name="endless")
    assert await claimed_by(member, 50.0) == {"short"}


async def test_its_grace_counts_too(cluster: Cluster) -> None:
    core = await cluster.core()
    member = keeping(core, cpu=4, until=core.now() + 50)
    await asyncio.sleep(1)
    await launch(core, name="short", timeout=40.0, grace=60.0)
    assert await claimed_by(member, 30.0) == set()


async def test_nobody_uses_room_whose_owner_does_not_know_when_it_starts(cluster: Cluster) -> None:
    core = await cluster.core()
    member = keeping(core, cpu=4)
    await asyncio.sleep(1)
    await launch(core, name="short", timeout=1.0)
    assert await claimed_by(member) == set()


async def test_when_the_owner_moves_on_the_room_is_everybodys(cluster: Cluster) -> None:
    core = await cluster.core()
    member = keeping(core, cpu=4, until=core.now() + 100)
    await asyncio.sleep(1)
    await launch(core, name="endless")
    assert await claimed_by(member, 30.0) == set()
    (placement,) = member.leases.placements.values()
    member.leases.release(placement)
    assert await claimed_by(member) == {"endless"}


async def test_an_entry_among_many_is_found_where_only_it_may_go(cluster: Cluster) -> None:
    core = await cluster.core()
    member = keeping(core, cpu=4, until=core.now() + 1000)
    await asyncio.sleep(1)
    for number in range(60):
        await launch(core, name=f"endless-{number}")
    await launch(core, name="short", timeout=40.0)
    assert await claimed_by(member, 600.0) == {"short"}


async def test_a_job_runs_only_where_it_must_be(cluster: Cluster) -> None:
    core = await cluster.core()
    member = trusted_member(core, HOST)
    member.record.zone, member.record.region, member.record.labels = "z-a", "z", {"disk": "ssd", "rack": "1"}
    await launch(core, name="here", resources={"zone": "z-a", "regions": ["y", "z"], "labels": {"disk": "ssd"}})
    await launch(core, name="zone", resources={"zone": "z-b"})
    await launch(core, name="region", resources={"regions": ["y"]})
    await launch(core, name="label", resources={"labels": {"disk": "hdd"}})
    assert await claimed_by(member) == {"here"}
