"""A job's way through the services, on the memory store in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fray_coordinator.jobs import notifications, pending_index
from fray_coordinator.jobs.claiming import Claimed, NotClaimed, try_claim
from fray_coordinator.jobs.submission import submit
from fray_coordinator.protocol.claiming import AVOIDED_HOST_SECONDS
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.store.interface import Applied, Expectation, Unknown
from fray_layouts.errors import InvalidInput
from fray_layouts.index_keys import PendingKey
from fray_layouts.object_keys import JobIds, JobKeys, NameKeys, PoolKeys
from fray_layouts.records import JobResult
from fray_layouts.spec_parsing import parse_spec
from tests.support.scripted_agents import job_now, join, launch
from tests.support.virtual import Cluster

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
    connection, put = cluster.connections[0], cluster.connections[0].put

    async def lossy(key: str, data: bytes, expect: Expectation) -> Applied:
        answer = await put(key, data, expect)
        if key.startswith("jobs/"):
            connection.put = put  # type: ignore[method-assign]
            await agent.claim()
            raise Unknown("the reply was lost")
        return answer

    connection.put = lossy  # type: ignore[method-assign]
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
    assert (submitted.writes, submitted.lists, submitted.reads) == (3, 0, 1), "it confirms the root in the end"
    assert (ran.writes, ran.lists, ran.reads) == (2, 1, 2), "the claim confirms the root"
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
    assert {s[0].job.id for s in sent} == {JobIds.given("", "job", "monday")}
    assert sorted(s[0].found for s in sent) == [False, True, True, True]
    assert cluster.keys("jobs/") == [JobKeys.key(JobIds.given("", "job", "monday"))]
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
        {"name": "job", "id": "2024-01-" + JobIds.given("", "job", "2024-01").rpartition("-")[2]},
    ],
)
async def test_other_words_are_another_job_even_if_they_read_the_same(cluster: Cluster, other: dict[str, Any]) -> None:
    user = await cluster.core()
    first = await launch(user, name="job", id="2024-01")
    second = await launch(user, **{"name": "job", "id": "2024-01", **other})
    assert first.id != second.id


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
async def test_another_submission_under_an_id_is_refused(cluster: Cluster, other: dict[str, Any], field: str) -> None:
    user = await cluster.core()
    first = await launch(user, id="monday")
    with pytest.raises(InvalidInput, match=f"{first.id} was submitted under it with another {field}") as told:
        await launch(user, id="monday", **other)
    assert "hunter2" not in str(told.value)
    assert cluster.keys("jobs/") == [JobKeys.key(first.id)]


async def test_another_submitter_finds_the_job_of_an_id_too(cluster: Cluster) -> None:
    user = await cluster.core()
    first = await launch(user, id="monday", user="ann")
    found = await launch(user, id="monday", user="ben")
    assert (found.id, found.spec.user) == (first.id, "ann")


async def test_a_child_that_names_no_user_is_of_its_parents(cluster: Cluster) -> None:
    agent, user = await join(cluster, "a"), await cluster.core()
    parent = await launch(user, user="ann")
    await agent.claim()
    assert (await launch(user, name="child", parent=parent.id)).spec.user == "ann"
    assert (await launch(user, name="other", parent=parent.id, user="ben")).spec.user == "ben"


async def test_a_large_callable_that_is_no_base64_is_refused(cluster: Cluster) -> None:
    with pytest.raises(InvalidInput, match="base64"):
        await launch(await cluster.core(), entrypoint={"callable": {"pickle": "a" * 100_001}})
    assert cluster.keys("jobs/") == cluster.keys("pending/") == []


async def test_a_large_callable_is_an_object_of_its_own_and_keeps_its_metadata(cluster: Cluster) -> None:
    user = await cluster.core()
    call = {"pickle": "A" * 100_000, "name": "trainer.train", "python": "3.12"}
    (done,) = await submit(user, [parse_spec({**SPEC, "entrypoint": {"callable": call}})])
    stored = done.job.spec.entrypoint.callable
    assert stored is not None
    assert (stored.pickle, stored.name, stored.python) == ("", "trainer.train", "3.12")
    assert await user.store.get(stored.blob) is not None


async def test_a_default_that_is_written_out_is_the_same_submission(cluster: Cluster) -> None:
    """It also is if somebody has written the record again."""

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


async def test_an_explicit_default_submits_the_same_spec(cluster: Cluster) -> None:
    user = await cluster.core()
    written_out: dict[str, Any] = {"grace": 10.0, "resources": {"cpu": 1.0}}
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


async def test_the_entry_of_a_job_that_restarts_at_once_stays(cluster: Cluster) -> None:
    """Perhaps no heartbeat lists the job so far, and then only its entry leads to it if the agent dies."""
    agent = await join(cluster, "a")
    job = await launch(await cluster.core(), max_retries_failure=1)
    again = await agent.end(await agent.claim(listed=False), "exited", restart=True)
    assert again is not None
    assert (again.status, again.attempt, again.lease and again.lease.agent) == ("running", 2, "a")
    assert cluster.keys("pending/") == [entry_of(job).key()]


async def test_an_entry_whose_record_has_not_come_yet_is_tried_again_soon(cluster: Cluster) -> None:
    core = await cluster.core()
    job = await launch(core)
    await core.store.delete(JobKeys.key(job.id))
    found = await try_claim(core, entry_of(job), "a", "a")
    assert found == NotClaimed(core.now() + core.settings.poll_interval, 0)


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


async def test_a_ring_changes_the_doorbell_also_beside_other_rings(cluster: Cluster) -> None:
    cores = [await cluster.core() for _ in range(3)]
    await asyncio.gather(*(notifications.ring(core, "default") for core in cores))
    first = await cores[0].store.get(PoolKeys.doorbell("default"))
    await notifications.ring(cores[0], "default")
    second = await cores[0].store.get(PoolKeys.doorbell("default"))
    assert first is not None
    assert second is not None
    assert first.version != second.version
