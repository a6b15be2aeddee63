"""fsck and doctor report the odd objects that the pass met, and none of these ends one of their checks."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

from fray_coordinator import fsck
from fray_coordinator.core import Core
from fray_coordinator.errors import StoreUnavailable
from fray_coordinator.fsck import checker
from fray_coordinator.fsck.report import AREAS
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.store.interface import ANY
from fray_layouts.object_keys import AgentKeys, CoordinatorKeys, JobKeys, MachineKeys
from fray_layouts.records import (
    AgentRecord,
    MachineRecord,
    ScalerRecord,
)
from tests.support.scripted_agents import join, launch, passes
from tests.support.virtual import Cluster


async def troubles(core: Core) -> dict[str, str]:
    found: dict[str, str] = {}
    for problem in await fsck.check(core):
        found[problem.key] = found.get(problem.key, "") + problem.what
    return found


async def test_an_object_that_the_pass_left_alone_is_reported_though_it_looks_sound(cluster: Cluster) -> None:
    user, holder = await cluster.core(), await join(cluster, "p")
    beating = asyncio.create_task(holder.beat_for_ever())
    job = await launch(user)
    coordinator = Reconciler(user, "p")
    await passes(coordinator, 200.0)
    assert await troubles(user) == {}
    await user.store.delete(entry_of(job).key())
    with mock.patch("fray_coordinator.jobs.pending_index.create_entry", side_effect=MemoryError):
        await passes(coordinator, 80.0)
    assert "MemoryError" in (await troubles(user))[JobKeys.key(job.id)]
    beating.cancel()


async def test_a_check_that_an_object_ends_keeps_the_others_from_nothing(cluster: Cluster) -> None:
    def fails(seen: Any) -> Any:
        raise RecursionError("too deep")
        yield

    user = await cluster.core()
    await user.store.put("jobs/odd.json", b"[]", ANY)
    with mock.patch.object(checker, "CHECKS", ((fails, ()), *checker.CHECKS)):
        told = await troubles(user)
    assert "RecursionError: too deep" in told["/"]
    assert "jobs/odd.json" in told


async def test_an_agent_in_an_unknown_state_is_told_of_once_it_is_silent(cluster: Cluster) -> None:
    user = await cluster.core()
    await join(cluster, "newer")
    key = AgentKeys.key("newer")
    await user.records.update(key, AgentRecord, lambda now: replace(now, state="draining") if now else None)
    assert await troubles(user) == {}
    await cluster.clock.sleep(4000.0)
    assert "'draining'" in (await troubles(user))[key]


@pytest.mark.parametrize("kind", ["refused", "unanswered", "spoilt"])
@pytest.mark.parametrize("area", [area.prefix for area in AREAS])
async def test_an_area_that_cannot_be_listed_is_told_and_the_others_are_looked_at(
    cluster: Cluster, area: str, kind: str
) -> None:
    """Findings that need this area are not reported: the only damage here is one odd object in each area."""

    user = await cluster.core()
    job = await launch(user, pool="p")
    await user.store.put(f"work/{job.id}/1/0/log-00000001", b"hello", ANY)
    for other in AREAS:
        await user.store.put(f"{other.prefix}odd name", b"", ANY)
    getattr(cluster.connections[0], kind).append(("list", area))
    told = await troubles(user)
    assert "cannot be listed" in told.pop(area)
    assert set(told) == {f"{other.prefix}odd name" for other in AREAS if other.prefix != area}
    before = cluster.keys()
    await fsck.repair(user)
    assert cluster.keys() == before, "nothing is removed for want of what is not known"


async def test_very_many_troubles_are_counted_and_not_all_told(cluster: Cluster) -> None:
    user = await cluster.core()
    for number in range(checker.MAX_PROBLEMS_NAMED + 234):
        await user.store.put(f"jobs/odd {number}", b"", ANY)
    found = await fsck.check(user)
    assert len(found) == checker.MAX_PROBLEMS_NAMED + 1
    assert found[-1].what == "there are 234 more problems"


async def test_an_outage_is_no_trouble_of_an_area(cluster: Cluster) -> None:
    user = await cluster.core()
    cluster.cut()
    with pytest.raises(StoreUnavailable):
        await fsck.check(user)


async def test_machines_and_their_output_belong_there(cluster: Cluster) -> None:
    user = await cluster.core()
    name = MachineKeys.fresh(user.now(), "0123456789")
    await user.records.put(MachineKeys.key("p", name), MachineRecord(pool="p", name=name), ANY)
    await user.records.put(CoordinatorKeys.scaler, ScalerRecord(), ANY)
    await user.store.put(MachineKeys.boot_log("p", name, 3), b"no disk", ANY)
    assert await troubles(user) == {}
    await user.store.put(MachineKeys.key("p", name), b"{", ANY)
    assert "makes and removes no machines" in (await troubles(user))[MachineKeys.key("p", name)]


async def test_an_object_whose_remedy_changes_between_the_snapshots_is_named_all_the_same(cluster: Cluster) -> None:
    """It may be set aside, until an agent comes whose record cannot be read and might list the job."""
    core = await cluster.core()
    job = await launch(core)
    await core.store.put(JobKeys.key(job.id), b"{", ANY)
    connection = cluster.connections[-1]

    async def first() -> None:
        connection.before["list", AgentKeys.area] = second

    async def second() -> None:
        await core.store.put(AgentKeys.key("odd"), b"{", ANY)

    connection.before["list", AgentKeys.area] = first
    named = await troubles(core)
    assert cluster.keys(AgentKeys.area) == [AgentKeys.key("odd")]
    assert JobKeys.key(job.id) in named
