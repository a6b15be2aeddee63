"""A job's way through the services, on the memory store in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fray_coordinator.errors import JobNotFound, ParentNotRunning
from fray_coordinator.jobs import (
    cascade,
    doorbell,
    pending_index,
    stopping,
)
from fray_coordinator.jobs.claiming import Claimed, NotClaimed, try_claim
from fray_coordinator.jobs.submission import submit
from fray_coordinator.protocol.claiming import AVOIDED_HOST_SECONDS
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.store.interface import (
    ANY,
    Applied,
    Expectation,
    Unknown,
)
from fray_layouts.errors import InvalidInput
from fray_layouts.object_keys import (
    AgentKeys,
    ChildKey,
    JobId,
    JobKeys,
    NameKeys,
    PendingKey,
    PoolKeys,
)
from fray_layouts.records import Holding, JobRecord, JobResult
from fray_layouts.spec import parse_spec
from tests.support.participants import Hand, agent_now, job_now, join, launch, passes
from tests.support.virtual import Cluster, run

SPEC: dict[str, Any] = {"name": "job", "entrypoint": {"command": ["true"]}}


async def test_a_job_is_submitted_claimed_and_committed(cluster: Cluster) -> None:
    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user)
    assert (job.status, job.attempt, cluster.keys("pending/")) == ("pending", 1, [entry_of(job).key()])
    held = await agent.claim()
    assert held.record.lease is not None
    assert (held.record.status, held.record.lease.agent) == ("running", "a")
    done = await agent.end(held, result=JobResult(encoding="json", value=7))
    assert done is not None
    assert done.result is not None
    assert (done.status, done.result.value) == ("succeeded", 7)
    assert cluster.keys("pending/") == []


async def test_a_job_is_new_to_its_submitter_even_if_the_reply_was_lost_and_it_was_claimed_meanwhile(
    cluster: Cluster,
) -> None:
    user, agent = await cluster.core(), await join(cluster, "a")
    way, put = cluster.ways[0], cluster.ways[0].put

    async def lossy(key: str, data: bytes, expect: Expectation) -> Applied:
        answer = await put(key, data, expect)
        if key.startswith("jobs/"):
            way.put = put  # type: ignore[method-assign]
            await agent.claim()
            raise Unknown("the reply was lost")
        return answer

    way.put = lossy  # type: ignore[method-assign]
    (done,) = await submit(user, [parse_spec(SPEC)])
    assert (done.found, done.job.status) == (False, "running")


async def test_one_small_job_costs_seven_writes_and_lists_and_eight_reads_at_most(cluster: Cluster) -> None:
    user, agent = await cluster.core(), await join(cluster, "a")
    before = [user.store.usage.snapshot(), agent.core.store.usage.snapshot()]
    await launch(user)
    submitted = user.store.usage - before[0]
    held = await agent.claim(listed=False)
    await pending_index.delete_entry(agent.core, entry_of(held.record))
    await agent.end(held)
    ran = agent.core.store.usage - before[1]
    assert (submitted.writes, submitted.lists, submitted.reads) == (3, 0, 0)
    assert (ran.writes, ran.lists, ran.reads) == (2, 1, 1)
    total = submitted + ran
    assert total.class_a <= 7
    assert total.class_b <= 8


async def test_submitting_many_rings_the_bell_once(cluster: Cluster) -> None:
    user = await cluster.core()
    before = user.store.usage.snapshot()
    await submit(user, [parse_spec(SPEC) for _ in range(50)])
    assert (user.store.usage - before).writes == 2 * 50 + 1


async def test_the_same_id_finds_the_first_job_however_often_and_at_once(cluster: Cluster) -> None:
    cores = [await cluster.core() for _ in range(4)]
    spec = parse_spec({**SPEC, "id": "monday"})
    sent = await asyncio.gather(*(submit(core, [spec]) for core in cores))
    assert {s[0].job.id for s in sent} == {JobId.given("", "job", "monday")}
    assert sorted(s[0].found for s in sent) == [False, True, True, True]
    assert cluster.keys("jobs/") == [JobKeys.key(JobId.given("", "job", "monday"))]
    again = await submit(cores[0], [spec])
    assert again[0].found


@pytest.mark.parametrize("name", ["train", "n" * 128])
@pytest.mark.parametrize("own", [{}, {"id": "1"}])
async def test_top_level_jobs_of_one_name_have_a_namespace_each_and_their_children_are_in_it(
    cluster: Cluster, name: str, own: dict[str, Any]
) -> None:
    user, agent = await cluster.core(), await join(cluster, "a")
    await launch(user, name=name, **own)
    first = (await agent.claim()).record
    second = await launch(user, name=name, **own and {"id": "2"})
    child = await launch(user, name="child", parent=first.id, **own)
    assert first.spec.namespace == child.spec.namespace == first.id
    assert second.spec.namespace == second.id != first.id
    if own:
        assert (await launch(user, name=name, **own)).id == first.id
    key = NameKeys.key(first.id, "job", "child")
    assert NameKeys.parse(key) == (first.id, "job", "child")


@pytest.mark.parametrize(
    "other",
    [
        {"name": "job-2024", "id": "01"},
        {"namespace": "lab"},
        {"name": "job", "id": "2024-01-" + JobId.given("", "job", "2024-01").rpartition("-")[2]},
    ],
)
def test_other_words_are_another_job_even_if_they_read_the_same(other: dict[str, Any]) -> None:
    async def main(cluster: Cluster) -> None:
        user = await cluster.core()
        first = await launch(user, name="job", id="2024-01")
        second = await launch(user, **{"name": "job", "id": "2024-01", **other})
        assert first.id != second.id

    run(main)


@pytest.mark.parametrize(
    ("other", "field"),
    [
        ({"entrypoint": {"command": ["false"]}}, "entrypoint.command"),
        ({"entrypoint": {"callable": {"pickle": "eA=="}}}, "entrypoint.command"),
        ({"resources": {"cpu": 2}}, "resources.cpu"),
        ({"environment": {"secret_env_vars": {"TOKEN": "hunter2"}}}, "environment.secret_env_vars"),
        ({"pool": "big"}, "pool"),
    ],
)
async def test_who_submits_something_else_under_an_id_is_told_so(
    cluster: Cluster, other: dict[str, Any], field: str
) -> None:
    user = await cluster.core()
    first = await launch(user, id="monday")
    with pytest.raises(InvalidInput, match=f"{first.id} was submitted under it with another {field}") as told:
        await launch(user, id="monday", **other)
    assert "hunter2" not in str(told.value)
    assert cluster.keys("jobs/") == [JobKeys.key(first.id)]


async def test_a_large_callable_that_is_no_base64_is_refused(cluster: Cluster) -> None:
    with pytest.raises(InvalidInput, match="base64"):
        await launch(await cluster.core(), entrypoint={"callable": {"pickle": "a" * 100_001}})
    assert cluster.keys("jobs/") == cluster.keys("pending/") == []


async def test_a_default_that_is_written_out_is_the_same_submission(cluster: Cluster) -> None:
    """Also once somebody has written the record again."""

    user = await cluster.core()
    spec = parse_spec({**SPEC, "id": "monday", "grace": 10.0, "resources": {"cpu": 1}})
    await submit(user, [spec])
    await (await join(cluster, "a")).claim()
    assert (await submit(user, [spec]))[0].found
    assert (await submit(user, [parse_spec({**SPEC, "id": "monday"})]))[0].found


async def test_a_callable_that_pickles_differently_is_still_the_same_submission(cluster: Cluster) -> None:
    user = await cluster.core()
    first = await launch(user, id="monday", entrypoint={"callable": {"pickle": "eA=="}})
    again = await launch(user, id="monday", entrypoint={"callable": {"pickle": "eQ=="}})
    assert first.id == again.id
    assert len(cluster.keys("jobs/")) == 1


async def test_who_writes_a_default_out_submits_the_same(cluster: Cluster) -> None:
    user = await cluster.core()
    written_out = {"grace": 10.0, "resources": {"cpu": 1.0}}
    first = await launch(user, id="monday", **written_out)
    again = await launch(user, id="monday", **written_out)
    left_out = await launch(user, id="monday")
    assert first.id == again.id == left_out.id


async def test_two_agents_claim_one_job_and_one_gets_it(cluster: Cluster) -> None:
    job = await launch(await cluster.core())
    agents = [await join(cluster, name) for name in ("a", "b")]
    results = await asyncio.gather(*(agent.try_claim() for agent in agents))
    winners = [r.job.record for r in results if isinstance(r, Claimed)]
    losers = [r for r in results if isinstance(r, NotClaimed)]
    assert len(winners) == len(losers) == 1
    assert losers[0] == NotClaimed(None, 1)
    assert await job_now(agents[0].core, job.id) == winners[0]


async def test_a_claim_that_was_applied_unnoticed_is_recognised_by_its_content(cluster: Cluster) -> None:
    await launch(await cluster.core())
    agent = await join(cluster, "a")
    first = await agent.try_claim()
    (entry,) = [PendingKey.parse(key) for key in cluster.keys("pending/")]
    assert entry is not None
    second = await try_claim(agent.core, entry, agent.id, agent.id, in_doubt=True)
    assert isinstance(first, Claimed)
    assert isinstance(second, Claimed)
    assert first.job.version == second.job.version
    assert isinstance(await agent.try_claim(), NotClaimed), "what it dropped it does not take up without a write"


async def test_a_failed_attempt_is_retried_after_its_back_off_and_then_fails(cluster: Cluster) -> None:
    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user, max_retries_failure=1)
    again = await agent.end(await agent.claim(), "exited")
    assert again is not None
    assert (again.status, again.attempt, again.failures) == ("pending", 2, 1)
    assert cluster.keys("pending/") == [entry_of(again).key()]
    early = await agent.try_claim()
    assert isinstance(early, NotClaimed)
    assert early.until == again.not_before
    await cluster.clock.sleep(again.not_before - user.now())
    last = await agent.end(await agent.claim(), "exited")
    assert last is not None
    assert (last.status, last.failures, [a.attempt for a in last.history]) == ("failed", 2, [1])
    assert cluster.keys("pending/") == []
    assert await job_now(user, job.id) == last


async def test_a_job_that_failed_to_start_is_left_to_other_hosts_for_a_while(cluster: Cluster) -> None:
    broken, fine = await join(cluster, "broken"), await join(cluster, "fine")
    await launch(await cluster.core())
    job = await broken.end(await broken.claim(), "start-failed")
    assert job is not None
    assert (job.status, job.failures, job.preemptions, job.avoid_hosts) == ("pending", 0, 0, ["broken"])
    await cluster.clock.sleep(1.0)
    refused = await broken.try_claim()
    assert isinstance(refused, NotClaimed)
    assert refused.until == job.not_before + AVOIDED_HOST_SECONDS
    assert (await fine.claim()).record.attempt == 2


# --- stop --------------------------------------------------------------------------------------------------------


async def test_a_pending_job_is_stopped_at_once_and_leaves_the_index(cluster: Cluster) -> None:
    user = await cluster.core()
    job = await launch(user)
    stopped = await stopping.stop(user, job.id, "changed my mind")
    assert stopped.exit is not None
    assert (stopped.status, stopped.exit.message) == ("stopped", "changed my mind")
    assert cluster.keys("pending/") == []
    assert await stopping.stop(user, job.id, "again") == stopped


async def test_a_running_job_gets_the_flag_and_its_agent_mail(cluster: Cluster) -> None:
    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user, max_retries_failure=5)
    held = await agent.claim()
    flagged = await stopping.stop(user, job.id, "enough")
    assert flagged.stop is not None
    assert (flagged.status, flagged.stop.reason) == ("running", "enough")
    assert (await agent_now(user, "a")).mail
    await agent.beat()
    assert not (await agent_now(user, "a")).mail
    ended = await agent.end(held, "signalled", complete_before_stop=False)
    assert ended is not None
    assert (ended.status, ended.attempt) == ("stopped", 1)


async def test_a_running_job_is_stopped_although_its_agents_record_is_none(cluster: Cluster) -> None:
    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user)
    await agent.claim()
    await user.store.put(AgentKeys.key("a"), b"garbage", ANY)
    assert (await stopping.stop(user, job.id, "enough")).stop is not None


@pytest.mark.parametrize(("complete", "status"), [(True, "succeeded"), (False, "stopped")])
async def test_a_result_counts_if_it_was_complete_before_sigterm(cluster: Cluster, complete: bool, status: str) -> None:
    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user)
    held = await agent.claim()
    await stopping.stop(user, job.id, "enough")
    ended = await agent.end(held, "success", complete_before_stop=complete)
    assert ended is not None
    assert ended.status == status


async def test_stopping_what_does_not_exist_says_so(cluster: Cluster) -> None:
    with pytest.raises(JobNotFound, match="job-nothing"):
        await stopping.stop(await cluster.core(), "job-nothing", "")


async def test_a_job_that_waits_too_long_is_stopped_and_says_why(cluster: Cluster) -> None:
    user = await cluster.core()
    job = await launch(user, pending_timeout=100.0)
    coordinator = Reconciler(user, "p")
    await passes(coordinator, 90)
    assert (await job_now(user, job.id)).status == "pending"
    await passes(coordinator, 80)
    stopped = await job_now(user, job.id)
    assert stopped.stop is not None
    assert (stopped.status, stopped.stop.by) == ("stopped", "expired")
    assert cluster.keys("pending/") == []


async def test_the_time_that_an_earlier_attempt_ran_is_not_time_spent_pending(cluster: Cluster) -> None:
    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user, pending_timeout=100.0)
    held = await agent.claim()
    await cluster.clock.sleep(1000.0)
    await agent.end(held, "preempted")
    await Reconciler(user, "p").try_pass()
    assert (await job_now(user, job.id)).status == "pending"
    await cluster.clock.sleep(50.0)
    assert (await agent.claim()).record.attempt == 2


async def test_a_job_claimed_in_its_last_moment_is_not_stopped_for_waiting(cluster: Cluster) -> None:
    """The repair reads the job while it waits; an agent claims it in time; then the repair looks at the clock."""

    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user, pending_timeout=10.0)
    coordinator = Reconciler(await cluster.core(), "p")

    async def in_time() -> None:
        await agent.claim()
        await cluster.clock.sleep(20.0)

    cluster.ways[-1].before["list", "pending/"] = in_time
    await coordinator.detector.look({})
    await coordinator.repair.run(coordinator.detector.live())
    kept = await job_now(user, job.id)
    assert (kept.status, kept.stop) == ("running", None)


# --- families ----------------------------------------------------------------------------------------------------


async def _family(cluster: Cluster, **child: Any) -> tuple[Hand, Any, JobRecord]:
    """An agent that runs a parent, the parent's lease, and a child."""
    agent = await join(cluster, "a")
    parent = await launch(agent.core, name="parent", max_retries_failure=3)
    held = await agent.claim()
    await pending_index.delete_entry(agent.core, entry_of(held.record))
    return agent, held, await launch(agent.core, name="child", parent=parent.id, **child)


async def test_a_child_is_entered_before_it_exists_and_ends_with_its_parent(cluster: Cluster) -> None:
    agent, held, child = await _family(cluster)
    assert cluster.keys("children/") == [ChildKey(held.record.id, 1, child.id).key()]
    assert await cascade.stop_children(agent.core, held.record.id) == 1
    assert (await job_now(agent.core, child.id)).status == "pending"
    await agent.end(held)
    assert await cascade.stop_children(agent.core, held.record.id) == 0
    assert (await job_now(agent.core, child.id)).status == "stopped"
    assert cluster.keys("pending/") == []


async def test_the_pass_ends_the_children_of_a_parent_that_ended(cluster: Cluster) -> None:
    agent, held, child = await _family(cluster)
    await agent.end(held)
    await Reconciler(await cluster.core(), "p").try_pass()
    assert (await job_now(agent.core, child.id)).status == "stopped"
    await cluster.clock.sleep(60.0)


async def test_a_detached_child_outlives_its_parent(cluster: Cluster) -> None:
    agent, held, child = await _family(cluster, detached=True)
    await agent.end(held)
    await Reconciler(await cluster.core(), "p").try_pass()
    assert (await job_now(agent.core, child.id)).status == "pending"
    assert (await agent.claim()).record.id == child.id


async def test_a_child_of_an_attempt_that_is_over_is_stopped_by_its_claimer(cluster: Cluster) -> None:
    agent, held, child = await _family(cluster)
    await agent.end(held)
    assert await agent.try_claim() == NotClaimed(None, 0)
    stopped = await job_now(agent.core, child.id)
    assert stopped.stop is not None
    assert (stopped.status, stopped.stop.by) == ("stopped", "parent")


async def test_nobody_becomes_the_child_of_a_job_that_does_not_run(cluster: Cluster) -> None:
    user = await cluster.core()
    parent = await launch(user)
    with pytest.raises(ParentNotRunning, match="pending"):
        await launch(user, parent=parent.id)
    with pytest.raises(ParentNotRunning, match="unknown"):
        await launch(user, parent="nobody-1")
    assert cluster.keys("children/") == []


async def _second_attempt(cluster: Cluster, agent: Hand, held: Any) -> Any:
    """The parent fails and runs again; whatever else is in the index waits."""
    again = await agent.end(held, "exited")
    assert again is not None
    await cluster.clock.sleep(5.0)
    lease = await agent.core.records.read(JobKeys.key(again.id), JobRecord)
    assert lease is not None
    claimed = await try_claim(agent.core, entry_of(lease.record), agent.id, agent.id)
    assert isinstance(claimed, Claimed)
    agent.holding[again.id] = Holding(attempt=claimed.job.record.attempt)
    await agent.beat()
    return claimed.job


async def test_the_next_attempt_adopts_the_child_that_it_submits_again(cluster: Cluster) -> None:
    agent, held, child = await _family(cluster, id="mine")
    again = await _second_attempt(cluster, agent, held)
    adopted = await launch(agent.core, name="child", parent=again.record.id, id="mine")
    assert adopted.id == child.id
    assert adopted.parent is not None
    assert adopted.parent.attempt == 2
    assert ChildKey(again.record.id, 2, child.id).key() in cluster.keys("children/")
    await Reconciler(await cluster.core(), "p").try_pass()
    await cluster.clock.sleep(500.0)
    await cascade.stop_children(agent.core, again.record.id)
    assert (await job_now(agent.core, child.id)).status == "pending"
    assert cluster.keys("children/") == [ChildKey(again.record.id, 2, child.id).key()]


async def test_a_child_with_an_id_that_is_not_adopted_in_time_is_stopped(cluster: Cluster) -> None:
    agent, held, child = await _family(cluster, id="mine")
    again = await _second_attempt(cluster, agent, held)
    await cascade.stop_children(agent.core, again.record.id)
    assert (await job_now(agent.core, child.id)).status == "pending"
    await cluster.clock.sleep(agent.core.settings.repair_interval + 1)
    await cascade.stop_children(agent.core, again.record.id)
    assert (await job_now(agent.core, child.id)).status == "stopped"


async def test_a_cascade_that_is_overtaken_by_an_adoption_lets_the_child_live(cluster: Cluster) -> None:
    """The cascade judged the child as one of attempt 1; before it writes, attempt 2 adopts the child."""

    agent, held, child = await _family(cluster, id="mine")
    again = await _second_attempt(cluster, agent, held)
    await cluster.clock.sleep(agent.core.settings.repair_interval + 1)
    slow = await cluster.core()

    async def adopt() -> None:
        await launch(agent.core, name="child", parent=again.record.id, id="mine")

    cluster.ways[-1].before["put", "jobs/"] = adopt
    await cascade.stop_children(slow, again.record.id)
    kept = await job_now(agent.core, child.id)
    assert kept.parent is not None
    assert (kept.status, kept.stop, kept.parent.attempt) == ("pending", None, 2)


async def test_a_ring_changes_the_doorbell_whoever_else_rings(cluster: Cluster) -> None:
    cores = [await cluster.core() for _ in range(3)]
    await asyncio.gather(*(doorbell.ring(core, "default") for core in cores))
    first = await cores[0].store.get(PoolKeys.doorbell("default"))
    await doorbell.ring(cores[0], "default")
    second = await cores[0].store.get(PoolKeys.doorbell("default"))
    assert first is not None
    assert second is not None
    assert first.version != second.version
