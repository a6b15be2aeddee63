"""fsck reports and repairs damage to objects that are derived from the records."""

from __future__ import annotations

from dataclasses import replace as with_other

import pytest
from msgspec.structs import replace

from fray_coordinator import fsck
from fray_coordinator.core import Core
from fray_coordinator.jobs import notifications
from fray_coordinator.protocol.placements.owners import entry_of_owner, owner_of_job
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.store.interface import ANY
from fray_layouts import codec
from fray_layouts.index_keys import ChildKey, PendingKey, PlacementKey, Shape
from fray_layouts.object_keys import AgentKeys, JobKeys, PoolKeys
from fray_layouts.records import AgentRecord, Holding, InboxOrigin
from fray_layouts.work_keys import WorkKeys
from tests.support.damage import (
    LONG,
    OLD,
    Make,
    a_child_of,
    a_job,
    a_job_held_by,
    a_job_running_under,
    a_large_job,
    a_succeeded_job,
    an_agent,
    an_endpoint_of,
    rewrite,
)


async def without_entry(core: Core) -> str:
    job = await a_job(core)
    await core.store.delete(entry_of(job).key())
    return JobKeys.key(job.id)


async def entry_of_an_ended_job(core: Core) -> str:
    job = await a_succeeded_job(core)
    await core.store.put(entry_of(job).key(), b"{}", ANY)
    return entry_of(job).key()


async def a_gang_without_entry(core: Core) -> str:
    job = await a_job(core, replicas=2)
    await notifications.leave(core, job)
    return JobKeys.key(job.id)


async def entry_of_an_ended_gang(core: Core) -> str:
    job = await a_job(core, replicas=2)
    await rewrite(core, job, status="stopped", ended_at=core.now())
    return entry_of_owner(owner_of_job(job)).key()


async def owner_entry_of_nobody(core: Core) -> str:
    key = PlacementKey("default", 0, OLD, "job-nobody", "reservation").key()
    await core.store.put(key, b"{}", ANY)
    return key


async def entry_of_nobody(core: Core) -> str:
    key = PendingKey("default", 0, OLD, "job-nobody", 1, Shape(1000, 0, 0, "", 0, False)).key()
    await core.store.put(key, b"{}", ANY)
    return key


async def entry_of_an_earlier_attempt(core: Core) -> str:
    job = await a_job(core)
    await core.store.put(entry_of(await rewrite(core, job, attempt=2)).key(), b"{}", ANY)
    return entry_of(job).key()


async def runs_under_a_dead_agent(core: Core) -> str:
    job = await a_job_running_under(core, "dead")
    await an_agent(core, "dead", state="dead", reaped=True, holdings={job.id: Holding(attempt=1)})
    return JobKeys.key(job.id)


async def runs_under_an_agent_that_left(core: Core) -> str:
    job = await a_job_running_under(core, "left")
    await an_agent(core, "left", state="left")
    return JobKeys.key(job.id)


async def runs_under_nobody(core: Core) -> str:
    return JobKeys.key((await a_job_running_under(core, "nobody")).id)


async def an_entry_of_nobody_s_child(core: Core) -> str:
    key = ChildKey("parent-nobody", 1, "child-nobody").key()
    await core.store.put(key, b"{}", ANY)
    return key


async def left_unadmitted(core: Core) -> str:
    job = await a_job(core)
    await core.store.delete(entry_of(job).key())
    origin = InboxOrigin(key="inbox/x.json", version="v")
    await rewrite(core, job, status="unadmitted", submitted_at=core.now() - 3600, inbox=origin)
    return JobKeys.key(job.id)


async def a_dead_agent_that_was_not_reaped(core: Core) -> str:
    await an_agent(core, "dead", state="dead", holdings={"job-gone": Holding(attempt=1)})
    return AgentKeys.key("dead")


async def data_of_nobody(core: Core) -> str:
    key = WorkKeys.log("job-nobody", 1, 0, 1)
    await core.store.put(key, b"", ANY)
    return key


async def a_blob_of_nobody(core: Core) -> str:
    await core.store.put(f"blobs/2020-01/{0:064x}", b"", ANY)
    return f"blobs/2020-01/{0:064x}"


async def a_missing_entry_of_a_later_attempt(core: Core) -> str:
    job = await a_job(core)
    await core.store.delete(entry_of(job).key())
    return JobKeys.key((await rewrite(core, job, attempt=2)).id)


async def an_entry_in_another_pool(core: Core) -> str:
    key = with_other(entry_of(await a_job(core)), pool="elsewhere").key()
    await core.store.put(key, b"{}", ANY)
    return key


async def an_entry_of_another_priority(core: Core) -> str:
    key = with_other(entry_of(await a_job(core)), priority=5).key()
    await core.store.put(key, b"{}", ANY)
    return key


async def entry_of_a_job_that_runs(core: Core) -> str:
    key = entry_of(await a_job_held_by(core, "live")).key()
    await core.store.put(key, b"{}", ANY)
    return key


async def a_child_of_an_ended_parent(core: Core) -> str:
    return JobKeys.key((await a_child_of(core, (await a_succeeded_job(core)).id)).id)


async def a_child_of_nobody(core: Core) -> str:
    return JobKeys.key((await a_child_of(core, "parent-nobody", entered=False)).id)


async def a_child_of_an_earlier_attempt(core: Core) -> str:
    parent = await a_job_held_by(core, "live")
    await rewrite(core, parent, attempt=2)
    await core.records.update(
        AgentKeys.key("live"),
        AgentRecord,
        lambda agent: replace(agent, holdings={parent.id: Holding(attempt=2, phase="running")}) if agent else None,
    )
    return JobKeys.key((await a_child_of(core, parent.id)).id)


async def a_child_that_is_not_listed(core: Core) -> str:
    parent = await a_job_held_by(core, "live")
    return JobKeys.key((await a_child_of(core, parent.id, entered=False)).id)


async def a_listed_child_that_has_ended(core: Core) -> str:
    parent = await a_job_held_by(core, "live")
    child = await a_child_of(core, parent.id)
    await core.store.delete(entry_of(child).key())
    await rewrite(core, child, status="stopped", ended_at=core.now())
    return ChildKey(parent.id, 1, child.id).key()


async def an_endpoint_of_an_ended_job(core: Core) -> str:
    return await an_endpoint_of(core, (await a_succeeded_job(core)).id)


async def an_endpoint_of_nobody(core: Core) -> str:
    return await an_endpoint_of(core, "job-nobody")


async def a_bell_that_cannot_be_read(core: Core) -> str:
    await core.store.put(PoolKeys.doorbell("default"), b"garbage", ANY)
    return PoolKeys.doorbell("default")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (without_entry, "no entry in the index"),
        (a_missing_entry_of_a_later_attempt, "no entry in the index"),
        (entry_of_an_ended_job, "nobody needs any more"),
        (entry_of_nobody, "nobody needs any more"),
        (a_gang_without_entry, "nobody gathers its members"),
        (entry_of_an_ended_gang, "an owner that has ended"),
        (owner_entry_of_nobody, "an owner that has ended, or never existed"),
        (entry_of_an_earlier_attempt, "earlier attempt"),
        (an_entry_in_another_pool, "second entry"),
        (an_entry_of_another_priority, "second entry"),
        (entry_of_a_job_that_runs, "nobody needs any more"),
        (runs_under_a_dead_agent, "under agent dead, which is dead"),
        (runs_under_an_agent_that_left, "under agent left, which is left"),
        (runs_under_nobody, "under agent nobody, which is unknown"),
        (a_child_of_an_ended_parent, "no longer runs attempt 1"),
        (a_child_of_nobody, "no longer runs attempt 1"),
        (a_child_of_an_earlier_attempt, "no longer runs attempt 1"),
        (a_child_that_is_not_listed, "has no entry children/"),
        (a_listed_child_that_has_ended, "has ended"),
        (an_entry_of_nobody_s_child, "neither this parent nor this child"),
        (left_unadmitted, "neither admitted nor withdrawn"),
        (a_dead_agent_that_was_not_reaped, "not all been requeued"),
        (an_endpoint_of_an_ended_job, "no longer runs"),
        (an_endpoint_of_nobody, "no longer runs"),
        (a_bell_that_cannot_be_read, "a hint"),
        (data_of_nobody, "no record"),
        (a_blob_of_nobody, "no job needs it"),
    ],
)
async def test_a_trouble_is_found_and_repaired(core: Core, make: Make, words: str) -> None:
    await a_job(core)
    assert await fsck.check(core) == []
    key = await make(core)
    await core.clock.sleep(LONG)
    [problem] = await fsck.check(core)
    assert problem.key == key
    assert words in problem.what
    assert "--repair" in problem.remedy
    await fsck.repair(core)
    assert await fsck.check(core) == []


async def test_blobs_that_a_submitter_may_be_about_to_name_stay(core: Core) -> None:
    _, used = await a_large_job(core)
    month = used.split("/")[1]
    await core.store.put(f"blobs/{month}/{1:064x}", b"", ANY)
    await core.store.put(f"blobs/2020-01/{2:064x}", b"", ANY)
    await fsck.repair(core)
    left = [row.key for row in await core.store.list("blobs/")]
    assert left == sorted([used, f"blobs/{month}/{1:064x}"])


async def test_a_live_cluster_in_order_has_no_troubles(core: Core) -> None:
    job = await a_job_held_by(core, "live")
    await a_child_of(core, job.id)
    await an_endpoint_of(core, job.id)
    await core.store.put(WorkKeys.log(job.id, 1, 0, 1), b"", ANY)
    before = {row.key: row.version for row in await core.store.list("", versions=True)}
    assert await fsck.check(core) == []
    assert {row.key: row.version for row in await core.store.list("", versions=True)} == before


async def test_records_of_a_newer_version_are_readable(core: Core) -> None:
    job = await a_job(core)
    await core.store.put(JobKeys.key(job.id), codec.encode(job, {"new_field": 1}), ANY)
    assert await fsck.check(core) == []
