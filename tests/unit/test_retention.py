"""Retention: a finished job goes with all its objects; blobs, agents and rejections go too, in order."""

from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime
from typing import Any

import pytest

from fray_coordinator import fsck
from fray_coordinator.core import Core
from fray_coordinator.jobs import pending_index
from fray_coordinator.jobs.job_archive import find_archived, find_record
from fray_coordinator.jobs.lookup import read_job
from fray_coordinator.jobs.stopping import stop
from fray_coordinator.jobs.submission import put_blob, retry
from fray_coordinator.protocol.retention import (
    ARCHIVE_SPARE_SECONDS,
    BLOB_SPARE_SECONDS,
    SUBMITTER_TIMEOUT,
    recreation_seconds,
    retention_seconds,
)
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.reconcile.job_table import UNREAD_PATIENCE
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.store.interface import ABSENT, ANY
from fray_layouts.index_keys import ChildKey
from fray_layouts.object_keys import ArchiveKeys, BlobKeys, JobKeys, KeptBlobKey
from fray_layouts.records import ClusterSettings, JobRecord
from fray_layouts.work_keys import InboxKeys, WorkKeys
from tests.support.scripted_agents import agent_now, job_now, join, launch, passes
from tests.support.virtual import Cluster

QUARANTINE = 600.0
DAY = 86400.0


async def repaired(cluster: Cluster) -> Reconciler:
    """One repair by a new participant."""
    newcomer = Reconciler(await cluster.core(), "newcomer")
    await newcomer.try_pass()
    return newcomer


async def tidy(core: Core) -> None:
    """A repair, and what the archive takes and lets go."""
    repair = Reconciler(core, "p").repair
    await repair.run({})
    await repair.archive.run()


async def archived(cluster: Cluster, **spec: Any) -> tuple[Core, JobRecord]:
    """A finished job in the archive."""
    user, job = await finished(cluster, **spec)
    await cluster.clock.sleep(recreation_seconds(user.settings) + 1.0)
    await tidy(user)
    assert cluster.keys("jobs/") == []
    assert cluster.keys("archive/") == [ArchiveKeys.key(job.id)]
    return user, job


async def finished(cluster: Cluster, **spec: Any) -> tuple[Core, JobRecord]:
    """A finished job with a log and a result."""
    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user, **spec)
    held = await agent.claim()
    for key in (
        WorkKeys.log(job.id, 1, 0, 1),
        WorkKeys.log(job.id, 1, 0, 2),
        WorkKeys.result(job.id, 1, 0),
        WorkKeys.outputs(job.id, 1, 0),
    ):
        await user.store.put(key, b"x", ABSENT)
    await agent.end(held)
    await agent.beat(leaving=True)
    return user, job


async def test_a_finished_job_goes_with_all_that_is_its_own_after_its_time(cluster: Cluster) -> None:
    user, job = await archived(cluster)
    other = await launch(user)
    await cluster.clock.sleep(30 * DAY - 10.0)
    await tidy(user)
    assert (await read_job(user, job.id)).record.status == "succeeded"
    assert len(cluster.keys("work/")) == 4
    await cluster.clock.sleep(20.0)
    await tidy(user)
    assert cluster.keys("jobs/") == [JobKeys.key(other.id)]
    assert cluster.keys("archive/") == cluster.keys("work/") == []


@pytest.mark.parametrize("step", [("put", "archive/"), ("delete", "work/"), ("delete", "archive/")])
async def test_a_removal_cut_short_leaves_the_record_until_all_else_is_gone(
    cluster: Cluster, step: tuple[str, str]
) -> None:
    user, job = await archived(cluster)
    await cluster.clock.sleep(30 * DAY + 1.0)

    async def die() -> None:
        raise asyncio.CancelledError

    mortal = await cluster.core()
    cluster.connections[-1].before[step] = die
    with pytest.raises(asyncio.CancelledError):
        await tidy(mortal)
    assert (await read_job(user, job.id)).record.expiring is (step != ("put", "archive/"))
    await cluster.clock.sleep(30 * DAY + 1.0)
    await tidy(user)
    assert cluster.keys("archive/") == cluster.keys("work/") == []


@pytest.mark.parametrize("days", [1, 29])
async def test_a_job_whose_mover_died_between_copy_and_deletion_leaves_no_record_without_its_data(
    cluster: Cluster, days: int
) -> None:
    """days: after the job's end. After 29, the next mover comes when the job need not be kept any more."""
    user, job = await finished(cluster)
    await cluster.clock.sleep(days * DAY)

    async def die() -> None:
        raise asyncio.CancelledError

    mortal = await cluster.core()
    cluster.connections[-1].before["delete", "jobs/"] = die
    with pytest.raises(asyncio.CancelledError):
        await tidy(mortal)
    assert len(cluster.keys("jobs/") + cluster.keys("archive/")) == 2
    for _ in range(4):
        await cluster.clock.sleep(10 * DAY)
        await tidy(user)
        found = await find_record(user, job.id)
        assert bool(cluster.keys("work/")) == (found is not None)
        assert await fsck.check(user) == []
    assert cluster.keys("jobs/") == cluster.keys("archive/") == []


async def test_a_parent_is_kept_as_long_as_its_children_are(cluster: Cluster) -> None:
    user, agent = await cluster.core(), await join(cluster, "a")
    parent = await launch(user, name="parent")
    held = await agent.claim()
    await pending_index.delete_entry(user, entry_of(held.record))
    child = await launch(user, name="child", parent=parent.id)
    assert cluster.keys("children/") == [ChildKey(parent.id, 1, child.id).key()]
    await agent.end(held)
    await cluster.clock.sleep(DAY)
    for _ in range(3):  # the child is stopped a day after its parent's end, and then the index forgets it
        await tidy(user)
    assert (await job_now(user, child.id)).status == "stopped"
    await cluster.clock.sleep(recreation_seconds(user.settings) + 1.0)
    await tidy(user)
    assert cluster.keys("jobs/") == [JobKeys.key(parent.id)]
    await tidy(user)
    assert cluster.keys("jobs/") == cluster.keys("children/") == []
    await cluster.clock.sleep(30 * DAY - 10.0)
    await tidy(user)
    assert len(cluster.keys("archive/")) == 2
    await cluster.clock.sleep(20.0)
    await tidy(user)
    assert cluster.keys("archive/") == []


async def test_a_job_is_kept_while_the_inbox_still_holds_its_file(cluster: Cluster) -> None:
    user = await cluster.core()
    key = InboxKeys.key("a")
    await user.store.put(key, b'{"name": "job", "entrypoint": {"command": ["true"]}}', ANY)
    await Reconciler(user, "p").try_pass()
    agent = await join(cluster, "a")
    await agent.end(await agent.claim())
    await cluster.clock.sleep(DAY)
    await tidy(user)
    await user.store.put(key, b'{"name": "job", "entrypoint": {"command": ["true"]}}', ANY)
    await cluster.clock.sleep(31 * DAY)
    await tidy(user)
    assert len(cluster.keys("archive/")) == 1
    await user.store.delete(key)
    await tidy(user)
    assert cluster.keys("jobs/") == cluster.keys("archive/") == []


async def test_agents_that_are_no_more_are_forgotten_after_the_same_time(cluster: Cluster) -> None:
    user, _ = await finished(cluster)
    gone = await agent_now(user, "a")
    assert gone.state == "left"
    coordinator = Reconciler(user, "p")
    await cluster.clock.sleep(30 * DAY - 10.0)
    await coordinator.try_pass()
    assert cluster.keys("agents/") == ["agents/a.json"]
    await cluster.clock.sleep(20.0)
    await coordinator.try_pass()
    assert cluster.keys("agents/") == []


async def test_a_blob_goes_once_no_job_names_it_and_its_month_is_past(cluster: Cluster) -> None:
    call = {"callable": {"pickle": base64.b64encode(bytes(100_000)).decode()}}
    user, ended = await finished(cluster, entrypoint=call)
    kept = await launch(user, entrypoint={"callable": {"pickle": base64.b64encode(bytes(100_001)).decode()}})
    workspace = await put_blob(user, b"archive")
    await launch(user, environment={"workspace": {"blob": workspace}})
    gone, stay = blob_of(ended), sorted([blob_of(kept), workspace])
    assert cluster.keys("blobs/") == sorted([gone, *stay])
    for _ in range(5 * 30):
        await tidy(user)
        if await find_record(user, ended.id) is not None:
            assert gone in cluster.keys("blobs/")
        await cluster.clock.sleep(DAY)
    assert cluster.keys("blobs/") == stay


async def test_a_job_that_is_archived_long_after_its_end_keeps_its_blob_as_long_as_its_record(cluster: Cluster) -> None:
    """Nobody was there to move it."""
    call = {"callable": {"pickle": base64.b64encode(bytes(100_000)).decode()}}
    user, job = await finished(cluster, entrypoint=call)
    await cluster.clock.sleep(200 * DAY)
    await tidy(user)
    for _ in range(40):
        assert (await find_archived(user, job.id) is not None) == bool(cluster.keys("work/"))
        if cluster.keys("archive/"):
            assert blob_of(job) in cluster.keys("blobs/")
            assert await fsck.check(user) == []
        await cluster.clock.sleep(DAY)
        await tidy(user)
    assert cluster.keys("archive/") == []


async def an_archived_job_with_an_old_blob(cluster: Cluster) -> tuple[Core, JobRecord, str]:
    """A job that was submitted with a blob stored months before, as `fray retry` does, and is archived."""
    user = await cluster.core()
    blob = await put_blob(user, b"archive")
    await cluster.clock.sleep(100 * DAY)
    user, job = await finished(cluster, entrypoint={"command": ["cat"], "stdin": blob})
    await cluster.clock.sleep(recreation_seconds(user.settings) + 1.0)
    keeper = Reconciler(await cluster.core(), "keeper").repair
    await keeper.run({})
    await keeper.archive.run()
    assert cluster.keys("jobs/") == []
    assert cluster.keys("archive/") == [ArchiveKeys.key(job.id)]
    return user, job, blob


async def test_a_job_that_names_an_old_blob_is_archived_and_its_blob_is_kept_as_long_as_the_job(
    cluster: Cluster,
) -> None:
    user, job, blob = await an_archived_job_with_an_old_blob(cluster)
    for _ in range(29):
        await Reconciler(user, "another").repair.run({})
        assert cluster.keys("blobs/2")[:1] == [blob]
        assert await fsck.check(user) == []
        await cluster.clock.sleep(DAY)
    archived = await find_archived(user, job.id)
    assert archived is not None
    (again,) = await retry(user, [archived.record])
    agent = await join(cluster, "b")
    await agent.end(await agent.claim())
    await agent.beat(leaving=True)
    assert (await job_now(user, again.id)).status == "succeeded"
    keeper = Reconciler(user, "another").repair
    await cluster.clock.sleep(5 * DAY)
    await keeper.run({})
    await keeper.archive.run()
    assert cluster.keys("archive/") == [ArchiveKeys.key(again.id)]
    assert blob in cluster.keys("blobs/"), "the second job needs it"
    await cluster.clock.sleep(100 * DAY)
    await keeper.run({})
    await keeper.archive.run()
    assert cluster.keys("jobs/") == cluster.keys("archive/") == cluster.keys("blobs/") == []


async def test_what_archived_jobs_need_costs_one_write_a_job_with_an_old_blob_and_no_read(cluster: Cluster) -> None:
    _, job, blob = await an_archived_job_with_an_old_blob(cluster)
    mover, month = cluster.connections[-1], BlobKeys.month(job.submitted_at)
    assert [key for verb, key in mover.asked if verb == "put" and key.startswith("blobs/")] == [
        KeptBlobKey(month, blob).key()
    ]
    writes = [(verb, key) for verb, key in mover.asked if verb in ("put", "delete")]
    assert writes.index(("put", KeptBlobKey(month, blob).key())) < writes.index(("delete", JobKeys.key(job.id)))
    core = await cluster.core()
    await Reconciler(core, "another").repair.run({})
    asked = cluster.connections[-1].asked
    assert [(verb, key) for verb, key in asked if key.startswith(("archive/", "blobs/"))] == [("list", "blobs/")]
    assert asked.index(("list", "jobs/")) < asked.index(("list", "blobs/")), "else a record moves between the two"


async def test_a_job_with_a_new_blob_is_archived_without_a_further_write(cluster: Cluster) -> None:
    user = await cluster.core()
    blob = await put_blob(user, b"archive")
    await finished(cluster, entrypoint={"command": ["cat"], "stdin": blob})
    await cluster.clock.sleep(recreation_seconds(user.settings) + 1.0)
    keeper = Reconciler(user, "keeper").repair
    await keeper.run({})
    await keeper.archive.run()
    assert len(cluster.keys("archive/")) == 1
    assert cluster.keys("blobs/") == [blob]


async def test_a_blob_that_may_yet_be_named_stays(cluster: Cluster) -> None:
    """Its submitter stored it at the end of a month, and has not written the record yet."""

    user = await cluster.core()
    await cluster.clock.sleep(datetime(2027, 1, 31, 23, 59, 59, tzinfo=UTC).timestamp() - user.now())
    key = await put_blob(user, bytes(100))
    await cluster.clock.sleep(SUBMITTER_TIMEOUT)
    await Reconciler(user, "p").repair.run({})
    assert cluster.keys("blobs/") == [key]
    await cluster.clock.sleep(DAY)
    await Reconciler(user, "p").repair.run({})
    assert cluster.keys("blobs/") == [key], "a job that was submitted then may be in the archive"
    await cluster.clock.sleep(30 * DAY + BLOB_SPARE_SECONDS + ARCHIVE_SPARE_SECONDS)
    await Reconciler(user, "p").repair.run({})
    assert cluster.keys("blobs/") == []


async def test_a_job_that_cannot_be_read_may_need_any_blob(cluster: Cluster) -> None:
    user = await cluster.core()
    key = await put_blob(user, bytes(100))
    await user.store.put("jobs/odd.json", b"[]", ANY)
    await cluster.clock.sleep(100 * DAY)
    coordinator = Reconciler(user, "p")
    await coordinator.repair.run({})
    assert cluster.keys("blobs/") == [key]
    await user.store.delete("jobs/odd.json")
    await coordinator.repair.run({})
    assert cluster.keys("blobs/") == []


def blob_of(job: JobRecord) -> str:
    call = job.spec.entrypoint.callable
    assert call is not None
    return call.blob


async def test_reasons_of_rejections_go_after_the_same_time(cluster: Cluster) -> None:
    user = await cluster.core()
    await user.store.put(InboxKeys.key("odd"), b'{"name": 1}', ANY)
    coordinator = Reconciler(user, "p")
    await coordinator.try_pass()
    (key,) = cluster.keys(InboxKeys.area)
    assert key.startswith(InboxKeys.rejected_prefix)
    await cluster.clock.sleep(30 * DAY - 10.0)
    await passes(coordinator, 9.0, every=1.0)
    assert cluster.keys(InboxKeys.area) == [key]
    await cluster.clock.sleep(3600.0)
    await coordinator.try_pass()
    assert cluster.keys(InboxKeys.area) == []
    assert ("get", key) not in cluster.connections[0].asked


def test_retention_is_longer_than_any_submitter_tries() -> None:
    hasty = ClusterSettings(retention=1.0)
    assert retention_seconds(hasty) >= hasty.quarantine + SUBMITTER_TIMEOUT


async def test_a_parent_stays_while_a_record_is_not_answered_that_may_be_its_childs(cluster: Cluster) -> None:
    cluster.settings = ClusterSettings(retention=0.0)
    user, agent = await cluster.core(), await join(cluster, "a")
    parent = await launch(user)
    held = await agent.claim()
    child = await launch(user, attempt_of_parent=1, parent=parent.id)
    await stop(user, child.id, "enough")
    await agent.end(held)
    await user.store.delete(ChildKey(parent.id, 1, child.id).key())
    await cluster.clock.sleep(7300.0)
    core = await cluster.core()
    cluster.connections[2].unanswered = [("get", JobKeys.key(child.id))]
    await passes(Reconciler(core, "p"), 100.0)
    assert JobKeys.key(parent.id) in cluster.keys("jobs/")
    cluster.connections[2].unanswered = []
    await passes(Reconciler(core, "p"), 1000.0)
    assert cluster.keys("jobs/") == []


async def test_a_record_that_is_never_answered_keeps_other_ended_jobs_for_an_hour_only(cluster: Cluster) -> None:
    cluster.settings = ClusterSettings(retention=0.0)
    user, core = await cluster.core(), await cluster.core()
    odd, other = await launch(user), await launch(user)
    await stop(user, other.id, "enough")
    cluster.connections[1].unanswered = [("get", JobKeys.key(odd.id))]
    await cluster.clock.sleep(SUBMITTER_TIMEOUT + QUARANTINE)
    coordinator = Reconciler(core, "p")
    await passes(coordinator, UNREAD_PATIENCE - 300.0, every=60.0)
    assert JobKeys.key(other.id) in cluster.keys("jobs/")
    await passes(coordinator, 1000.0, every=60.0)
    assert cluster.keys("jobs/") == [JobKeys.key(odd.id)]
