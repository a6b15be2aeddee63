"""If the store never answers for one object, no pass, search or look stops at it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from fray_agents.agent.agent import Agent, AgentOptions
from fray_agents.host import agent_lock
from fray_coordinator.actors.naming import lookup, publish
from fray_coordinator.errors import StoreUnavailable
from fray_coordinator.jobs.lookup import jobs_by_id
from fray_coordinator.jobs.stopping import stop
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.reconcile.admission import Admission
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.store.interface import ANY
from fray_layouts.object_keys import AgentKeys, EndpointKey, JobKeys
from fray_layouts.records import EndpointRecord, Resources
from fray_layouts.spec import MAX_INLINE_BYTES
from fray_layouts.work_keys import InboxKeys, WorkKeys
from tests.support.fake_tasks import fake
from tests.support.scripted_agents import agent_now, job_now, join, launch, pass_now, passes
from tests.support.virtual import Cluster, StoreConnection

HOST = Resources(cpu=4000, memory=2**33, disk=2**33)
SPEC = json.dumps({"name": "job", "entrypoint": {"command": ["true"]}}).encode()
READS, WRITES = ("get", "get_if_changed"), ("put", "delete")
EITHER = pytest.mark.parametrize("verbs", [READS, WRITES], ids=["reads", "writes"])


def silence(connection: StoreConnection, key: str, verbs: tuple[str, ...] = READS) -> None:
    connection.unanswered += [(verb, key) for verb in verbs]


async def test_an_agents_record_that_is_not_answered_keeps_no_death_from_being_seen(cluster: Cluster) -> None:
    user, core = await cluster.core(), await cluster.core()
    odd, _silent = await join(cluster, "odd"), await join(cluster, "silent")
    silence(cluster.connections[1], AgentKeys.key(odd.id))
    beating = asyncio.create_task(odd.beat_for_ever())
    await passes(Reconciler(core, "p"), 50.0, every=4.0)
    assert (await agent_now(user, "silent")).state == "dead"
    assert "HTTP 500" in (await pass_now(user)).problems[AgentKeys.key("odd")]
    assert (await agent_now(user, "odd")).state == "live"
    beating.cancel()


async def test_a_dead_holder_of_the_pass_whose_record_is_not_answered_is_followed(cluster: Cluster) -> None:
    user, core, holder = await cluster.core(), await cluster.core(), await join(cluster, "holder")
    assert await Reconciler(user, holder.id).try_pass()
    silence(cluster.connections[1], AgentKeys.key(holder.id))
    successor, begun = Reconciler(core, "p"), cluster.clock.boottime()
    for _ in range(8):  # the lease is three intervals of 7.5 s old after the fourth look
        await successor.try_pass()
        await core.clock.sleep(8.0)
    assert (await pass_now(user)).holder == "p"
    assert cluster.clock.boottime() - begun < 80.0


async def test_a_jobs_record_that_is_not_answered_keeps_no_other_from_being_repaired(cluster: Cluster) -> None:
    user, core = await cluster.core(), await cluster.core()
    odd, sound = await launch(user), await launch(user)
    await user.store.delete(entry_of(sound).key())
    silence(cluster.connections[1], JobKeys.key(odd.id))
    await passes(Reconciler(core, "p"), 40.0)
    assert entry_of(sound).key() in cluster.keys("pending/")
    assert "HTTP 500" in (await pass_now(user)).problems[JobKeys.key(odd.id)]


async def test_a_job_whose_record_is_not_answered_hides_no_other_and_is_not_taken_for_gone(cluster: Cluster) -> None:
    user, core = await cluster.core(), await cluster.core()
    odd, sound = await launch(user), await launch(user)
    silence(cluster.connections[1], JobKeys.key(odd.id))
    begun, problems = cluster.clock.boottime(), dict[str, str]()
    found = await jobs_by_id(core, [odd.id, sound.id, "gone-1"], problems)
    assert {job: record is not None for job, record in found.items()} == {sound.id: True, "gone-1": False}
    assert list(problems) == [JobKeys.key(odd.id)]
    assert cluster.clock.boottime() - begun < 10.0


@EITHER
async def test_a_file_that_is_not_answered_keeps_no_other_from_becoming_a_job(
    cluster: Cluster, verbs: tuple[str, ...]
) -> None:
    user, core = await cluster.core(), await cluster.core()
    silence(cluster.connections[1], InboxKeys.key("a"), (*verbs, "withdraw"))
    coordinator = Reconciler(core, "p")
    await user.store.put(InboxKeys.key("a"), SPEC, ANY)
    for number in range(4):
        await user.store.put(InboxKeys.key(f"b{number}"), SPEC, ANY)
        await passes(coordinator, 24.0 if verbs is READS else 80.0)  # its round ends when its requests end
        assert not cluster.keys("inbox/b")
    await passes(coordinator, 90.0)
    assert "HTTP 500" in (await pass_now(user)).problems[InboxKeys.key("a")]


async def test_a_file_that_cannot_be_taken_away_delays_no_later_one(cluster: Cluster) -> None:
    user, core = await cluster.core(), await cluster.core()
    await user.store.put(InboxKeys.key("a"), SPEC, ANY)
    silence(cluster.connections[1], InboxKeys.key("a"), ("withdraw",))
    admission, longest = Admission(core), 0.0
    for _ in range(5):
        begun = cluster.clock.boottime()
        await admission.run()
        longest = max(longest, cluster.clock.boottime() - begun)
        await cluster.clock.sleep(10.0)
    assert longest < 15.0
    assert "HTTP 500" in admission.problems[InboxKeys.key("a")]


@pytest.mark.parametrize("written", [False, True], ids=["its record", "its admission"])
async def test_a_files_job_that_cannot_be_written_delays_no_later_file(cluster: Cluster, written: bool) -> None:
    user, core = await cluster.core(), await cluster.core()
    await user.store.put(InboxKeys.key("odd"), SPEC.replace(b"job", b"odd"), ANY)
    connection, admission = cluster.connections[1], Admission(core)

    async def silent_from_now_on() -> None:
        silence(connection, f"{JobKeys.area}odd", WRITES)

    async def once_more() -> None:
        connection.before["get", InboxKeys.key("odd")] = silent_from_now_on

    connection.before["get", InboxKeys.key("odd")] = once_more if written else silent_from_now_on
    begun = cluster.clock.boottime()
    await admission.run()
    assert cluster.clock.boottime() - begun < 15.0
    assert "HTTP 500" in admission.problems[InboxKeys.key("odd")]
    assert len(cluster.keys("jobs/odd")) == written
    connection.unanswered = []
    await passes(Reconciler(core, "p"), 40.0)
    (key,) = cluster.keys("jobs/")
    assert (await job_now(user, JobKeys.parse(key) or "")).status == "pending"
    assert cluster.keys("inbox/") == []


async def test_an_endpoint_that_is_not_answered_hides_no_other_of_its_name(cluster: Cluster) -> None:
    user, core = await cluster.core(), await cluster.core()
    for member in ("a", "b"):
        record = EndpointRecord(namespace="ns", name="n", actor_id=member, nonce=member, address="h:1")
        await publish(user, record, singleton=False)
    silence(cluster.connections[1], EndpointKey("ns", "n", "a").key())
    begun = cluster.clock.boottime()
    assert [found.actor_id for found in await lookup(core, "ns", "n")] == ["b"]
    assert cluster.clock.boottime() - begun < 10.0


async def test_an_outage_is_not_told_as_the_trouble_of_the_objects_that_it_meets(cluster: Cluster) -> None:
    core = await cluster.core()
    for name in ("a", "b"):
        await join(cluster, name)
    await launch(core)
    coordinator = Reconciler(core, "p")

    async def outage() -> None:
        cluster.connections[0].unanswered = [(verb, "") for verb in (*READS, *WRITES)]

    cluster.connections[0].before["get", AgentKeys.area] = outage
    with pytest.raises(StoreUnavailable):
        await passes(coordinator, 60.0)
    assert coordinator.problems == {}


async def test_an_actor_is_looked_up_through_an_outage_with_an_odd_object_in_its_folder(cluster: Cluster) -> None:
    core = await cluster.core()
    endpoint = EndpointRecord(namespace="n", name="a", actor_id="1", nonce="x", address="h:1")
    await publish(core, endpoint, singleton=False)
    await core.store.put(EndpointKey("n", "a", "odd").key(), b"garbage", ANY)

    async def outage() -> None:
        cluster.cut()
        asyncio.get_running_loop().call_later(20.0, cluster.cut, False)

    cluster.connections[0].before["get", EndpointKey.area] = outage
    (found,) = await lookup(core, "n", "a")
    assert found.actor_id == "1"


async def test_a_full_disk_is_an_outage_though_everything_can_be_read(cluster: Cluster) -> None:
    user, core = await cluster.core(), await cluster.core()
    jobs = [await launch(user) for _ in range(3)]
    for job in jobs:
        await user.store.delete(entry_of(job).key())

    async def full() -> None:
        cluster.connections[1].read_only = True

    cluster.connections[1].before["put", "pending/"] = full
    coordinator = Reconciler(core, "p")
    reading = asyncio.create_task(passes(coordinator, 300.0))
    with pytest.raises(StoreUnavailable):
        await reading
    await cluster.clock.sleep(120.0)  # the requests that the pass has begun end too
    assert coordinator.problems == {}


@EITHER
async def test_a_jobs_record_that_is_not_answered_keeps_no_agent_from_claiming_others(
    cluster: Cluster, verbs: tuple[str, ...], tmp_path: Path
) -> None:
    user, core = await cluster.core(), await cluster.core(local=False)
    odd = await launch(user, priority=1, resources={"cpu": 4})
    silence(cluster.connections[1], JobKeys.key(odd.id), verbs)
    options = AgentOptions(capacity=HOST, work_dir=tmp_path, start_task=fake(tmp_path, {"job": 5.0}))
    agent = Agent(core, options)
    running = asyncio.create_task(agent.run())
    for _ in range(2):
        job = await launch(user, resources={"cpu": 4})
        await asyncio.sleep(12 if verbs is READS else 120)
        assert (await job_now(user, job.id)).status == "succeeded"
    cluster.connections[1].unanswered = []
    await asyncio.sleep(180)
    assert (await job_now(user, odd.id)).status == "succeeded"
    agent.terminate()
    await running


async def test_a_claim_that_proves_won_once_others_have_its_room_is_requeued(cluster: Cluster, tmp_path: Path) -> None:
    user, core = await cluster.core(), await cluster.core(local=False)
    odd = await launch(user, priority=1, resources={"cpu": 4})
    silence(cluster.connections[1], JobKeys.key(odd.id), WRITES)
    options = AgentOptions(capacity=HOST, work_dir=tmp_path, start_task=fake(tmp_path, {"job": 300.0}))
    agent = Agent(core, options)
    running = asyncio.create_task(agent.run())
    other = await launch(user, resources={"cpu": 4})
    await asyncio.sleep(120)
    cluster.connections[1].unanswered = []
    await asyncio.sleep(60)
    waits = await job_now(user, odd.id)
    assert (waits.status, waits.attempt, waits.preemptions) == ("pending", 2, 1)
    assert (await job_now(user, other.id)).status == "running"
    await asyncio.sleep(600)
    assert (await job_now(user, odd.id)).status == "succeeded"
    agent.terminate()
    await running


async def test_a_job_whose_end_is_not_taken_keeps_no_other_from_its_room(cluster: Cluster, tmp_path: Path) -> None:
    user, core = await cluster.core(), await cluster.core(local=False)
    options = AgentOptions(capacity=HOST, work_dir=tmp_path, start_task=fake(tmp_path, {"job": 60.0}))
    agent = Agent(core, options)
    running = asyncio.create_task(agent.run())
    odd = await launch(user, resources={"cpu": 4})
    await asyncio.sleep(20)
    assert (await job_now(user, odd.id)).status == "running"
    silence(cluster.connections[1], JobKeys.key(odd.id), WRITES)
    other = await launch(user, resources={"cpu": 4})
    await asyncio.sleep(240)
    assert (await job_now(user, other.id)).status == "succeeded"
    assert (await job_now(user, odd.id)).status == "running"
    cluster.connections[1].unanswered = []
    await asyncio.sleep(60)
    ended = await job_now(user, odd.id)
    assert (ended.status, ended.attempt) == ("succeeded", 1)
    agent.terminate()
    await running


@pytest.mark.parametrize(("output", "result"), [(b"line", None), (b"", bytes(MAX_INLINE_BYTES + 1))])
async def test_an_upload_that_is_not_answered_keeps_no_other_job_from_its_room(
    cluster: Cluster, output: bytes, result: bytes | None, tmp_path: Path
) -> None:
    user, core = await cluster.core(), await cluster.core(local=False)
    task = fake(tmp_path, {"job": 60.0}, output, result)
    agent = Agent(core, AgentOptions(capacity=HOST, work_dir=tmp_path, start_task=task))
    running = asyncio.create_task(agent.run())
    odd = await launch(user, resources={"cpu": 4})
    await asyncio.sleep(20)
    silence(cluster.connections[1], WorkKeys.prefix(odd.id), WRITES)
    other = await launch(user, resources={"cpu": 4})
    await asyncio.sleep(400)
    assert (await job_now(user, other.id)).status == "succeeded"
    assert (await job_now(user, odd.id)).status == "running"
    cluster.connections[1].unanswered = []
    await asyncio.sleep(60)
    ended = await job_now(user, odd.id)
    assert (ended.status, ended.attempt) == ("succeeded", 1)
    agent.terminate()
    await running


async def test_an_upload_that_failed_before_the_agent_was_asked_to_leave_is_tried_once_more(
    cluster: Cluster, tmp_path: Path
) -> None:
    user, core = await cluster.core(), await cluster.core(local=False)
    task = fake(tmp_path, {"job": 10.0}, b"", bytes(MAX_INLINE_BYTES + 1))
    agent = Agent(core, AgentOptions(capacity=HOST, work_dir=tmp_path, start_task=task))
    running = asyncio.create_task(agent.run())
    job = await launch(user)
    silence(cluster.connections[1], WorkKeys.prefix(job.id), WRITES)
    await asyncio.sleep(60)
    assert (await job_now(user, job.id)).status == "running"
    agent.terminate()
    await asyncio.sleep(25)  # the request that was under way is given up meanwhile
    cluster.connections[1].unanswered = []
    await asyncio.wait_for(running, 100.0)
    ended = await job_now(user, job.id)
    assert (ended.status, ended.attempt) == ("succeeded", 1)


@pytest.mark.parametrize("area", ["jobs/", "work/"])
async def test_a_leaving_agent_does_not_wait_for_unanswered_requests(
    cluster: Cluster, area: str, tmp_path: Path
) -> None:
    user, core = await cluster.core(), await cluster.core(local=False)
    task = fake(tmp_path, {"job": 1000.0}, b"line")
    agent = Agent(core, AgentOptions(capacity=HOST, work_dir=tmp_path, start_task=task))
    running = asyncio.create_task(agent.run())
    odd = await launch(user)
    await asyncio.sleep(20)
    silence(cluster.connections[1], area, WRITES)
    agent.terminate()
    await asyncio.wait_for(running, 150.0)
    await passes(Reconciler(user, "p"), 60.0)
    waits = await job_now(user, odd.id)
    assert (waits.status, waits.attempt) == ("pending", 2)


@pytest.mark.parametrize("how", ["unanswered", "refused"])
async def test_a_job_that_is_not_answered_for_keeps_no_other_of_its_agent_from_being_stopped(
    cluster: Cluster, how: str, tmp_path: Path
) -> None:
    user, core = await cluster.core(), await cluster.core(local=False)
    options = AgentOptions(capacity=HOST, work_dir=tmp_path, start_task=fake(tmp_path, {"job": 1000.0}))
    agent = Agent(core, options)
    running = asyncio.create_task(agent.run())
    odd = await launch(user)
    await asyncio.sleep(20)
    wanted = await launch(user)
    await asyncio.sleep(20)
    connection = cluster.connections[1]
    getattr(connection, how).append(("get_if_changed", JobKeys.key(odd.id)))
    connection.before["get_if_changed", JobKeys.key(wanted.id)] = lambda: asyncio.sleep(1)
    await stop(user, wanted.id, "not wanted")
    await asyncio.sleep(20)
    assert (await job_now(user, wanted.id)).status == "stopped"
    assert (await agent_now(user, agent.id)).holdings.keys() == {odd.id}
    agent.terminate()
    await asyncio.sleep(10)
    getattr(connection, how).clear()
    await running


async def test_a_predecessor_whose_record_is_not_answered_keeps_no_agent_from_its_work(
    cluster: Cluster, tmp_path: Path
) -> None:
    user, core = await cluster.core(), await cluster.core(local=False)
    options = AgentOptions(capacity=HOST, work_dir=tmp_path, start_task=fake(tmp_path, {"job": 5.0}))
    os.close(agent_lock.acquire_lock(core.root, "killed").fd)
    silence(cluster.connections[1], AgentKeys.key("killed"))
    agent = Agent(core, options)
    running = asyncio.create_task(agent.run())
    job = await launch(user)
    await asyncio.sleep(120)
    assert (await job_now(user, job.id)).status == "succeeded"
    agent.terminate()
    await running
