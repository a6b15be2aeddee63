"""fsck: each trouble is made by hand, told in words, and put right, or left alone if only a person can judge it."""

from __future__ import annotations

import base64
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace as with_other
from typing import Any

import pytest
from msgspec.structs import replace

from fray_coordinator import fsck
from fray_coordinator.core import Core
from fray_coordinator.protocol.schedule import entry_of
from fray_coordinator.store.api import ANY
from fray_coordinator.submit import enter_child, submit
from fray_layouts import codec
from fray_layouts.names import Agents, Child, Coordinator, Endpoint, Jobs, Names, Pending, Pools, Secrets, Shape, Work
from fray_layouts.queue_names import Queues, Segment, Tasks
from fray_layouts.records import (
    AgentRecord,
    EndpointRecord,
    Holding,
    InboxOrigin,
    JobRecord,
    Lease,
    Parent,
    Result,
    Settings,
    Stop,
)
from fray_layouts.spec import parse_spec
from tests.support.virtual import Cluster, run

OLD = 1_000_000.0
LONG = 200.0
"""Seconds after which nothing is in progress any more."""

Make = Callable[[Core], Awaitable[str]]


def on_memory(test: Callable[[Core], Awaitable[None]]) -> None:
    async def main(cluster: Cluster) -> None:
        await test(await cluster.core())

    run(main, Settings(quarantine=10.0, inbox_patience=0.01))


async def a_job(core: Core, **spec: Any) -> JobRecord:
    [submitted] = await submit(core, [parse_spec({"name": "job", "entrypoint": {"command": ["true"]}, **spec})])
    return submitted.job


async def a_large_job(core: Core) -> tuple[JobRecord, str]:
    """A job whose callable is an object of its own, and the key of that."""
    call = {"callable": {"pickle": base64.b64encode(os.urandom(100_000)).decode()}}
    job = await a_job(core, entrypoint=call)
    assert job.spec.entrypoint.callable is not None
    return job, job.spec.entrypoint.callable.blob


async def rewrite(core: Core, job: JobRecord, **changes: Any) -> JobRecord:
    update = await core.records.update(
        Jobs.key(job.id), JobRecord, lambda now: replace(now, **changes) if now else None
    )
    assert update.stored is not None
    return update.stored.record


async def an_agent(core: Core, name: str, **fields: Any) -> None:
    record = AgentRecord(id=name, host="h", pool="default", **fields)
    await core.records.write(Agents.key(name), AgentRecord, record, None)


async def running_under(core: Core, agent: str) -> JobRecord:
    """A job that the agent runs by the record, and that has no entry any more."""
    job = await a_job(core)
    await core.store.delete(entry_of(job).key())
    lease = Lease(agent=agent, host="h", since=0)
    return await rewrite(core, job, status="running", started_at=core.now(), lease=lease)


async def held_by(core: Core, agent: str) -> JobRecord:
    """A job that a live agent runs and lists."""
    job = await running_under(core, agent)
    await an_agent(core, agent, holdings={job.id: Holding(attempt=1, phase="running")})
    return job


async def over(core: Core, **changes: Any) -> JobRecord:
    """A job that has succeeded."""
    job = await a_job(core)
    await core.store.delete(entry_of(job).key())
    return await rewrite(core, job, **{"status": "succeeded", "ended_at": core.now(), **changes})


async def a_child_of(core: Core, parent: str, entered: bool = True) -> JobRecord:
    child = await a_job(core)
    child = await rewrite(core, child, parent=Parent(job=parent, attempt=1))
    if entered:
        await enter_child(core, child)
    return child


async def without_entry(core: Core) -> str:
    job = await a_job(core)
    await core.store.delete(entry_of(job).key())
    return Jobs.key(job.id)


async def entry_of_an_ended_job(core: Core) -> str:
    job = await over(core)
    await core.store.put(entry_of(job).key(), b"{}", ANY)
    return entry_of(job).key()


async def entry_of_nobody(core: Core) -> str:
    key = Pending("default", 0, OLD, "job-nobody", 1, Shape(1000, 0, 0, "", 0, False)).key()
    await core.store.put(key, b"{}", ANY)
    return key


async def entry_of_an_earlier_attempt(core: Core) -> str:
    job = await a_job(core)
    await core.store.put(entry_of(await rewrite(core, job, attempt=2)).key(), b"{}", ANY)
    return entry_of(job).key()


async def runs_under_a_dead_agent(core: Core) -> str:
    job = await running_under(core, "dead")
    await an_agent(core, "dead", state="dead", buried=True, holdings={job.id: Holding(attempt=1)})
    return Jobs.key(job.id)


async def runs_under_an_agent_that_left(core: Core) -> str:
    job = await running_under(core, "left")
    await an_agent(core, "left", state="left")
    return Jobs.key(job.id)


async def runs_under_nobody(core: Core) -> str:
    return Jobs.key((await running_under(core, "nobody")).id)


async def an_entry_of_nobody_s_child(core: Core) -> str:
    key = Child("parent-nobody", 1, "child-nobody").key()
    await core.store.put(key, b"{}", ANY)
    return key


async def left_unadmitted(core: Core) -> str:
    job = await a_job(core)
    await core.store.delete(entry_of(job).key())
    origin = InboxOrigin(key="inbox/x.json", version="v")
    await rewrite(core, job, status="unadmitted", submitted_at=core.now() - 3600, inbox=origin)
    return Jobs.key(job.id)


async def a_dead_agent_that_was_not_buried(core: Core) -> str:
    await an_agent(core, "dead", state="dead", holdings={"job-gone": Holding(attempt=1)})
    return Agents.key("dead")


async def data_of_nobody(core: Core) -> str:
    key = Work.log("job-nobody", 1, 0, 1)
    await core.store.put(key, b"", ANY)
    return key


async def a_blob_of_nobody(core: Core) -> str:
    await core.store.put("blobs/2020-01/abc", b"", ANY)
    return "blobs/2020-01/abc"


async def a_missing_entry_of_a_later_attempt(core: Core) -> str:
    job = await a_job(core)
    await core.store.delete(entry_of(job).key())
    return Jobs.key((await rewrite(core, job, attempt=2)).id)


async def an_entry_in_another_pool(core: Core) -> str:
    key = with_other(entry_of(await a_job(core)), pool="elsewhere").key()
    await core.store.put(key, b"{}", ANY)
    return key


async def an_entry_of_another_priority(core: Core) -> str:
    key = with_other(entry_of(await a_job(core)), priority=5).key()
    await core.store.put(key, b"{}", ANY)
    return key


async def entry_of_a_job_that_runs(core: Core) -> str:
    key = entry_of(await held_by(core, "live")).key()
    await core.store.put(key, b"{}", ANY)
    return key


async def a_child_of_an_ended_parent(core: Core) -> str:
    return Jobs.key((await a_child_of(core, (await over(core)).id)).id)


async def a_child_of_nobody(core: Core) -> str:
    return Jobs.key((await a_child_of(core, "parent-nobody", entered=False)).id)


async def a_child_of_an_earlier_attempt(core: Core) -> str:
    parent = await held_by(core, "live")
    await rewrite(core, parent, attempt=2)
    await core.records.update(
        Agents.key("live"),
        AgentRecord,
        lambda agent: replace(agent, holdings={parent.id: Holding(attempt=2, phase="running")}) if agent else None,
    )
    return Jobs.key((await a_child_of(core, parent.id)).id)


async def a_child_that_is_not_listed(core: Core) -> str:
    parent = await held_by(core, "live")
    return Jobs.key((await a_child_of(core, parent.id, entered=False)).id)


async def a_listed_child_that_has_ended(core: Core) -> str:
    parent = await held_by(core, "live")
    child = await a_child_of(core, parent.id)
    await core.store.delete(entry_of(child).key())
    await rewrite(core, child, status="stopped", ended_at=core.now())
    return Child(parent.id, 1, child.id).key()


async def an_endpoint_of(core: Core, job: str) -> str:
    record = EndpointRecord(namespace="n", name="x", actor_id="id", job=job, attempt=1, nonce="n", address="a:1")
    await core.records.write(Endpoint("n", "x", "id").key(), EndpointRecord, record, None)
    return Endpoint("n", "x", "id").key()


async def an_endpoint_of_an_ended_job(core: Core) -> str:
    return await an_endpoint_of(core, (await over(core)).id)


async def an_endpoint_of_nobody(core: Core) -> str:
    return await an_endpoint_of(core, "job-nobody")


async def a_bell_that_cannot_be_read(core: Core) -> str:
    await core.store.put(Pools.doorbell("default"), b"garbage", ANY)
    return Pools.doorbell("default")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (without_entry, "no entry in the index"),
        (a_missing_entry_of_a_later_attempt, "no entry in the index"),
        (entry_of_an_ended_job, "nobody needs any more"),
        (entry_of_nobody, "nobody needs any more"),
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
        (a_dead_agent_that_was_not_buried, "not all been put back"),
        (an_endpoint_of_an_ended_job, "no longer runs"),
        (an_endpoint_of_nobody, "no longer runs"),
        (a_bell_that_cannot_be_read, "a hint"),
        (data_of_nobody, "no record"),
        (a_blob_of_nobody, "no job needs it"),
    ],
)
def test_a_trouble_is_found_and_repaired(make: Make, words: str) -> None:
    async def test(core: Core) -> None:
        await a_job(core)
        assert await fsck.check(core) == []
        key = await make(core)
        await core.clock.sleep(LONG)
        [trouble] = await fsck.check(core)
        assert trouble.key == key
        assert words in trouble.what
        assert "--repair" in trouble.remedy
        await fsck.repair(core)
        assert await fsck.check(core) == []

    on_memory(test)


# --- what nobody may repair but a person ---------------------------------------------------------------------------


async def runs_and_is_not_listed(core: Core) -> str:
    job = await running_under(core, "live")
    await an_agent(core, "live")
    return Jobs.key(job.id)


async def runs_and_was_not_listed_for_long(core: Core) -> str:
    """Its entry is still there, but the agent has made beats since."""
    job = await running_under(core, "live")
    await core.store.put(entry_of(job).key(), b"{}", ANY)
    await core.clock.sleep(LONG)
    await an_agent(core, "live")
    return Jobs.key(job.id)


async def is_not_stopped(core: Core) -> str:
    job = await running_under(core, "live")
    await rewrite(core, job, stop=Stop(at=core.now()))
    await core.clock.sleep(LONG)
    await an_agent(core, "live", holdings={job.id: Holding(attempt=1, phase="running")})
    return Jobs.key(job.id)


async def listing(core: Core, job: str, attempt: int) -> str:
    await an_agent(core, "live", holdings={job: Holding(attempt=attempt, phase="running")})
    return Agents.key("live")


async def a_job_of_no_record_is_listed(core: Core) -> str:
    return await listing(core, "job-nobody", 1)


async def a_later_attempt_is_listed(core: Core) -> str:
    return await listing(core, (await over(core)).id, 5)


async def a_job_that_waits_is_listed(core: Core) -> str:
    return await listing(core, (await a_job(core)).id, 1)


async def a_job_of_another_is_listed(core: Core) -> str:
    return await listing(core, (await held_by(core, "other")).id, 1)


async def a_result_is_gone(core: Core) -> str:
    key = Work.result("job-x", 1, 0)
    return Jobs.key((await over(core, result=Result(encoding="pickle", key=key, size=10))).id)


async def a_callable_is_gone(core: Core) -> str:
    job, blob = await a_large_job(core)
    await core.store.delete(blob)
    return Jobs.key(job.id)


async def a_record_under_another_name(core: Core) -> str:
    job = await a_job(core)
    await core.store.put(Jobs.key(f"{job.id}x"), codec.encode(job), ANY)
    return Jobs.key(f"{job.id}x")


async def an_agent_under_another_name(core: Core) -> str:
    record = AgentRecord(id="one", host="h", pool="default")
    await core.store.put(Agents.key("other"), codec.encode(record), ANY)
    return Agents.key("other")


async def an_entry_of_an_attempt_to_come(core: Core) -> str:
    key = with_other(entry_of(await a_job(core)), attempt=7).key()
    await core.store.put(key, b"{}", ANY)
    return key


async def data_of_an_attempt_that_never_was(core: Core) -> str:
    key = Work.log((await a_job(core)).id, 7, 0, 1)
    await core.store.put(key, b"", ANY)
    return key


@pytest.mark.parametrize(
    ("make", "words", "remedy"),
    [
        (runs_and_is_not_listed, "does not list it", "`fray drain live`"),
        (runs_and_was_not_listed_for_long, "does not list it", "`fray drain live`"),
        (is_not_stopped, "asked to stop", "host h"),
        (a_job_of_no_record_is_listed, "no record of this job", "restart that agent"),
        (a_later_attempt_is_listed, "never was", "restart that agent"),
        (a_job_that_waits_is_listed, "waits to be started", "restart that agent"),
        (a_job_of_another_is_listed, "agent other runs it", "restart that agent"),
        (a_result_is_gone, "its result is gone", "run it again"),
        (a_callable_is_gone, "its callable is gone", "submit it again"),
        (a_record_under_another_name, "belongs under jobs/job-", "move it there"),
        (an_agent_under_another_name, "belongs under agents/one.json", "move it there"),
        (an_entry_of_an_attempt_to_come, "entry of attempt 7", "remove it"),
        (data_of_an_attempt_that_never_was, "an attempt that never was", "remove it"),
    ],
)
def test_what_is_not_derived_is_found_and_left_alone(make: Make, words: str, remedy: str) -> None:
    async def test(core: Core) -> None:
        await a_job(core)
        key = await make(core)
        await core.clock.sleep(LONG)
        before = await everything(core)
        for _ in range(2):
            [trouble] = await fsck.check(core)
            assert trouble.key == key
            assert words in trouble.what
            assert remedy in trouble.remedy
            assert "--repair" not in trouble.remedy
            await fsck.repair(core)
        assert await everything(core) == before

    on_memory(test)


async def everything(core: Core) -> dict[str, str | None]:
    return {row.key: row.version for row in await core.store.list("", versions=True)}


QUEUE = Queues.of("n", "q", 1)
SEGMENT = str(Segment(1.8e9, 0, "abcdef", 3))


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (Jobs.key("job-odd"), "nobody can run, end or remove this job"),
        (Agents.key("odd"), "not put back"),
        (Coordinator.lease, "no agent can run the coordinator's pass"),
        (Names.key("n", "actor", "x"), "nobody can take this name"),
        (Endpoint("n", "x", "id").key(), "who calls this name fails"),
        (Secrets.rpc, "no actor can be called"),
        (QUEUE.settings, "nobody can open this queue"),
        (QUEUE.bell, "a hint"),
        (QUEUE.lease(SEGMENT), "nobody gets the items"),
        (QUEUE.dead.lease(SEGMENT), "nobody gets the items"),
        (Tasks.of("n", "q", 1).pool, "no driver can go on"),
        *((key, "not one that Fray gives") for key in (
            "jobs/readme.txt", "agents/a", "pending/default/nonsense", "children/x", "work/job-nobody/1/0/stdout-1",
            "coordinator/other.json", "pools/default/bell", "names/n/x.json", "actors/x.json", "secrets/other",
            "queues/n/q/queue.json", f"{QUEUE.segments}zz~lease", "tasks/n/x",
        )),
    ],
)  # fmt: skip
def test_garbage_is_found_wherever_it_lies_and_left_alone(key: str, words: str) -> None:
    async def test(core: Core) -> None:
        await a_job(core)
        await core.store.put(key, b"garbage", ANY)
        for _ in range(2):
            [trouble] = await fsck.check(core)
            assert trouble.key == key
            assert words in trouble.what
            await fsck.repair(core)
        found = await core.store.get(key)
        assert found is not None
        assert found.data == b"garbage"

    on_memory(test)


def test_what_may_belong_to_a_record_that_cannot_be_read_is_left_alone() -> None:
    async def test(core: Core) -> None:
        job, other = await a_job(core), await a_job(core)
        old_entry = Pending("default", 0, OLD, job.id, 1, Shape(1000, 0, 0, "", 0, False)).key()
        its_own = [Work.log(job.id, 1, 0, 1), old_entry, "blobs/2020-01/perhaps-its-callable"]
        moved = [Work.log(other.id, 1, 0, 1), entry_of(other).key()]
        for key in (*its_own, *moved):
            await core.store.put(key, b"{}", ANY)
        await core.store.put(Jobs.key(job.id), b"garbage", ANY)
        await core.store.put(Jobs.key("moved"), codec.encode(other), ANY)
        await core.store.delete(Jobs.key(other.id))
        await core.clock.sleep(LONG)
        assert {t.key for t in await fsck.check(core)} == {Jobs.key(job.id), Jobs.key("moved")}
        await fsck.repair(core)
        assert (await everything(core)).keys() >= {*its_own, Work.log(other.id, 1, 0, 1)}

    on_memory(test)


def test_a_job_that_its_agent_does_not_list_is_put_back_once_that_agent_left() -> None:
    """What the remedy promises."""

    async def test(core: Core) -> None:
        key = await runs_and_is_not_listed(core)
        assert [trouble.key for trouble in await fsck.check(core)] == [key]
        await core.records.update(
            Agents.key("live"), AgentRecord, lambda agent: replace(agent, state="left") if agent else None
        )
        await fsck.repair(core)
        job = await core.records.read(key, JobRecord)
        assert job is not None
        assert (job.record.status, job.record.attempt) == ("pending", 2)
        assert await fsck.check(core) == []

    on_memory(test)


def test_blobs_that_a_submitter_may_be_about_to_name_stay() -> None:
    async def test(core: Core) -> None:
        _, used = await a_large_job(core)
        month = used.split("/")[1]
        await core.store.put(f"blobs/{month}/new", b"", ANY)
        await core.store.put("blobs/2020-01/old", b"", ANY)
        await fsck.repair(core)
        left = [row.key for row in await core.store.list("blobs/")]
        assert left == sorted([used, f"blobs/{month}/new"])

    on_memory(test)


def test_a_live_cluster_in_order_has_no_troubles() -> None:
    async def test(core: Core) -> None:
        job = await held_by(core, "live")
        await a_child_of(core, job.id)
        await an_endpoint_of(core, job.id)
        await core.store.put(Work.log(job.id, 1, 0, 1), b"", ANY)
        before = {row.key: row.version for row in await core.store.list("", versions=True)}
        assert await fsck.check(core) == []
        assert {row.key: row.version for row in await core.store.list("", versions=True)} == before

    on_memory(test)


def test_records_of_a_newer_version_are_readable() -> None:
    async def test(core: Core) -> None:
        job = await a_job(core)
        await core.store.put(Jobs.key(job.id), codec.encode(job, {"new_field": 1}), ANY)
        assert await fsck.check(core) == []

    on_memory(test)
