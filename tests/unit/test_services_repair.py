"""The slow repair: whatever hints and indexes missed is found, and what nobody needs any more goes, in order."""

from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from fray_coordinator.core import Core
from fray_coordinator.jobs import pending_index
from fray_coordinator.jobs.stopping import stop
from fray_coordinator.jobs.submission import put_blob
from fray_coordinator.protocol.retention import SUBMITTER_TIMEOUT, retention_seconds
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.reconcile.repair import UNREAD_PATIENCE
from fray_coordinator.store.interface import ABSENT, ANY
from fray_layouts.bounds import MAX_TIME
from fray_layouts.inbox_keys import InboxKeys
from fray_layouts.object_keys import (
    AgentKeys,
    ChildKey,
    JobKeys,
    PendingKey,
    WorkKeys,
)
from fray_layouts.records import ClusterSettings, JobRecord
from tests.support.participants import agent_now, job_now, join, launch, passes
from tests.support.virtual import Cluster

QUARANTINE = 600.0
DAY = 86400.0


async def repaired(cluster: Cluster) -> Reconciler:
    """One repair by a newcomer."""
    newcomer = Reconciler(await cluster.core(), "newcomer")
    await newcomer.try_pass()
    return newcomer


async def orphaned_entry(core: Core) -> str:
    """What a submitter leaves that dies after its first write."""
    job = JobRecord(id="job-lost", spec=(await launch(core)).spec, status="pending", submitted_at=core.now())
    await pending_index.create_entry(core, job)
    return entry_of(job).key()


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
    cluster.ways[2].unanswered = [("get", JobKeys.key(child.id))]
    await passes(Reconciler(core, "p"), 100.0)
    assert JobKeys.key(parent.id) in cluster.keys("jobs/")
    cluster.ways[2].unanswered = []
    await passes(Reconciler(core, "p"), 1000.0)
    assert cluster.keys("jobs/") == []


async def test_a_record_that_is_never_answered_keeps_other_ended_jobs_for_an_hour_only(cluster: Cluster) -> None:
    cluster.settings = ClusterSettings(retention=0.0)
    user, core = await cluster.core(), await cluster.core()
    odd, other = await launch(user), await launch(user)
    await stop(user, other.id, "enough")
    cluster.ways[1].unanswered = [("get", JobKeys.key(odd.id))]
    await cluster.clock.sleep(SUBMITTER_TIMEOUT + QUARANTINE)
    coordinator = Reconciler(core, "p")
    await passes(coordinator, UNREAD_PATIENCE - 300.0, every=60.0)
    assert JobKeys.key(other.id) in cluster.keys("jobs/")
    await passes(coordinator, 1000.0, every=60.0)
    assert cluster.keys("jobs/") == [JobKeys.key(odd.id)]


async def test_an_entry_of_a_job_that_has_ended_goes_though_the_record_of_its_agent_is_garbage(
    cluster: Cluster,
) -> None:
    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user)
    held = await agent.claim()
    await agent.end(held)
    await user.store.put(entry_of(job).key(), b"{}", ABSENT)
    await user.store.put(AgentKeys.key("a"), b"garbage", ANY)
    await passes(Reconciler(await cluster.core(), "p"), 100.0)
    assert cluster.keys("pending/") == []


async def test_a_pending_record_without_an_entry_gets_one_and_the_bell_rings(cluster: Cluster) -> None:
    user = await cluster.core()
    job = await launch(user)
    await user.store.delete(entry_of(job).key())
    before = await user.store.get("pools/default/doorbell")
    await repaired(cluster)
    after = await user.store.get("pools/default/doorbell")
    assert cluster.keys("pending/") == [entry_of(job).key()]
    assert before is not None
    assert after is not None
    assert before.version != after.version


async def test_an_entry_without_a_record_goes_after_the_quarantine_and_not_before(cluster: Cluster) -> None:
    user = await cluster.core()
    key = await orphaned_entry(user)
    await cluster.clock.sleep(QUARANTINE - 1.0)
    await repaired(cluster)
    assert key in cluster.keys("pending/")
    await cluster.clock.sleep(2.0)
    await (await repaired(cluster)).repair.run({})
    assert key not in cluster.keys("pending/")
    assert len(cluster.keys("pending/")) == 1, "the other job's entry stays"


@pytest.mark.parametrize("step", [("list", "jobs/"), ("delete", "pending/")])
async def test_a_submitter_that_stalls_past_the_quarantine_keeps_its_entry(
    cluster: Cluster, step: tuple[str, str]
) -> None:
    """Its record is created while a sweeper deals with its entry: before it looks, or just before it deletes."""

    user = await cluster.core()
    gate = asyncio.Event()
    late = await cluster.core()
    cluster.ways[-1].before["put", "jobs/"] = gate.wait
    submitting = asyncio.create_task(launch(late))
    await cluster.clock.sleep(QUARANTINE + 1.0)

    async def go_on() -> None:
        gate.set()
        await submitting

    sweeper = Reconciler(await cluster.core(), "sweeper")
    cluster.ways[-1].before[step] = go_on
    await sweeper.try_pass()
    job = submitting.result()
    assert (await job_now(user, job.id)).status == "pending"
    assert cluster.keys("pending/") == [entry_of(job).key()]


async def test_a_submitter_whose_entry_was_swept_meanwhile_writes_it_again(cluster: Cluster) -> None:
    gate = asyncio.Event()
    late = await cluster.core()
    cluster.ways[-1].before["put", "jobs/"] = gate.wait
    submitting = asyncio.create_task(launch(late))
    await cluster.clock.sleep(QUARANTINE + 1.0)
    await repaired(cluster)
    assert cluster.keys("pending/") == []
    gate.set()
    job = await submitting
    assert cluster.keys("pending/") == [entry_of(job).key()]


async def test_an_entry_of_an_earlier_attempt_is_renewed(cluster: Cluster) -> None:
    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user)
    again = await agent.end(await agent.claim(), "preempted")
    assert again is not None
    await user.store.delete(entry_of(again).key())
    await pending_index.create_entry(user, job)
    await pending_index.reconcile_entry(user, entry_of(job).key(), entry_of(job))
    assert cluster.keys("pending/") == [entry_of(again).key()]


@pytest.mark.parametrize("listed", [True, False])
async def test_the_entry_of_a_running_job_goes_once_a_beat_lists_it(cluster: Cluster, listed: bool) -> None:
    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user)
    await agent.claim(listed=listed)
    await repaired(cluster)
    assert cluster.keys("pending/") == ([] if listed else [entry_of(job).key()])


async def test_an_entry_of_a_job_that_ended_goes(cluster: Cluster) -> None:
    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user)
    await agent.end(await agent.claim())
    await pending_index.create_entry(user, job)
    await repaired(cluster)
    assert cluster.keys("pending/") == []


async def test_two_entries_of_one_job_are_one_in_the_end(cluster: Cluster) -> None:
    """Two submitters of one id wrote an entry each; one of them made the record."""

    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user, id="monday")
    await pending_index.create_entry(user, replace(job, submitted_at=job.submitted_at + 1.0))
    assert len(cluster.keys("pending/")) == 2
    held = await agent.claim()
    await repaired(cluster)
    assert cluster.keys("pending/") == []
    await agent.end(held)


async def test_a_job_whose_agent_is_gone_without_a_trace_is_put_back(cluster: Cluster) -> None:
    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user)
    await agent.claim()
    await user.store.delete(entry_of(job).key())
    await user.store.delete("agents/a.json")
    await repaired(cluster)
    back = await job_now(user, job.id)
    assert (back.status, back.attempt) == ("pending", 2)
    assert cluster.keys("pending/") == [entry_of(back).key()]


async def test_a_job_with_a_status_from_the_future_is_left_alone(cluster: Cluster) -> None:
    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user)
    await user.records.update(
        JobKeys.key(job.id), JobRecord, lambda now: replace(now, status="hibernating") if now else None
    )
    before = await user.store.get(JobKeys.key(job.id))
    await agent.try_claim()
    await repaired(cluster)
    assert await user.store.get(JobKeys.key(job.id)) == before
    assert cluster.keys("pending/") == [entry_of(job).key()]


async def test_a_record_that_cannot_be_read_is_reported_and_the_rest_is_repaired(cluster: Cluster) -> None:
    user = await cluster.core()
    job = await launch(user)
    await user.store.delete(entry_of(job).key())
    await user.store.put("jobs/bad.json", b"{", ANY)
    await user.store.put("pending/default/what is this", b"x", ANY)
    newcomer = await repaired(cluster)
    assert newcomer.lease is not None
    assert list(newcomer.lease.record.problems) == ["jobs/bad.json"]
    assert entry_of(job).key() in cluster.keys("pending/")


# --- retention ---------------------------------------------------------------------------------------------------


async def finished(cluster: Cluster, **spec: Any) -> tuple[Core, JobRecord]:
    """A job that has run, with a log and a result."""
    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user, **spec)
    held = await agent.claim()
    for key in (WorkKeys.log(job.id, 1, 0, 1), WorkKeys.log(job.id, 1, 0, 2), WorkKeys.result(job.id, 1, 0)):
        await user.store.put(key, b"x", ABSENT)
    await agent.end(held)
    await agent.beat(leaving=True)
    return user, job


async def test_a_finished_job_goes_with_all_that_is_its_own_after_its_time(cluster: Cluster) -> None:
    user, job = await finished(cluster)
    other = await launch(user)
    await cluster.clock.sleep(30 * DAY - 10.0)
    await repaired(cluster)
    assert (await job_now(user, job.id)).status == "succeeded"
    await cluster.clock.sleep(20.0)
    await (await repaired(cluster)).repair.run({})
    assert cluster.keys("jobs/") == [JobKeys.key(other.id)]
    assert cluster.keys("work/") == []


@pytest.mark.parametrize("step", [("put", "jobs/"), ("delete", "work/"), ("delete", "jobs/")])
async def test_a_removal_cut_short_leaves_the_record_until_all_else_is_gone(
    cluster: Cluster, step: tuple[str, str]
) -> None:
    user, job = await finished(cluster)
    await cluster.clock.sleep(30 * DAY + 1.0)

    async def die() -> None:
        raise asyncio.CancelledError

    mortal = Reconciler(await cluster.core(), "mortal")
    cluster.ways[-1].before[step] = die
    with pytest.raises(asyncio.CancelledError):
        await mortal.repair.run({})
    assert (await job_now(user, job.id)).expiring is (step != ("put", "jobs/"))
    await Reconciler(user, "p").repair.run({})
    assert cluster.keys("jobs/") == cluster.keys("work/") == []


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
        await Reconciler(user, "p").repair.run({})
    assert (await job_now(user, child.id)).status == "stopped"
    await cluster.clock.sleep(30 * DAY - 10.0)
    await Reconciler(user, "p").repair.run({})
    assert cluster.keys("jobs/") == sorted([JobKeys.key(parent.id), JobKeys.key(child.id)])
    await cluster.clock.sleep(20.0)
    for _ in range(2):
        await Reconciler(user, "p").repair.run({})
    assert cluster.keys("jobs/") == cluster.keys("children/") == []


async def test_a_job_is_kept_while_the_inbox_still_holds_its_file(cluster: Cluster) -> None:
    user = await cluster.core()
    key = InboxKeys.key("a")
    await user.store.put(key, b'{"name": "job", "entrypoint": {"command": ["true"]}}', ANY)
    coordinator = Reconciler(user, "p")
    await coordinator.try_pass()
    (job,) = cluster.keys("jobs/")
    agent = await join(cluster, "a")
    await agent.end(await agent.claim())
    await cluster.clock.sleep(30 * DAY + 1.0)
    await user.store.put(key, b'{"name": "job", "entrypoint": {"command": ["true"]}}', ANY)
    await coordinator.repair.run({})
    assert cluster.keys("jobs/") == [job]
    await user.store.delete(key)
    await coordinator.repair.run({})
    assert cluster.keys("jobs/") == []


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
    gone = blob_of(ended)
    assert cluster.keys("blobs/") == sorted([gone, blob_of(kept)])
    coordinator = Reconciler(user, "p")
    for _ in range(4 * 30):
        await coordinator.repair.run({})
        if JobKeys.key(ended.id) in cluster.keys("jobs/"):
            assert gone in cluster.keys("blobs/")
        await cluster.clock.sleep(DAY)
    assert cluster.keys("blobs/") == [blob_of(kept)]


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
    assert cluster.keys("blobs/") == []


async def test_a_job_that_cannot_be_read_may_need_any_blob(cluster: Cluster) -> None:
    user = await cluster.core()
    key = await put_blob(user, bytes(100))
    await user.store.put("jobs/odd.json", b"[]", ANY)
    await cluster.clock.sleep(70 * DAY)
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
    assert ("get", key) not in cluster.ways[0].asked


def test_retention_is_longer_than_any_submitter_tries() -> None:
    hasty = ClusterSettings(retention=1.0)
    assert retention_seconds(hasty) >= hasty.quarantine + SUBMITTER_TIMEOUT


async def test_many_jobs_are_repaired_with_few_reads(cluster: Cluster) -> None:
    """Only what changed since the last repair is read."""

    user = await cluster.core()
    jobs = [await launch(user, name=f"job{n}") for n in range(30)]
    coordinator = Reconciler(user, "p")
    await passes(coordinator, 130.0)
    before = user.store.usage.snapshot()
    await coordinator.repair.run({})
    spent = user.store.usage - before
    assert (spent.lists, spent.reads, spent.writes) == (4, 0, 0)
    assert {entry.job for key in cluster.keys("pending/") if (entry := PendingKey.parse(key))} == {j.id for j in jobs}


# --- jobs that a live holder has dropped -------------------------------------------------------------------------


@pytest.mark.parametrize("since", [None, MAX_TIME], ids=["", "by a lease from the future"])
async def test_a_job_that_its_live_agent_has_dropped_is_put_back(cluster: Cluster, since: float | None) -> None:
    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user)
    await agent.claim()
    beating = asyncio.create_task(agent.beat_for_ever())
    await cluster.clock.sleep(60.0)
    await pending_index.delete_entry(user, entry_of(job))
    agent.holding.clear()
    if since is not None:
        held = await user.records.read(JobKeys.key(job.id), JobRecord)
        assert held is not None
        assert held.record.lease is not None
        strange = replace(held.record, lease=replace(held.record.lease, since=since))
        await user.records.write(held.key, JobRecord, strange, held)
    await passes(Reconciler(await cluster.core(), "p"), 200.0)
    back = await job_now(user, job.id)
    assert (back.status, back.attempt, back.preemptions, back.agent_deaths) == ("pending", 2, 1, 1)
    assert back.history[-1].exit.message == "its agent a lives, but has dropped it"
    assert cluster.keys("pending/") == [entry_of(back).key()]
    assert (await agent_now(user, "a")).state == "live"
    beating.cancel()


async def test_a_job_that_every_agent_drops_fails_in_the_end(cluster: Cluster) -> None:
    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user, max_retries_failure=0)
    beating = asyncio.create_task(agent.beat_for_ever())
    coordinator = Reconciler(await cluster.core(), "p")
    for _ in range(3):
        await agent.claim()
        agent.holding.clear()
        await passes(coordinator, 300.0)
    assert (await job_now(user, job.id)).status == "failed"
    beating.cancel()


@pytest.mark.parametrize("beats", [0, 1])
async def test_a_job_stays_with_an_agent_that_may_not_have_listed_it_yet(cluster: Cluster, beats: int) -> None:
    """It claimed the job long ago; since the first look, so many beats have come that were composed before."""

    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user)
    await agent.claim(listed=False)
    listed = dict(agent.holding)
    coordinator = Reconciler(await cluster.core(), "p")
    agent.holding.clear()
    await cluster.clock.sleep(20.0)
    for _ in range(3):
        await coordinator.detector.look({})
        await coordinator.repair.run(coordinator.detector.live())
    for _ in range(beats):
        await agent.beat()
    await coordinator.detector.look({})
    await coordinator.repair.run(coordinator.detector.live())
    agent.holding.update(listed)
    await agent.beat()
    await coordinator.detector.look({})
    await coordinator.repair.run(coordinator.detector.live())
    assert (await job_now(user, job.id)).status == "running"


async def test_a_job_that_was_ended_just_before_it_would_be_put_back_stays_ended(cluster: Cluster) -> None:
    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user)
    held = await agent.claim()
    agent.holding.clear()
    beating = asyncio.create_task(agent.beat_for_ever())
    coordinator = Reconciler(await cluster.core(), "p")

    async def in_time() -> None:
        await agent.end(held)

    cluster.ways[-1].before["put", "jobs/"] = in_time
    await passes(coordinator, 300.0)
    assert cluster.ways[-1].before == {}, "it meant to put the job back"
    assert (await job_now(user, job.id)).status == "succeeded"
    beating.cancel()
