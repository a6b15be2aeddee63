"""Reservations and groups from end to end, in virtual time: agents hold bundles, and run jobs in them."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fray_agents.agent import private_pools
from fray_agents.agent.index_search import PAGES_PER_POLL
from fray_coordinator.placements import launching, reservations
from fray_coordinator.placements.launching import GroupWish
from fray_layouts.object_keys import ReservationKeys
from fray_layouts.records import JobRecord, ReservationRecord, ReservedPart
from fray_layouts.spec import GangSpec, ResourceSpec
from tests.support.reservation_fleet import BOUND, Fleet, fleet
from tests.support.scripted_agents import job_now
from tests.support.virtual import Cluster


async def test_a_job_runs_in_its_namespace_s_reservation_once_that_is_held(cluster: Cluster, tmp_path: Path) -> None:
    async with fleet(cluster, tmp_path, "a", "b") as team:
        held = await team.reserve(4)
        job = await team.submit()
        assert job.spec.pool == f"~{held.id}"
        await team.runs(job)
        await team.is_held(held.id)
        await team.has_bundles(held.id, 4)
        await team.until(lambda: team.has_status(job, "succeeded"))
        other = await team.submit("long", namespace="others")
        await asyncio.sleep(BOUND)
        assert (await job_now(team.core, other.id)).status == "pending", "all room is reserved"
        await reservations.release(team.core, held.id, "released")
        await team.runs(other)


async def test_jobs_take_no_more_than_the_bundles_and_wait_in_the_reservation(cluster: Cluster, tmp_path: Path) -> None:
    async with fleet(cluster, tmp_path, "a", "b") as team:
        held = await team.reserve(2)
        first, second, third = [await team.submit("long") for _ in range(3)]
        await team.runs(first, second)
        await asyncio.sleep(BOUND)
        assert (await job_now(team.core, third.id)).status == "pending", "though the hosts have room outside of it"
        await reservations.release(team.core, held.id, "released")
        for job in (first, second, third):
            await team.until(partial(team.has_status, job, "stopped"))
        await team.until(team.nothing_held)


async def half_full(team: Fleet) -> JobRecord:
    """A reservation of a bundle of two cores, in which a job uses one; returns the job."""
    await team.is_held((await team.reserve(1, cpu=2.0)).id)
    job = await team.submit("long")
    await team.runs(job)
    return job


async def test_a_job_is_found_behind_more_unfit_jobs_than_one_listing_returns(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_pools, "ROWS_PER_REQUEST", 3)
    async with fleet(cluster, tmp_path, "a", "b") as team:
        await half_full(team)
        too_large = [await team.submit("long", resources={"cpu": 2}) for _ in range(7)]
        fitting = await team.submit("long")
        assert {job.spec.pool for job in too_large} == {fitting.spec.pool}
        await team.runs(fitting)
        assert not any([await team.has_status(job, "running") for job in too_large])


async def test_a_job_behind_many_unfit_ones_is_found_while_more_are_submitted_at_each_poll(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_pools, "ROWS_PER_REQUEST", 3)
    async with fleet(cluster, tmp_path, "a", "b") as team:
        await half_full(team)
        for _ in range(4 * PAGES_PER_POLL):
            await team.submit("long", resources={"cpu": 2})
        fitting = await team.submit("long")
        submitted = 0
        while not await team.has_status(fitting, "running"):
            assert (submitted := submitted + 1) < 100, "the listing never comes to the job"
            await team.submit("long", resources={"cpu": 2})
            await asyncio.sleep(team.core.settings.poll_interval / 2)


async def test_jobs_that_come_before_a_long_listing_has_come_to_its_end_are_found_by_their_order(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_pools, "ROWS_PER_REQUEST", 1)
    async with fleet(cluster, tmp_path, "a") as team:
        await half_full(team)
        for number in range(60):
            await team.submit("long", resources={"cpu": 2}, priority=5 if number < 10 else 0)
        behind_first_page, urgent = await team.submit(priority=3), await team.submit(priority=9)
        await team.until(lambda: team.has_status(urgent, "running"), 5)
        await team.until(lambda: team.has_status(urgent, "succeeded"), 40)
        await team.until(lambda: team.has_status(behind_first_page, "running"), 10)


async def test_a_reservation_grows_to_its_maximum_and_returns_idle_bundles_to_an_earlier_owner(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with fleet(cluster, tmp_path, "a", "b") as team:
        held = await team.reserve(1, 4)
        await team.has_bundles(held.id, 4)
        urgent = ReservationRecord(
            id="urgent",
            kind="reservation",
            namespace="urgent",
            priority=10,
            submitted_at=team.core.now(),
            parts=[ReservedPart(gang=GangSpec(resources=ResourceSpec(cpu=1.0), count=3))],
            low=3,
        )
        await reservations.create(team.core, urgent)
        await team.is_held("urgent")
        await team.has_bundles("urgent", 3)
        await team.has_bundles(held.id, 1)
        await reservations.release(team.core, "urgent", "released")
        await team.has_bundles(held.id, 4)


async def test_a_bundle_that_is_another_s_by_now_is_kept_while_its_job_runs(cluster: Cluster, tmp_path: Path) -> None:
    """A pass that looked before the job was claimed gives its bundle to another agent."""
    async with fleet(cluster, tmp_path, "a") as team:
        held = await team.reserve(1, cpu=2.0)
        job = await team.submit(resources={"cpu": 2.0})
        await team.runs(job)
        known = await reservations.read(team.core, held.id)
        lost = replace(known.record.placement, round=known.record.placement.round + 1, members=[])
        await team.core.records.write(known.key, ReservationRecord, replace(known.record, placement=lost), known)
        single = await team.submit("long", namespace="others", resources={"cpu": 2.0})
        while not await team.has_status(job, "succeeded"):
            assert await team.bundles(held.id) == 1
            assert (await job_now(team.core, single.id)).status == "pending"
            await asyncio.sleep(1.0)


async def test_a_small_job_of_a_group_does_not_sit_in_the_bundle_of_a_large_one(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with fleet(cluster, tmp_path) as team:
        await team.join_small("small")
        slow = cluster.connections[-1]
        await team.join("large")
        claims = asyncio.Event()
        slow.before["put", "jobs/"] = claims.wait
        first = team.spec("long", priority=1)  # in the pool; not by whoever claims it
        small, large = await team.launch(first, team.spec("long", resources={"cpu": 2}))
        await team.runs(large)
        claims.set()
        await team.runs(small)


async def test_the_bundles_of_a_dead_host_move_to_another_and_its_job_runs_there(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with fleet(cluster, tmp_path, "a", "b") as team:
        held = await team.reserve(1)
        job = await team.submit("long")
        await team.runs(job)
        lease = (await job_now(team.core, job.id)).lease
        assert lease is not None
        await team.crash(team.name_of(lease.agent))

        async def moved() -> bool:
            now = await job_now(team.core, job.id)
            return now.status == "running" and now.attempt == 2

        await team.until(moved, 300.0)
        await team.has_bundles(held.id, 1)


async def test_an_agent_that_leaves_gives_its_bundles_up_and_its_job_goes_on_elsewhere(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with fleet(cluster, tmp_path, "a", "b") as team:
        await team.reserve(1)
        job = await team.submit("long")
        await team.runs(job)
        lease = (await job_now(team.core, job.id)).lease
        assert lease is not None
        await team.leave(team.name_of(lease.agent))

        async def moved() -> bool:
            now = await job_now(team.core, job.id)
            return now.status == "running" and now.attempt == 2

        await team.until(moved)


async def test_an_agent_that_may_take_no_work_loses_its_bundles_until_it_may_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with fleet(cluster, tmp_path, "a", "b") as team:
        held = await team.reserve(1)
        await team.is_held(held.id)
        await team.has_bundles(held.id, 1)
        (member,) = (await team.now(held.id)).placement.members
        broken = team.agents[team.name_of(member.agent)].member
        broken.problems.starts = "no task can be started"
        job = await team.submit("long")
        await team.runs(job)
        lease = (await job_now(team.core, job.id)).lease
        assert lease is not None
        assert lease.agent != member.agent
        (now,) = (await team.now(held.id)).placement.members
        assert now.agent == lease.agent
        broken.problems.starts = ""
        await team.crash(team.name_of(lease.agent))

        async def moved_back() -> bool:
            return [m.agent for m in (await team.now(held.id)).placement.members] == [member.agent]

        await team.until(moved_back, 300.0)
        await team.has_bundles(held.id, 1)


async def test_a_group_starts_all_at_once_or_waits_as_one(cluster: Cluster, tmp_path: Path) -> None:
    async with fleet(cluster, tmp_path, "a", "b") as team:
        await team.runs(single := await team.submit("long", resources={"cpu": 2}))
        jobs = await team.launch(team.spec("long"), team.spec("long"), team.spec("long", resources={"cpu": 2}))
        await asyncio.sleep(BOUND)
        assert [(await job_now(team.core, job.id)).status for job in jobs] == ["pending"] * 3
        await team.join("c")
        await team.runs(*jobs)
        assert (await job_now(team.core, single.id)).status == "running"


async def test_the_bundles_of_a_group_s_jobs_are_free_as_they_end_and_the_group_with_the_last(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with fleet(cluster, tmp_path, "a") as team:
        short, long = await team.launch(team.spec("job"), team.spec("long"))
        group = ReservationKeys.of_pool(short.spec.pool)
        await team.runs(short, long)
        await team.until(lambda: team.has_status(short, "succeeded"))
        other = await team.submit("job")
        await team.runs(other)
        await reservations.stopping.stop(team.core, long.id, "enough")

        async def over() -> bool:
            return (await team.now(group)).state == "ended"

        await team.until(over)
        assert [key for key in cluster.keys("placements/") if group in key] == []


def tpu(replicas: int, slices: int) -> dict[str, Any]:
    device = {"kind": "tpu", "variant": "v5litepod-16", "count": 4}
    return {"replicas": replicas, "slices": slices, "resources": {"cpu": 1, "device": device}}


async def test_a_group_of_a_slice_and_single_jobs_starts_as_one(cluster: Cluster, tmp_path: Path) -> None:
    async with fleet(cluster, tmp_path, "a") as team:
        jobs = await team.launch(team.spec("long", **tpu(2, 1)), team.spec("long"))
        await team.join_slice("s", "s0")
        await asyncio.sleep(BOUND)
        assert [(await job_now(team.core, job.id)).status for job in jobs] == ["gathering", "pending"]
        await team.join_slice("s", "s1", 1)
        await team.runs(*jobs)
        gang = await job_now(team.core, jobs[0].id)
        assert gang.placement is not None
        assert [team.name_of(member.agent) for member in gang.placement.members] == ["s0", "s1"]
        await reservations.stopping.stop(team.core, jobs[0].id, "enough")
        await reservations.stopping.stop(team.core, jobs[1].id, "enough")
        await team.until(team.nothing_held)


async def test_a_reservation_grows_by_whole_slices_and_gangs_run_in_them(cluster: Cluster, tmp_path: Path) -> None:
    async with fleet(cluster, tmp_path) as team:
        await team.join_slice("s", "s0")
        await team.join_slice("s", "s1", 1)
        await team.join_slice("t", "t0")
        resources = team.spec(**tpu(2, 1)).resources
        parts = [ReservedPart(gang=GangSpec(resources=resources, count=2, slices=1)) for _ in range(2)]
        held = ReservationRecord(
            id="r", kind="reservation", namespace="team", submitted_at=team.core.now(), parts=parts, low=2
        )
        await reservations.create(team.core, held)
        first, second = await team.submit("long", **tpu(2, 1)), await team.submit("long", **tpu(2, 1))
        assert first.spec.pool == second.spec.pool == "~r"
        await team.runs(first)
        await asyncio.sleep(BOUND)
        assert await team.bundles("r") == 2, "half of a slice is of no use"
        assert (await job_now(team.core, second.id)).status == "gathering"
        await team.join_slice("t", "t1", 1)
        await team.runs(second)
        assert await team.bundles("r") == 4


async def test_a_slice_that_lost_a_host_is_given_up_and_its_gang_goes_to_another(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with fleet(cluster, tmp_path) as team:
        for name in ("s", "t"):
            await team.join_slice(name, f"{name}0")
            await team.join_slice(name, f"{name}1", 1)
        (job,) = await team.launch(team.spec("long", **tpu(2, 1)))
        await team.runs(job)
        placement = (await job_now(team.core, job.id)).placement
        assert placement is not None
        lost = team.name_of(placement.members[1].agent)
        await team.crash(lost)

        async def moved() -> bool:
            now = await job_now(team.core, job.id)
            on = {team.name_of(member.agent) for member in now.placement.members} if now.placement else set()
            return now.status == "running" and now.attempt == 2 and lost not in on

        await team.until(moved, 300.0)


async def test_a_reservation_inside_which_a_group_was_launched_holds_it(cluster: Cluster, tmp_path: Path) -> None:
    async with fleet(cluster, tmp_path, "a") as team:
        around = await team.reserve(2)
        specs = [team.spec("long"), team.spec("long")]
        wish = GroupWish("group", reservation=around.id)
        jobs = [one.job for one in await launching.launch(team.core, specs, wish)]
        await team.runs(*jobs)
        assert await team.bundles(around.id) == 2
        await reservations.release(team.core, around.id, "released")
        for job in jobs:
            await team.until(partial(team.has_status, job, "stopped"))
        await team.until(team.nothing_held)
