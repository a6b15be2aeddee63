"""Processes whose root holds another cluster all at once, or none: they wait, write nothing there, and go on later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fray_agents.agent.agent import Agent, AgentOptions
from fray_agents.agent.leases import Leases
from fray_agents.agent.membership import BEATS_PER_CHECK, Heartbeat, Membership
from fray_coordinator.actors.checkpoints import open_log
from fray_coordinator.core import Core
from fray_coordinator.errors import Fenced, StoreUnavailable
from fray_coordinator.jobs import notifications
from fray_coordinator.jobs.lookup import find_job, read_job
from fray_coordinator.jobs.stopping import stop
from fray_coordinator.jobs.submission import submit
from fray_coordinator.jobs.waiting import wait_for
from fray_coordinator.protocol.cluster_identity import CONFIRMED_SECONDS
from fray_coordinator.protocol.transitions import Status
from fray_coordinator.store.interface import ABSENT, ANY, NotModified, Object, Version
from fray_coordinator.store.memory import MemoryBackend, MemoryContents
from fray_layouts.object_keys import CLUSTER_KEY, AgentKeys
from fray_layouts.records import AgentRecord, Doorbell, Resources
from fray_layouts.spec_parsing import parse_spec
from fray_layouts.work_keys import CheckpointKey
from tests.support.fake_tasks import fake
from tests.support.scripted_agents import join, launch
from tests.support.virtual import Cluster

HOST = Resources(cpu=4000, memory=2**33, disk=2**33)


@asynccontextmanager
async def agents_at(cluster: Cluster, tmp_path: Path) -> AsyncIterator[list[Agent]]:
    """Two agents: the first runs a job as long as it may, which takes all of it; the second is idle."""
    agents = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        start = fake(tmp_path / str(number), {"job": 200.0, "strange": 1.0})
        options = AgentOptions(capacity=HOST, work_dir=tmp_path / str(number), start_task=start)
        agents.append(Agent(await cluster.core(local=False), options))
    running = [asyncio.create_task(agent.run()) for agent in agents]
    try:
        yield agents
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def strange_cluster(cluster: Cluster) -> Core:
    """Another cluster at the same root, in which a job waits, as somebody's `fray run` makes it."""
    cluster.replace(MemoryContents())
    stranger = await cluster.core(local=False)
    await submit(stranger, [parse_spec({"name": "strange", "entrypoint": {"command": ["true"]}})])
    return stranger


@pytest.mark.parametrize("is_emptied", [True, False])
async def test_agents_neither_kill_their_tasks_nor_work_in_another_cluster(
    cluster: Cluster, tmp_path: Path, is_emptied: bool, caplog: pytest.LogCaptureFixture
) -> None:
    user = await cluster.core()
    async with agents_at(cluster, tmp_path) as agents:
        job = (await launch(user)).id
        await asyncio.sleep(20)
        ours = cluster.contents
        if is_emptied:
            cluster.replace(MemoryContents())
        else:
            await strange_cluster(cluster)
        strange = dict(cluster.contents.objects)
        await asyncio.sleep(120)
        assert cluster.contents.objects == strange, "not even an agent's record"
        cluster.replace(ours)
        ended = (await wait_for(user, [job], 600.0))[job]
        assert (ended.status, ended.attempt) == (Status.SUCCEEDED, 1)
        assert [agent.member.fenced.is_set() for agent in agents] == [False, False]
    assert ("no cluster at" if is_emptied else "another cluster, ") in caplog.text


async def test_a_write_that_is_tried_again_in_another_cluster_does_not_conclude_that_its_object_is_gone(
    cluster: Cluster,
) -> None:
    user = await cluster.core()
    job = (await launch(user)).id
    ours, connection = cluster.contents, cluster.connections[-1]
    connection.unanswered.append(("put", "jobs/"))

    async def replaced() -> None:
        await strange_cluster(cluster)
        asyncio.get_running_loop().call_later(0.01, connection.unanswered.clear)

    connection.before["put", "jobs/"] = replaced  # the first write gets HTTP 500, and the root is another's
    stopping = asyncio.create_task(stop(user, job, "enough"))
    await asyncio.sleep(CONFIRMED_SECONDS)
    assert not stopping.done()
    cluster.replace(ours)
    await stopping
    assert (await read_job(user, job)).record.status == "stopped"


async def test_a_write_that_is_sent_again_after_a_slow_read_confirms_the_root_again(cluster: Cluster) -> None:
    """A process may be frozen between the read that resolves a write and the write that follows."""
    user = await cluster.core(local=False)
    ours, connection = cluster.contents, cluster.connections[-1]
    connection.unanswered.append(("put", "blobs/"))

    async def replaced_and_frozen() -> None:
        cluster.replace(MemoryContents())
        connection.unanswered.clear()
        await asyncio.sleep(CONFIRMED_SECONDS)

    connection.before["get", "blobs/"] = replaced_and_frozen
    writing = asyncio.create_task(user.store.put("blobs/1", b"x", ABSENT, patience=CONFIRMED_SECONDS * 3))
    await asyncio.sleep(CONFIRMED_SECONDS * 2)
    assert cluster.keys() == []
    cluster.replace(ours)
    assert await writing
    assert cluster.keys("blobs/") == ["blobs/1"]


async def test_a_confirmation_counts_from_its_request_and_not_from_its_answer(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may be frozen with the answer in its socket."""
    user = await cluster.core(local=False)
    ours, connection = cluster.contents, cluster.connections[-1]
    read = connection.get_if_changed

    async def read_and_frozen(key: str, version: Version | None) -> Object | NotModified | None:
        found = await read(key, version)
        if cluster.contents is ours:
            cluster.replace(MemoryContents())
            await asyncio.sleep(CONFIRMED_SECONDS)
        return found

    monkeypatch.setattr(connection, "get_if_changed", read_and_frozen)
    await asyncio.sleep(CONFIRMED_SECONDS)
    with pytest.raises(StoreUnavailable, match="no cluster at"):
        await user.store.put("blobs/1", b"x", ABSENT)
    assert cluster.keys() == []


async def test_what_only_an_old_request_has_shown_confirms_the_root_no_longer(cluster: Cluster) -> None:
    user = await cluster.core(local=False)
    await asyncio.sleep(CONFIRMED_SECONDS)
    user.store.root_confirmed(user.clock.boottime() - CONFIRMED_SECONDS)
    cluster.replace(MemoryContents())
    with pytest.raises(StoreUnavailable, match="no cluster at"):
        await user.store.put("blobs/1", b"x", ABSENT)
    assert cluster.keys() == []


async def test_an_agent_whose_record_was_copied_into_another_cluster_does_not_beat_there(cluster: Cluster) -> None:
    """Right after it was confirmed: nothing but the version of its record tells it."""
    own = AgentRecord(id="a", host="h", pool="default", interval=5.0)
    member = Membership(await cluster.core(local=False), own, Leases(HOST))
    heartbeat = Heartbeat(member, lambda _: None, lambda: None)
    await heartbeat.register()
    ours, key = cluster.contents, AgentKeys.key("a")
    record = ours.objects[key]
    cluster.replace(MemoryContents())
    cluster.contents.set(key, Object(record.data, "copied", record.updated))
    beating = asyncio.create_task(heartbeat.run())
    await asyncio.sleep(CONFIRMED_SECONDS / 2)
    assert cluster.contents.objects[key].version == "copied"
    cluster.replace(ours)
    await asyncio.sleep(CONFIRMED_SECONDS)
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)
    assert ours.objects[key].data != record.data


async def test_an_agent_that_joined_in_another_cluster_is_no_member_and_claims_nothing(cluster: Cluster) -> None:
    own = AgentRecord(id="a", host="h", pool="default", interval=5.0)
    member = Membership(await cluster.core(local=False), own, Leases(HOST))
    ours = cluster.contents
    cluster.replace(MemoryContents())
    cluster.connections[-1].before["get_if_changed", CLUSTER_KEY] = lambda: returned(cluster, ours)
    await Heartbeat(member, lambda _: None, lambda: None).register()
    assert member.fenced.is_set()
    assert cluster.keys("agents/") == []


async def test_an_agent_whose_record_somebody_overwrites_as_it_joins_joins_again_under_another_id(
    cluster: Cluster,
) -> None:
    own = AgentRecord(id="a", host="h", pool="default", interval=5.0)
    member = Membership(await cluster.core(local=False), own, Leases(HOST))
    key = AgentKeys.key("a")
    odd = Object(b"{}", "odd", 0.0)
    cluster.connections[-1].before["get_if_changed", key] = lambda: put(cluster, key, odd)
    await Heartbeat(member, lambda _: None, lambda: None).register()
    assert member.fenced.is_set()
    assert cluster.contents.objects[key] is odd


async def put(cluster: Cluster, key: str, written: Object) -> None:
    cluster.contents.set(key, written)


async def returned(cluster: Cluster, contents: MemoryContents) -> None:
    cluster.replace(contents)


async def copy_with_a_later_attempt(cluster: Cluster, number: int) -> MemoryContents:
    """Put a copy of the actor's checkpoints at the root of another cluster, in which attempt 2 made this number."""
    ours = cluster.contents
    await strange_cluster(cluster)
    for key, found in ours.objects.items():
        if key.startswith("work/"):
            cluster.contents.set(key, found)
    head = b'{"attempt":2,"writer":"other"}'
    cluster.contents.set(CheckpointKey("a-1", "a", number).key(), Object(head + b"\nstrange", "v", 1.0))
    return cluster.contents


@pytest.mark.parametrize("returns", ["later", "before the root is read", "before the list"])
async def test_a_checkpoint_in_another_cluster_acknowledges_no_call(cluster: Cluster, returns: str) -> None:
    """A frozen attempt wakes while another cluster is at its root, which returns between any two of its requests."""
    late, core = await cluster.core(local=False), await cluster.core(local=False)
    _, first = await open_log(late, "a-1", "a", 1)
    await first.write(b"one")
    _, second = await open_log(core, "a-1", "a", 2)
    await second.write(b"two")
    ours, connection = cluster.contents, cluster.connections[0]
    await strange_cluster(cluster)

    if returns == "before the root is read":
        connection.before["get_if_changed", CLUSTER_KEY] = lambda: returned(cluster, ours)
    if returns == "before the list":
        connection.before["list", CheckpointKey.prefix("a-1", "a")] = lambda: returned(cluster, ours)
    writing = asyncio.create_task(first.write(b"late"))
    await asyncio.sleep(10)
    cluster.replace(ours)
    with pytest.raises((Fenced, StoreUnavailable)):
        await writing
    with pytest.raises(Fenced):
        await first.write(b"late")
    assert (await open_log(core, "a-1", "a", 3))[0] == b"two"


async def test_a_checkpoint_that_only_another_cluster_has_is_written_again(cluster: Cluster) -> None:
    core = await cluster.core(local=False)
    _, log = await open_log(core, "a-1", "a", 1)
    ours = cluster.contents
    await strange_cluster(cluster)
    cluster.connections[0].before["get_if_changed", CLUSTER_KEY] = lambda: returned(cluster, ours)
    with pytest.raises(StoreUnavailable, match="another cluster was at the root"):
        await log.write(b"one")
    await log.write(b"two")
    assert (await open_log(core, "a-1", "a", 2))[0] == b"two"


async def test_a_copy_in_which_a_later_attempt_has_written_fences_nobody_off(cluster: Cluster) -> None:
    core = await cluster.core(local=False)
    _, log = await open_log(core, "a-1", "a", 1)
    ours = cluster.contents
    await copy_with_a_later_attempt(cluster, log.last.number + 1)
    writing = asyncio.create_task(log.write(b"one"))
    await asyncio.sleep(10)
    assert not writing.done()
    cluster.replace(ours)
    await writing
    assert (await open_log(core, "a-1", "a", 2))[0] == b"one"


@pytest.mark.parametrize("comes", ["before", "before the list", "before the read"])
async def test_no_attempt_goes_on_from_the_checkpoints_of_a_copy(cluster: Cluster, comes: str) -> None:
    core = await cluster.core(local=False)
    _, log = await open_log(core, "a-1", "a", 1)
    await log.write(b"one")
    ours, prefix = cluster.contents, CheckpointKey.prefix("a-1", "a")
    number = log.last.number + (0 if comes == "before the read" else 5)
    copy = await copy_with_a_later_attempt(cluster, number)
    if comes != "before":
        cluster.replace(ours)
        cluster.connections[0].before["list" if comes == "before the list" else "get", prefix] = lambda: returned(
            cluster, copy
        )
    opening = asyncio.create_task(open_log(core, "a-1", "a", 2))
    await asyncio.sleep(10)
    assert not opening.done()
    cluster.replace(ours)
    assert (await opening)[0] == b"one"


async def test_a_fence_that_only_another_cluster_has_is_made_again(cluster: Cluster) -> None:
    core = await cluster.core(local=False)
    _, log = await open_log(core, "a-1", "a", 1)
    await log.write(b"one")
    ours = cluster.contents
    await strange_cluster(cluster)
    strange = cluster.replace(ours)
    cluster.connections[0].before["put", CheckpointKey.prefix("a-1", "a")] = lambda: returned(cluster, strange)
    opening = asyncio.create_task(open_log(core, "a-1", "a", 2))
    await asyncio.sleep(10)
    assert not opening.done()
    cluster.replace(ours)
    with pytest.raises(StoreUnavailable, match="another cluster was at the root"):
        await opening
    assert (await open_log(core, "a-1", "a", 2))[0] == b"one"


async def test_an_agent_joins_again_if_only_its_record_is_gone(cluster: Cluster, tmp_path: Path) -> None:
    async with agents_at(cluster, tmp_path) as agents:
        await asyncio.sleep(20)
        cluster.contents.remove(AgentKeys.key(agents[1].id))
        await asyncio.sleep(120)
        assert [agent.member.fenced.is_set() for agent in agents] == [False, True]


async def test_an_idle_agent_claims_nothing_by_a_bell_of_another_cluster(cluster: Cluster, tmp_path: Path) -> None:
    """Even right after a heartbeat, when nothing else would make it look."""
    user = await cluster.core()
    async with agents_at(cluster, tmp_path) as agents:
        await notifications.ring(user, "default")
        await asyncio.sleep(20)
        for agent in agents:
            agent.member.core.store.root_confirmed(agent.member.core.clock.boottime())
        await strange_cluster(cluster)
        strange = dict(cluster.contents.objects)
        await asyncio.sleep(CONFIRMED_SECONDS / 2)
        assert cluster.contents.objects == strange


async def test_clients_do_not_conclude_that_jobs_are_gone_and_write_nothing(cluster: Cluster) -> None:
    user = await cluster.core()
    job = (await launch(user)).id
    waiting = asyncio.create_task(wait_for(user, [job]))
    await asyncio.sleep(5)
    ours = cluster.contents
    await strange_cluster(cluster)
    strange = dict(cluster.contents.objects)
    with pytest.raises(StoreUnavailable, match=r"another cluster, .* is at memory.* put that back"):
        await read_job(user, job)
    user.store.root_confirmed(user.clock.boottime())
    with pytest.raises(StoreUnavailable, match="another cluster"):
        await stop(user, job, "enough")
    with pytest.raises(StoreUnavailable, match="another cluster"):
        await find_job(user, "job-that-is-not-there")
    with pytest.raises(StoreUnavailable, match="another cluster"):
        await launch(user)
    assert cluster.contents.objects == strange
    with pytest.raises(StoreUnavailable, match="another cluster"):
        await waiting
    cluster.replace(ours)
    assert (await read_job(user, job)).record.id == job


async def test_a_claim_right_after_a_confirmation_takes_no_job_of_another_cluster(cluster: Cluster) -> None:
    agent = await join(cluster, "a")
    await strange_cluster(cluster)
    strange = dict(cluster.contents.objects)
    agent.core.store.root_confirmed(agent.core.clock.boottime())
    with pytest.raises(StoreUnavailable, match="another cluster"):
        await agent.try_claim()
    assert cluster.contents.objects == strange


async def test_nobody_is_told_of_a_job_that_was_written_into_another_cluster(cluster: Cluster) -> None:
    user = await cluster.core()
    await strange_cluster(cluster)
    user.store.root_confirmed(user.clock.boottime())
    with pytest.raises(StoreUnavailable, match="another cluster"):
        await launch(user)


async def test_a_process_that_only_writes_confirms_its_root_now_and_then(cluster: Cluster) -> None:
    user = await cluster.core()
    connection = cluster.connections[-1]
    for number in range(10):
        assert await user.store.put(f"blobs/{number}", b"x", ABSENT)
        await asyncio.sleep(CONFIRMED_SECONDS / 4)
    assert connection.asked.count(("get_if_changed", "cluster.json")) == 2
    cluster.replace(MemoryContents())
    await asyncio.sleep(CONFIRMED_SECONDS)
    with pytest.raises(StoreUnavailable, match="no cluster at") as told:
        await user.store.put("blobs/late", b"x", ABSENT)
    assert not told.value.others_answered, "an outage, not a matter of this object"
    assert cluster.keys() == []


@pytest.mark.parametrize("is_unsure_at_first", [False, True])
async def test_idle_agents_confirm_their_root_without_a_request(
    cluster: Cluster, tmp_path: Path, is_unsure_at_first: bool
) -> None:
    """Their heartbeats and the pass's lease show that it is the same cluster, however an agent's first minutes were."""
    async with agents_at(cluster, tmp_path):
        if is_unsure_at_first:
            for connection in cluster.connections:
                connection.unanswered.append(("get_if_changed", "cluster.json"))
            await asyncio.sleep(300)
            for connection in cluster.connections:
                assert ("put", "agents/") in [(verb, key[:7]) for verb, key in connection.asked], "it joined"
                connection.unanswered.clear()
        await asyncio.sleep(200)
        for connection in cluster.connections:
            connection.asked.clear()
        await asyncio.sleep(300)
        asked = [key for connection in cluster.connections for _, key in connection.asked]
        assert "cluster.json" not in asked


async def test_new_addresses_and_an_unreadable_cluster_json_change_nothing_for_those_at_work(cluster: Cluster) -> None:
    user = await cluster.core()
    found = cluster.contents.objects["cluster.json"]
    again = f'"addresses":["{user.store.address}",'.encode()
    for body in (b"garbage", found.data.replace(b'"addresses":[', again)):
        cluster.contents.set("cluster.json", Object(body, f"version of {len(body)} bytes", found.updated))
        await asyncio.sleep(2 * CONFIRMED_SECONDS)
        await user.store.put(f"blobs/{len(body)}", b"x", ABSENT)


async def test_the_bell_names_the_cluster(cluster: Cluster) -> None:
    user = await cluster.core()
    await notifications.ring(user, "default")
    bell = await user.records.read("pools/default/doorbell", Doorbell)
    assert bell is not None
    assert bell.record.cluster == user.settings.cluster_id


async def test_agents_stop_in_a_storage_that_ignores_conditions_and_go_on_once_it_keeps_them(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = MemoryBackend.put
    user = await cluster.core(local=False)
    async with agents_at(cluster, tmp_path) as agents:
        await asyncio.sleep(20)
        monkeypatch.setattr(MemoryBackend, "put", lambda self, key, data, expect: put(self, key, data, ANY))
        await asyncio.sleep((BEATS_PER_CHECK + 5) * user.settings.idle_beat_interval)
        assert "the storage applied a write on a version that the object does not have" in caplog.text
        assert not any(agent.member.trusts() for agent in agents)
        assert "doctor/conditions" not in cluster.contents.objects
        monkeypatch.setattr(MemoryBackend, "put", put)
        await asyncio.sleep(120)
        assert all(agent.member.trusts() for agent in agents)
        job = (await launch(user)).id
        assert (await wait_for(user, [job], 600.0))[job].status == Status.SUCCEEDED
