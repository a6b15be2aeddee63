"""The repair of the index of owners: it adds missing entries of gangs, and removes entries that nobody needs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fray_coordinator.core import Core
from fray_coordinator.jobs import notifications, stopping
from fray_coordinator.jobs.submission import retry
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.store.interface import ABSENT
from fray_layouts.index_keys import PlacementKey
from fray_layouts.object_keys import JobKeys
from fray_layouts.records import JobRecord
from tests.support.scripted_agents import job_now, launch, passes
from tests.support.virtual import Cluster

QUARANTINE, REPAIR = 10.0, 60.0


async def entry(core: Core, job: str) -> str:
    found = [row.key for row in await core.store.list(PlacementKey.prefix("default")) if job in row.key]
    return found[0] if found else ""


@pytest.mark.parametrize("status", ["gathering", "running"])
async def test_a_gang_without_an_entry_gets_one_and_the_bell_is_rung(cluster: Cluster, core: Core, status: str) -> None:
    job = await launch(core, replicas=2)
    before = await entry(core, job.id)
    await core.records.change(JobKeys.key(job.id), JobRecord, lambda now: replace(now, status=status))
    await core.store.delete(before)
    bell = await core.store.get(PlacementKey.bell)
    await Reconciler(await cluster.core(), "p").run_once()
    after = await core.store.get(PlacementKey.bell)
    assert await entry(core, job.id) == before
    assert bell is not None
    assert after is not None
    assert after.version != bell.version


async def test_entries_of_ended_or_missing_owners_go_and_those_of_running_gangs_stay(
    cluster: Cluster, core: Core
) -> None:
    ended, runs, single = [await launch(core, replicas=2) for _ in range(2)] + [await launch(core)]
    await stopping.stop(core, ended.id, "enough")
    await notifications.enter(core, ended)
    await core.records.change(JobKeys.key(runs.id), JobRecord, lambda now: replace(now, status="running"))
    kinds = [("gone", "gang"), (single.id, "gang"), ("gone", "reservation")]
    odd = [PlacementKey("default", 0, core.now(), owner, kind).key() for owner, kind in kinds]
    elsewhere = PlacementKey("other", 0, runs.submitted_at, runs.id, "gang").key()
    for key in [*odd, elsewhere]:
        await core.store.put(key, b"{}", ABSENT)
    stays = await entry(core, runs.id)
    await Reconciler(await cluster.core(), "p").run_once()
    young = {odd[0], odd[2]}
    assert set(cluster.keys("placements/")) == {stays, *young, PlacementKey.bell}, "its submitter may still be at work"
    await cluster.clock.sleep(QUARANTINE + 1)
    await Reconciler(await cluster.core(), "p").run_once()
    assert set(cluster.keys("placements/")) == {stays, odd[2], PlacementKey.bell}
    await cluster.clock.sleep(3600.0)
    await Reconciler(await cluster.core(), "p").run_once()
    assert set(cluster.keys("placements/")) == {stays, PlacementKey.bell}


async def test_a_gang_that_waits_too_long_is_stopped_also_where_no_pass_gathers(cluster: Cluster, core: Core) -> None:
    job = await launch(core, replicas=2, pending_timeout=20.0)
    await passes(Reconciler(await cluster.core(), "p"), 30.0 + REPAIR)
    assert (await job_now(core, job.id)).status == "stopped"
    assert await entry(core, job.id) == ""


async def test_a_gang_that_was_dropped_into_the_inbox_gathers(cluster: Cluster, core: Core) -> None:
    spec = b'{"name": "gang", "entrypoint": {"command": ["true"]}, "replicas": 2}'
    await core.store.put("inbox/gang.json", spec, ABSENT)
    await passes(Reconciler(await cluster.core(), "p"), 30.0)
    jobs = [JobKeys.parse(key) for key in cluster.keys("jobs/")]
    assert len(jobs) == 1
    job = await job_now(core, jobs[0] or "")
    assert (job.status, cluster.keys("pending/")) == ("gathering", [])
    assert await entry(core, job.id) != ""


async def test_a_gang_that_has_ended_is_submitted_once_more_as_one(cluster: Cluster, core: Core) -> None:
    job = await launch(core, replicas=2)
    await stopping.stop(core, job.id, "enough")
    again = (await retry(core, [await job_now(core, job.id)]))[0]
    assert (again.status, again.placement) == ("gathering", None)
    assert await entry(core, again.id) != ""
