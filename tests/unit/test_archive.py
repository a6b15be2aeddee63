"""The archive: records of jobs that ended long ago lie under `archive/`, and every reader finds them there."""

from __future__ import annotations

import asyncio
import calendar
import json
from typing import Any

import pytest
from msgspec.structs import replace

from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, JobGone, ParentNotRunning
from fray_coordinator.fsck import checker
from fray_coordinator.jobs import job_archive, lookup
from fray_coordinator.jobs.stopping import stop
from fray_coordinator.jobs.submission import submit
from fray_coordinator.jobs.waiting import WatchedJobs, wait_for
from fray_coordinator.protocol.retention import blobs_to_keep, retention_seconds
from fray_coordinator.reconcile.admission import Admission
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.store.interface import ABSENT, ANY
from fray_layouts.errors import InvalidInput
from fray_layouts.index_keys import ChildKey
from fray_layouts.object_keys import ArchiveKeys, BlobKeys, JobKeys, KeptBlobKey
from fray_layouts.records import JobRecord, ParentLink
from fray_layouts.spec_parsing import parse_spec
from fray_layouts.work_keys import InboxKeys, WorkKeys
from tests.support.scripted_agents import job_now, join, launch
from tests.support.virtual import Cluster

HOUR = 3600.0
A_WHILE = 4201.0
"""Seconds after its end from which a job may be archived: the quarantine, and the patience of submitters."""


async def ended_job(cluster: Cluster, **spec: Any) -> tuple[Core, JobRecord]:
    """A job that has just succeeded."""
    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user, **spec)
    await agent.end(await agent.claim())
    await agent.beat(leaving=True)
    return user, job


async def archived_job(cluster: Cluster, **spec: Any) -> tuple[Core, JobRecord]:
    """A job that has succeeded and lies in the archive."""
    user, job = await ended_job(cluster, **spec)
    await cluster.clock.sleep(A_WHILE)
    await repaired(user)
    assert cluster.keys("jobs/") == []
    return user, job


async def repaired(core: Core) -> Reconciler:
    """One repair, and what the archive does after it."""
    newcomer = Reconciler(core, "newcomer")
    await newcomer.repair.run({})
    await newcomer.repair.archive.run()
    return newcomer


def test_a_blob_from_long_before_its_job_is_archived_is_named_to_the_sweep() -> None:
    stored_at = calendar.timegm((2026, 3, 10, 0, 0, 0))
    blob = BlobKeys.key(stored_at, "0" * 64)
    spec = parse_spec({"name": "job", "entrypoint": {"command": ["cat"], "stdin": blob}})

    def kept_after(days: float) -> list[KeptBlobKey]:
        return blobs_to_keep(JobRecord(id="job-1", spec=spec, status="succeeded"), stored_at + days * 86400.0)

    assert kept_after(0.0) == kept_after(51.0) == [], "30 April"
    assert kept_after(53.0) == [KeptBlobKey("2026-05", blob)], "2 May: a month after the blob's month"


async def test_a_record_moves_once_no_submitter_can_create_it_any_more(cluster: Cluster) -> None:
    user, job = await ended_job(cluster)
    before = await user.store.get(JobKeys.key(job.id))
    await cluster.clock.sleep(A_WHILE - 10.0)
    await repaired(user)
    assert cluster.keys("jobs/") == [JobKeys.key(job.id)]
    await cluster.clock.sleep(20.0)
    await repaired(user)
    after = await user.store.get(ArchiveKeys.key(job.id))
    assert (cluster.keys("jobs/"), cluster.keys("archive/")) == ([], [ArchiveKeys.key(job.id)])
    assert before is not None
    assert after is not None
    assert json.loads(before.data) == json.loads(after.data)


async def test_a_pass_archives_by_itself_and_the_repair_does_not_wait_for_it(cluster: Cluster) -> None:
    _, job = await ended_job(cluster)
    await cluster.clock.sleep(A_WHILE)
    newcomer = Reconciler(await cluster.core(), "newcomer")
    gate = asyncio.Event()
    cluster.connections[-1].before["put", "archive/"] = gate.wait
    for _ in range(3):
        await newcomer.try_pass()
        await cluster.clock.sleep(8.0)
    assert cluster.keys("jobs/") == [JobKeys.key(job.id)]
    assert newcomer.repair.size == 1, "the repair has ended"
    gate.set()
    await newcomer.try_pass()
    await cluster.clock.sleep(8.0)
    assert cluster.keys("archive/") == [ArchiveKeys.key(job.id)]


@pytest.mark.parametrize("spec", [{}, {"id": "mine"}], ids=["fresh id", "own id"])
async def test_every_reader_finds_an_archived_job(cluster: Cluster, spec: dict[str, str]) -> None:
    user, job = await archived_job(cluster, name="old", **spec)
    assert (await lookup.read_job(user, job.id)).record.status == "succeeded"
    assert (await lookup.find_job(user, "old")).record.id == job.id
    assert (await lookup.find_job(user, job.id[:-2])).record.id == job.id
    assert [found.id for found in await lookup.all_jobs(user, {})] == [job.id]
    assert (await lookup.jobs_by_id(user, [job.id], {}))[job.id] is not None
    assert (await stop(user, job.id, "late")).status == "succeeded"
    assert (await wait_for(user, [job.id]))[job.id].status == "succeeded"
    with pytest.raises(ParentNotRunning, match="succeeded"):
        await submit(user, [parse_spec({"name": "c", "parent": job.id, "entrypoint": {"command": ["true"]}})])


async def test_a_waiter_that_slept_while_the_job_was_archived_gets_its_end(cluster: Cluster) -> None:
    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user)
    held = await agent.claim()
    watched = WatchedJobs(user, [job.id])
    await watched.poll()
    await agent.end(held)
    await cluster.clock.sleep(A_WHILE)
    await repaired(user)
    (now,) = await watched.poll()
    assert now.status == "succeeded"
    await user.store.delete(ArchiveKeys.key(job.id))
    watched.known[job.id] = replace(watched.known[job.id], version="another")
    watched.known[job.id].record.status = "running"
    with pytest.raises(JobGone):
        await watched.poll()


async def test_a_submission_with_an_own_id_finds_the_archived_job(cluster: Cluster) -> None:
    user, job = await archived_job(cluster, id="mine")
    again = replace(job.spec, namespace="")
    (found,) = await submit(user, [again])
    assert (found.found, found.job.status) == (True, "succeeded")
    with pytest.raises(InvalidInput, match="another priority"):
        await submit(user, [replace(again, priority=7)])
    assert cluster.keys("jobs/") == cluster.keys("pending/") == []


@pytest.mark.parametrize("step", [("put", "archive/"), ("delete", "jobs/")])
async def test_a_move_cut_short_loses_nothing_and_the_next_repair_ends_it(
    cluster: Cluster, step: tuple[str, str]
) -> None:
    user, job = await ended_job(cluster)
    await cluster.clock.sleep(A_WHILE)

    async def die() -> None:
        raise asyncio.CancelledError

    mortal = await cluster.core()
    cluster.connections[-1].before[step] = die
    with pytest.raises(asyncio.CancelledError):
        await repaired(mortal)
    assert (await job_now(user, job.id)).status == "succeeded"
    assert await checker.check(user) == []
    await repaired(user)
    assert (cluster.keys("jobs/"), cluster.keys("archive/")) == ([], [ArchiveKeys.key(job.id)])


async def test_a_record_that_changes_between_copy_and_deletion_is_copied_again(cluster: Cluster) -> None:
    user, job = await ended_job(cluster)
    await cluster.clock.sleep(A_WHILE)
    mover = await cluster.core()

    async def change() -> None:
        await user.records.change(JobKeys.key(job.id), JobRecord, lambda now: replace(now, failures=7))

    cluster.connections[-1].before["delete", "jobs/"] = change
    await job_archive.archive(mover, job.id)
    assert (await job_now(user, job.id)).failures == 7
    await job_archive.archive(mover, job.id)
    found = await job_archive.find_archived(user, job.id)
    assert found is not None
    assert (found.record.failures, cluster.keys("jobs/")) == (7, [])


async def test_a_parent_is_archived_after_its_children(cluster: Cluster) -> None:
    user, agent = await cluster.core(), await join(cluster, "a")
    parent = await launch(user, name="parent")
    held = await agent.claim()
    child = await launch(user, 1, name="child", parent=parent.id)
    await agent.end(held)
    await cluster.clock.sleep(A_WHILE)
    await repaired(user)  # stops the child
    assert (await job_now(user, child.id)).status == "stopped"
    assert cluster.keys("archive/") == []
    await cluster.clock.sleep(A_WHILE)
    for moved in ([child], [child, parent], [child, parent]):
        await repaired(user)
        assert cluster.keys("archive/") == sorted(ArchiveKeys.key(job.id) for job in moved)
    assert cluster.keys("children/") == []


async def test_a_child_of_an_archived_parent_is_stopped(cluster: Cluster) -> None:
    """The parent's process slept since before its end, and submits one more child."""
    user, parent = await archived_job(cluster, name="parent")
    child = JobRecord(
        id="late-child-1",
        spec=replace(parent.spec, parent=parent.id, name="late"),
        status="pending",
        submitted_at=user.now(),
        parent=ParentLink(job=parent.id, attempt=1),
    )
    await user.store.put(ChildKey(parent.id, 1, child.id).key(), b"{}", ABSENT)
    await user.records.put(JobKeys.key(child.id), child, ABSENT)
    await repaired(user)
    assert (await job_now(user, child.id)).status == "stopped"


async def test_retention_removes_archived_jobs_with_their_data_by_the_day(cluster: Cluster) -> None:
    user, job = await ended_job(cluster)
    await user.store.put(WorkKeys.log(job.id, 1, 0, 1), b"x", ABSENT)
    await cluster.clock.sleep(A_WHILE)
    await repaired(user)
    await cluster.clock.sleep(retention_seconds(user.settings) - 10.0)
    await repaired(user)
    assert cluster.keys("archive/") == [ArchiveKeys.key(job.id)]
    await cluster.clock.sleep(20.0)
    await repaired(user)
    assert cluster.keys("archive/") == cluster.keys("work/") == []


async def test_a_sweep_lists_neither_the_days_that_are_kept_nor_reads_their_records(cluster: Cluster) -> None:
    user, _ = await archived_job(cluster)
    record = await user.store.get(cluster.keys("archive/")[0])
    assert record is not None
    for number in range(1500):
        await user.store.put(ArchiveKeys.key(f"job-1mcc5rm00{number:06d}"), record.data, ABSENT)
    core = await cluster.core(local=False)
    connection = cluster.connections[-1]
    connection.asked.clear()
    await Reconciler(core, "p").repair.archive.run()
    assert connection.asked == [("list", "archive/")] * 2


async def test_a_drop_of_an_archived_job_is_taken_away_and_runs_no_second_time(cluster: Cluster) -> None:
    """Its admitter died before it could delete the file, and nobody could for an hour."""
    user = await cluster.core(local=False)
    drop = {"name": "job", "entrypoint": {"command": ["true"]}}
    await user.store.put(InboxKeys.key("a"), json.dumps(drop).encode(), ANY)
    mortal = await cluster.core(local=False)

    async def die() -> None:
        raise asyncio.CancelledError

    cluster.connections[-1].before["withdraw", "inbox/"] = die
    with pytest.raises(asyncio.CancelledError):
        await Admission(mortal).run()
    agent = await join(cluster, "a")
    await agent.end(await agent.claim())
    await cluster.clock.sleep(A_WHILE)
    await repaired(user)
    (archived,) = cluster.keys("archive/")
    await Admission(user).run()
    assert cluster.keys("jobs/") == cluster.keys("inbox/") == cluster.keys("pending/") == []
    assert cluster.keys("archive/") == [archived]


async def test_fsck_names_an_archived_job_that_runs_again(cluster: Cluster) -> None:
    user, job = await archived_job(cluster)
    again = replace(job, status="pending", submitted_at=user.now())
    await user.records.put(JobKeys.key(job.id), again, ABSENT)
    await repaired(user)
    await cluster.clock.sleep(HOUR)
    problems = {problem.key: problem.what for problem in await checker.check(user)}
    assert "it runs twice" in problems[JobKeys.key(job.id)]


async def test_what_a_job_that_runs_again_has_written_is_not_swept_with_its_archived_record(cluster: Cluster) -> None:
    """Somebody has put an older copy of `jobs/` in its place, or one of `archive/`."""
    user, job = await archived_job(cluster)
    again = replace(job, status="running", submitted_at=user.now())
    await user.records.put(JobKeys.key(job.id), again, ABSENT)
    log = WorkKeys.log(job.id, 1, 0, 7)
    await user.store.put(log, b"said now", ABSENT)
    await cluster.clock.sleep(retention_seconds(user.settings) + HOUR)
    await Reconciler(user, "p").repair.archive.run()
    assert log in cluster.keys("work/")
    await user.store.delete(JobKeys.key(job.id))
    await Reconciler(user, "p").repair.archive.run()
    assert cluster.keys("archive/") == cluster.keys("work/") == []


async def test_an_archived_record_that_has_not_ended_holds_nobody_and_is_named(cluster: Cluster) -> None:
    """Somebody has copied the record of a job that ran into the archive, or damaged it there."""
    user, job = await archived_job(cluster)
    key = ArchiveKeys.key(job.id)
    await user.records.change(key, JobRecord, lambda now: replace(now, status="running", ended_at=None))
    for reading in (wait_for(user, [job.id]), stop(user, job.id, "late"), lookup.read_job(user, job.id)):
        with pytest.raises(BadRecord, match="says that the job is running"):
            await reading
    problems = {problem.key: problem.what for problem in await checker.check(user)}
    assert "nobody looks after archived jobs" in problems[key]


async def test_a_copy_that_has_not_ended_is_replaced_by_the_next_move(cluster: Cluster) -> None:
    user, job = await ended_job(cluster)
    copy = replace(job, status="running")
    await user.records.put(ArchiveKeys.key(job.id), copy, ABSENT)
    await cluster.clock.sleep(A_WHILE)
    await repaired(user)
    assert (await lookup.read_job(user, job.id)).record.status == "succeeded"
    assert cluster.keys("jobs/") == []
