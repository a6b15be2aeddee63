"""The slow repair: it finds objects that hints and indexes missed, and removes objects that nobody needs, in order."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from fray_coordinator.core import Core
from fray_coordinator.jobs import pending_index
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.store.interface import ABSENT, ANY
from fray_layouts.bounds import MAX_TIME
from fray_layouts.index_keys import PendingKey
from fray_layouts.object_keys import AgentKeys, JobKeys
from fray_layouts.records import JobRecord
from tests.support.scripted_agents import agent_now, job_now, join, launch, passes
from tests.support.virtual import Cluster

QUARANTINE = 600.0
DAY = 86400.0


async def repaired(cluster: Cluster) -> Reconciler:
    """One repair by a new participant."""
    newcomer = Reconciler(await cluster.core(), "newcomer")
    await newcomer.try_pass()
    return newcomer


async def orphaned_entry(core: Core) -> str:
    """The entry of a submitter that died after its first write."""
    job = JobRecord(id="job-lost", spec=(await launch(core)).spec, status="pending", submitted_at=core.now())
    await pending_index.create_entry(core, job)
    return entry_of(job).key()


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
    """Its record is created while a sweeper handles its entry: before the look, or just before the delete."""

    user = await cluster.core()
    gate = asyncio.Event()
    late = await cluster.core()
    cluster.connections[-1].before["put", "jobs/"] = gate.wait
    submitting = asyncio.create_task(launch(late))
    await cluster.clock.sleep(QUARANTINE + 1.0)

    async def go_on() -> None:
        gate.set()
        await submitting

    sweeper = Reconciler(await cluster.core(), "sweeper")
    cluster.connections[-1].before[step] = go_on
    await sweeper.try_pass()
    job = submitting.result()
    assert (await job_now(user, job.id)).status == "pending"
    assert cluster.keys("pending/") == [entry_of(job).key()]


async def test_a_submitter_whose_entry_was_swept_meanwhile_writes_it_again(cluster: Cluster) -> None:
    gate = asyncio.Event()
    late = await cluster.core()
    cluster.connections[-1].before["put", "jobs/"] = gate.wait
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
    """Two submitters of one id wrote an entry each, and one of them made the record."""

    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user, id="monday")
    await pending_index.create_entry(user, replace(job, submitted_at=job.submitted_at + 1.0))
    assert len(cluster.keys("pending/")) == 2
    held = await agent.claim()
    await repaired(cluster)
    assert cluster.keys("pending/") == []
    await agent.end(held)


async def test_a_job_whose_agent_is_gone_without_a_trace_is_requeued(cluster: Cluster) -> None:
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


async def test_many_jobs_are_repaired_with_few_reads(cluster: Cluster) -> None:
    """Only records that changed since the last repair are read."""

    user = await cluster.core()
    jobs = [await launch(user, name=f"job{n}") for n in range(30)]
    coordinator = Reconciler(user, "p")
    await passes(coordinator, 130.0)
    before = user.store.usage.snapshot()
    await coordinator.repair.run({})
    spent = user.store.usage - before
    assert (spent.lists, spent.reads, spent.writes) == (6, 0, 0)
    assert {entry.job for key in cluster.keys("pending/") if (entry := PendingKey.parse(key))} == {j.id for j in jobs}


# --- jobs that a live holder has dropped -------------------------------------------------------------------------


@pytest.mark.parametrize("since", [None, MAX_TIME], ids=["", "by a lease from the future"])
async def test_a_job_that_its_live_agent_has_dropped_is_requeued(cluster: Cluster, since: float | None) -> None:
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
    """It claimed the job long ago. All beats since the first look were composed before the claim was known."""

    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user)
    await agent.claim(listed=False)
    listed = dict(agent.holding)
    coordinator = Reconciler(await cluster.core(), "p")
    agent.holding.clear()
    await cluster.clock.sleep(20.0)
    for _ in range(3):
        await coordinator.detector.observe_agents({})
        await coordinator.repair.run(coordinator.detector.live())
    for _ in range(beats):
        await agent.beat()
    await coordinator.detector.observe_agents({})
    await coordinator.repair.run(coordinator.detector.live())
    agent.holding.update(listed)
    await agent.beat()
    await coordinator.detector.observe_agents({})
    await coordinator.repair.run(coordinator.detector.live())
    assert (await job_now(user, job.id)).status == "running"


async def test_a_job_that_was_ended_just_before_it_would_be_requeued_stays_ended(cluster: Cluster) -> None:
    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user)
    held = await agent.claim()
    agent.holding.clear()
    beating = asyncio.create_task(agent.beat_for_ever())
    coordinator = Reconciler(await cluster.core(), "p")

    async def in_time() -> None:
        await agent.end(held)

    cluster.connections[-1].before["put", "jobs/"] = in_time
    await passes(coordinator, 300.0)
    assert cluster.connections[-1].before == {}, "it meant to requeue the job"
    assert (await job_now(user, job.id)).status == "succeeded"
    beating.cancel()
