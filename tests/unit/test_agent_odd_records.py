"""An unreadable job record does not stop an agent from other work; in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from fray_agents.agent.agent import Agent, AgentOptions, ExitReason
from fray_coordinator import fsck
from fray_coordinator.core import Core
from fray_coordinator.jobs.waiting import wait_for
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.store.interface import ANY, Object
from fray_coordinator.store.memory import digest
from fray_layouts.bounds import MAX_SAFE_INTEGER, MAX_TIME
from fray_layouts.index_keys import ChildKey
from fray_layouts.object_keys import AgentKeys, CoordinatorKeys, JobKeys
from fray_layouts.records import (
    AgentRecord,
    JobRecord,
    ReconcilerRecord,
    Resources,
)
from fray_layouts.work_keys import InboxKeys
from tests.support.fake_tasks import fake
from tests.support.scripted_agents import job_now, join, launch, pass_now
from tests.support.virtual import Cluster

HOST = Resources(cpu=8000, memory=2**33, disk=2**33)
SECONDS = {"quick": 1.0, "slow": 200.0}
ODD_VALUES: list[dict[str, Any]] = [
    *({"submitted_at": 1e306}, {"submitted_at": -1.0}, {"attempt": 0}, {"attempt": 10**30}, {"not_before": 1e300}),
    *({"lease": {"agent": "a/b", "host": "h", "since": 1.0}}, {"parent": {"job": "../x", "attempt": 1}}),
    *({"spec": {"resources": {name: value}}} for name, value in {"memory": "2GB", "disk": -1, "cpu": 1e306}.items()),
    *({"spec": {"resources": {"device": {"kind": kind, "count": 1}}}} for kind in ("g~p", "", "k" * 200)),
    *({"spec": {name: value}} for name, value in {"pending_timeout": -1, "grace": 1e306, "priority": 500}.items()),
    *({"spec": {name: value}} for name, value in {"pool": "", "name": "a/b", "namespace": "a\nb"}.items()),
]


def odd_job(changes: dict[str, Any]) -> bytes:
    """The record of a pending job with some other values; it has a key of its own."""
    spec = {"name": "odd", "entrypoint": {"command": ["true"]}, "namespace": "odd", **changes.get("spec", {})}
    number = ODD_VALUES.index(changes) if changes else 0
    job = {"id": f"value-{number}", "status": "pending", "submitted_at": 1.8e9, **changes, "spec": spec}
    return msgspec.json.encode({"op": "x", "created_op": "x", **job})


DEEP = b'{"name":' + b"[" * 5000 + b"]" * 5000 + b"}"
ODD = {
    "actors/a/b/c.json": DEEP,
    "agents/odd.json": DEEP,
    "inbox/deep.json": DEEP,
    "jobs/odd-1.json": DEEP,
    "jobs/odd-2.json": b"\xff",
    **{f"jobs/value-{number}.json": odd_job(changes) for number, changes in enumerate(ODD_VALUES)},
    "jobs/another-1.json": odd_job({}),
    "agents/copy.json": b'{"id":"other","host":"h","pool":"default"}',
    "actors/a/b/copy.json": b'{"namespace":"a","name":"b","actor_id":"d","nonce":"n","address":"h:1"}',
}
STRAYS = [
    *("blobs/", "blobs/2020-01/", "blobs/notes.txt", "jobs/", "jobs/a\n.json", "inbox/", "inbox/a\nb.json"),
    *("inbox/rejected/", "inbox/aside/", "pending/", "pending/default/", "pending/default/4991mcc5rxrg-a\nb~1~c1m0d0"),
    *(f"pending/default/4991mcc5rxrg-{'a' * 300}~1~c1000m0d0", "children/", "children/a/1/b\n", "agents/a\n.json"),
    *("agents/", "actors/", "actors/a/b/c\n.json", "work/x-1/", "names/", "pools/", "queues/n/q~1/", "tasks/"),
]


@asynccontextmanager
async def with_an_agent(cluster: Cluster, folder: Path) -> AsyncIterator[tuple[Core, asyncio.Task[object]]]:
    """Run `act` with an agent that has joined; it must still be there at the end."""

    user = await cluster.core()
    options = AgentOptions(capacity=HOST, work_dir=folder, start_task=fake(folder, SECONDS))
    agent = asyncio.create_task(Agent(await cluster.core(), options).run())
    await asyncio.sleep(5)
    yield user, agent
    assert not agent.done(), agent
    agent.cancel()
    await asyncio.gather(agent, return_exceptions=True)


async def spoil(core: Core, job: str) -> None:
    await core.store.put(JobKeys.key(job), b"{}", ANY)


async def succeeded(core: Core, job: JobRecord) -> None:
    ended = await wait_for(core, [job.id], timeout=400)
    assert ended[job.id].status == "succeeded"


async def test_an_agent_lives_with_odd_objects_of_every_place(cluster: Cluster, tmp_path: Path) -> None:
    async with with_an_agent(cluster, tmp_path) as (user, _agent):
        for key, data in ODD.items():
            cluster.contents.set(key, Object(data, digest(data), cluster.clock.wall()))
        await asyncio.sleep(150)
        await succeeded(user, await launch(user, name="quick"))
        assert set(ODD) <= {*(await pass_now(user)).problems, "inbox/deep.json"}
        (rejected,) = cluster.keys("inbox/")
        assert rejected.startswith(InboxKeys.rejected_prefix)


async def test_a_repair_that_ended_in_the_future_keeps_nobody_from_the_next(cluster: Cluster, tmp_path: Path) -> None:
    async with with_an_agent(cluster, tmp_path) as (user, _agent):

        def spoilt(now: ReconcilerRecord | None) -> ReconcilerRecord:
            return msgspec.structs.replace(now or ReconcilerRecord(), holder="nobody-1", repaired_at=MAX_TIME)

        await user.records.update(CoordinatorKeys.reconciler, ReconcilerRecord, spoilt)
        cluster.connections[1].cut = True
        job = await launch(user, name="quick")
        for key in cluster.keys("pending/"):
            cluster.contents.remove(key)
        cluster.cut(False)
        await succeeded(user, job)


async def test_an_agent_lives_with_names_that_fray_never_gives(cluster: Cluster, tmp_path: Path) -> None:
    """Consoles write such keys as markers of empty folders. `fsck` reports them."""

    async with with_an_agent(cluster, tmp_path) as (user, _agent):
        for key in STRAYS:
            cluster.contents.set(key, Object(b"", digest(b""), cluster.clock.wall()))
        await asyncio.sleep(150)
        await succeeded(user, await launch(user, name="quick"))
        assert set(STRAYS) <= {problem.key for problem in await fsck.check(user)}


async def test_an_agent_claims_jobs_that_it_can_read(cluster: Cluster, tmp_path: Path) -> None:
    async with with_an_agent(cluster, tmp_path) as (user, _agent):
        for connection in cluster.connections:
            connection.cut = connection is not cluster.connections[0]
        odd, sound = [await launch(user, name="quick") for _ in range(2)]
        await spoil(user, odd.id)
        spoilt = cluster.contents.objects[JobKeys.key(odd.id)]
        cluster.cut(False)
        await succeeded(user, sound)
        await asyncio.sleep(300)
        (record,) = [await user.records.read(key, AgentRecord) for key in cluster.keys(AgentKeys.area)]
        assert record is not None
        assert (record.record.state, record.record.problem) == ("live", "")
        assert cluster.contents.objects[JobKeys.key(odd.id)] == spoilt


async def test_a_record_that_is_spoilt_while_its_job_runs_harms_no_other(cluster: Cluster, tmp_path: Path) -> None:
    async with with_an_agent(cluster, tmp_path) as (user, _agent):
        odd, sound = [await launch(user, name="slow") for _ in range(2)]
        await asyncio.sleep(20)
        assert {(await job_now(user, job.id)).status for job in (odd, sound)} == {"running"}
        await spoil(user, odd.id)
        await succeeded(user, sound)
        assert (await job_now(user, sound.id)).attempt == 1


async def test_a_copy_of_an_agents_record_takes_no_job_from_it(cluster: Cluster, tmp_path: Path) -> None:
    async with with_an_agent(cluster, tmp_path) as (user, _agent):
        job = await launch(user, name="slow")
        await asyncio.sleep(20)
        (key,) = cluster.keys(AgentKeys.area)
        copy = key.replace(".json", "-bak.json")
        cluster.contents.set(copy, cluster.contents.objects[key])
        await succeeded(user, job)
        assert (await job_now(user, job.id)).attempt == 1
        assert f"a copy of {key}" in (await pass_now(user)).problems[copy]


async def test_a_second_attempt_begins_in_any_state_of_the_firsts_children(cluster: Cluster, tmp_path: Path) -> None:
    async with with_an_agent(cluster, tmp_path) as (user, _agent):
        cluster.connections[1].cut = True
        first = await join(cluster, "first")
        parent = await launch(user, name="quick")
        held = await first.claim()
        child = await launch(user, attempt_of_parent=1, name="slow", parent=parent.id)
        assert ChildKey(parent.id, 1, child.id).key() in cluster.keys("children/")
        await spoil(user, child.id)
        await first.end(held, kind="preempted")
        cluster.connections[1].cut = False
        await succeeded(user, parent)


@pytest.mark.parametrize("beat", [None, MAX_SAFE_INTEGER], ids=["garbage", "last beat"])
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
async def test_an_agent_whose_record_was_overwritten_ends_its_tasks_and_joins_anew(
    cluster: Cluster, tmp_path: Path, busy: bool, beat: int | None
) -> None:
    """Nobody knows the agent's id, or no later beat can be written: under that id it could never claim again."""

    user = await cluster.core()
    agent = Agent(
        await cluster.core(), AgentOptions(capacity=HOST, work_dir=tmp_path, start_task=fake(tmp_path, SECONDS))
    )
    runs = asyncio.create_task(agent.run())
    await asyncio.sleep(10)
    job = await launch(user, name="slow") if busy else None
    await asyncio.sleep(10)
    lies = await user.records.read(AgentKeys.key(agent.id), AgentRecord)
    assert lies is not None
    odd = b"garbage" if beat is None else msgspec.json.encode(msgspec.structs.replace(lies.record, beat=beat))
    await user.store.put(lies.key, odd, ANY)
    assert await asyncio.wait_for(runs, 600) is ExitReason.FENCED
    if job is not None:
        assert (await job_now(user, job.id)).status == "succeeded"
    if beat is not None:
        assert await user.records.read(lies.key, AgentRecord) is not None, "it has not been made unreadable"


async def test_an_agent_whose_record_and_whose_jobs_record_were_overwritten_joins_anew(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The agent's tasks have ended, and it waits to record that. Under this id it could not work meanwhile."""

    user = await cluster.core()
    agent = Agent(
        await cluster.core(), AgentOptions(capacity=HOST, work_dir=tmp_path, start_task=fake(tmp_path, SECONDS))
    )
    runs = asyncio.create_task(agent.run())
    await asyncio.sleep(10)
    job = await launch(user, name="slow")
    await asyncio.sleep(10)
    await spoil(user, job.id)
    await user.store.put(AgentKeys.key(agent.id), b"garbage", ANY)
    assert await asyncio.wait_for(runs, 600) is ExitReason.FENCED
    assert cluster.clock.boottime() > SECONDS["slow"], "the task was not ended before its time"


@pytest.mark.slow
async def test_a_lasting_problem_is_logged_once_an_hour(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "fray"):
        async with with_an_agent(cluster, tmp_path) as (user, _):
            with mock.patch.object(Reconciler, "try_pass", side_effect=RecursionError("a fault of ours")):
                await asyncio.sleep(3 * 3600)
            await succeeded(user, await launch(user, name="quick"))
    assert 3 <= caplog.text.count("cannot run the coordinator's pass") <= 4
