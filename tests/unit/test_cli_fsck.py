"""fsck: each trouble is made by hand, told in words, and put right."""

from __future__ import annotations

import asyncio
import base64
import os
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from fray_coordinator import fsck
from fray_coordinator.core import Core, open_core
from fray_coordinator.protocol.schedule import entry_of
from fray_coordinator.store.api import ANY
from fray_coordinator.submit import submit
from fray_layouts import codec
from fray_layouts.names import Agents, Child, Jobs, Pending, Shape, Work
from fray_layouts.records import AgentRecord, Holding, InboxOrigin, JobRecord, Lease, Parent, Settings
from fray_layouts.spec import parse_spec

OLD = 1_000_000.0


def on_memory(test: Callable[[Core], Awaitable[None]]) -> None:
    async def main() -> None:
        await test(await open_core(f"memory://{uuid.uuid4()}", Settings(quarantine=10.0, inbox_patience=0.01)))

    asyncio.run(main())


async def a_job(core: Core) -> JobRecord:
    [submitted] = await submit(core, [parse_spec({"name": "job", "entrypoint": {"command": ["true"]}})])
    return submitted.job


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
    job = await a_job(core)
    return await rewrite(
        core, job, status="running", started_at=core.now(), lease=Lease(agent=agent, host="h", since=0)
    )


async def without_entry(core: Core) -> str:
    job = await a_job(core)
    await core.store.delete(entry_of(job).key())
    return Jobs.key(job.id)


async def entry_of_an_ended_job(core: Core) -> str:
    job = await a_job(core)
    await rewrite(core, job, status="succeeded", ended_at=core.now())
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


async def entry_of_a_job_that_runs(core: Core) -> str:
    job = await running_under(core, "live")
    await an_agent(core, "live", holdings={job.id: Holding(attempt=1, phase="running")})
    return entry_of(job).key()


async def runs_under_an_agent_that_left(core: Core) -> str:
    job = await running_under(core, "left")
    await an_agent(core, "left", state="left")
    return Jobs.key(job.id)


async def runs_under_nobody(core: Core) -> str:
    return Jobs.key((await running_under(core, "nobody")).id)


async def a_child_of_an_ended_parent(core: Core) -> str:
    parent, child = await a_job(core), await a_job(core)
    await rewrite(core, parent, status="succeeded", ended_at=core.now())
    await core.store.delete(entry_of(parent).key())
    await rewrite(core, child, parent=Parent(job=parent.id, attempt=1))
    return Jobs.key(child.id)


async def a_child_of_nobody(core: Core) -> str:
    child = await a_job(core)
    await rewrite(core, child, parent=Parent(job="parent-nobody", attempt=1))
    return Jobs.key(child.id)


async def a_child_of_an_earlier_attempt(core: Core) -> str:
    parent, child = await running_under(core, "live"), await a_job(core)
    await core.store.delete(entry_of(parent).key())
    await rewrite(core, parent, attempt=2)
    await an_agent(core, "live", holdings={parent.id: Holding(attempt=2, phase="running")})
    await rewrite(core, child, parent=Parent(job=parent.id, attempt=1))
    return Jobs.key(child.id)


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


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (without_entry, "no entry in the index"),
        (entry_of_an_ended_job, "nobody needs any more"),
        (entry_of_nobody, "nobody needs any more"),
        (entry_of_an_earlier_attempt, "earlier attempt"),
        (runs_under_a_dead_agent, "under agent dead, which is dead"),
        (entry_of_a_job_that_runs, "nobody needs any more"),
        (runs_under_an_agent_that_left, "under agent left, which is left"),
        (runs_under_nobody, "under agent nobody, which is unknown"),
        (a_child_of_an_ended_parent, "no longer runs attempt 1"),
        (a_child_of_nobody, "no longer runs attempt 1"),
        (a_child_of_an_earlier_attempt, "no longer runs attempt 1"),
        (an_entry_of_nobody_s_child, "neither this parent nor this child"),
        (left_unadmitted, "neither admitted nor withdrawn"),
        (a_dead_agent_that_was_not_buried, "not all been put back"),
        (data_of_nobody, "no record"),
        (a_blob_of_nobody, "no job needs it"),
    ],
)
def test_a_trouble_is_found_and_repaired(make: Callable[[Core], Awaitable[str]], words: str) -> None:
    async def test(core: Core) -> None:
        await a_job(core)
        assert await fsck.check(core) == []
        key = await make(core)
        [trouble] = await fsck.check(core)
        assert trouble.key == key
        assert words in trouble.what
        assert "--repair" in trouble.remedy
        await fsck.repair(core)
        assert await fsck.check(core) == []

    on_memory(test)


def test_what_only_a_person_can_judge_is_left_alone() -> None:
    async def test(core: Core) -> None:
        job = await a_job(core)
        odd = [Jobs.key(job.id), Agents.key("odd"), "jobs/readme.txt", "pending/default/nonsense", "children/x"]
        old_entry = Pending("default", 0, OLD, job.id, 1, Shape(1000, 0, 0, "", 0, False)).key()
        its_own = [Work.log(job.id, 1, 0, 1), entry_of(job).key(), old_entry, "blobs/2020-01/perhaps-its-callable"]
        for key in its_own:
            await core.store.put(key, b"{}", ANY)
        for key in odd:
            await core.store.put(key, b"garbage", ANY)
        for _ in range(2):
            troubles = await fsck.check(core)
            assert {trouble.key for trouble in troubles} == set(odd)
            assert {trouble.remedy for trouble in troubles} == {fsck.BY_HAND}
            await fsck.repair(core)
        assert {row.key for row in await core.store.list("")} >= {*odd, *its_own}

    on_memory(test)


def test_blobs_that_a_submitter_may_be_about_to_name_stay() -> None:
    async def test(core: Core) -> None:
        call = {"callable": {"pickle": base64.b64encode(os.urandom(100_000)).decode()}}
        [submitted] = await submit(core, [parse_spec({"name": "big", "entrypoint": call})])
        used = submitted.job.spec.entrypoint.callable
        assert used is not None
        month = used.blob.split("/")[1]
        await core.store.put(f"blobs/{month}/new", b"", ANY)
        await core.store.put("blobs/2020-01/old", b"", ANY)
        await fsck.repair(core)
        left = [row.key for row in await core.store.list("blobs/")]
        assert left == sorted([used.blob, f"blobs/{month}/new"])

    on_memory(test)


def test_a_live_cluster_in_order_has_no_troubles() -> None:
    async def test(core: Core) -> None:
        job = await running_under(core, "live")
        await core.store.delete(entry_of(job).key())
        await an_agent(core, "live", holdings={job.id: Holding(attempt=1, phase="running")})
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
