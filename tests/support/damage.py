"""Parts of a sound cluster, which tests of fsck then damage by hand."""

from __future__ import annotations

import base64
import os
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from fray_coordinator import fsck
from fray_coordinator.actors import naming
from fray_coordinator.core import Core
from fray_coordinator.jobs.submission import create_child_entry, submit
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.queue.open_queue import open_queue
from fray_layouts.object_keys import AgentKeys, EndpointKey, JobKeys
from fray_layouts.queue_keys import QueueKeys
from fray_layouts.records import (
    AgentRecord,
    EndpointRecord,
    Holding,
    JobLease,
    JobRecord,
    ParentLink,
)
from fray_layouts.spec_parsing import parse_spec

OLD = 1_000_000.0
LONG = 200.0
"""Seconds after which no operation is in progress any more."""

Make = Callable[[Core], Awaitable[str]]


async def a_job(core: Core, **spec: Any) -> JobRecord:
    [submitted] = await submit(core, [parse_spec({"name": "job", "entrypoint": {"command": ["true"]}, **spec})])
    return submitted.job


async def a_large_job(core: Core) -> tuple[JobRecord, str]:
    """A job whose callable is an object of its own, and the key of that object."""
    call = {"callable": {"pickle": base64.b64encode(os.urandom(100_000)).decode()}}
    job = await a_job(core, entrypoint=call)
    assert job.spec.entrypoint.callable is not None
    return job, job.spec.entrypoint.callable.blob


async def rewrite(core: Core, job: JobRecord, **changes: Any) -> JobRecord:
    update = await core.records.update(
        JobKeys.key(job.id), JobRecord, lambda now: replace(now, **changes) if now else None
    )
    assert update.stored is not None
    return update.stored.record


async def an_agent(core: Core, name: str, **fields: Any) -> None:
    record = AgentRecord(id=name, host="h", pool="default", **fields)
    await core.records.write(AgentKeys.key(name), AgentRecord, record, None)


async def a_job_running_under(core: Core, agent: str) -> JobRecord:
    """A job whose record says that the agent runs it, and whose entry is gone."""
    job = await a_job(core)
    await core.store.delete(entry_of(job).key())
    lease = JobLease(agent=agent, host="h", since=0)
    return await rewrite(core, job, status="running", started_at=core.now(), lease=lease)


async def a_job_held_by(core: Core, agent: str) -> JobRecord:
    """A job that a live agent runs and lists."""
    job = await a_job_running_under(core, agent)
    await an_agent(core, agent, holdings={job.id: Holding(attempt=1, phase="running")})
    return job


async def a_succeeded_job(core: Core, **changes: Any) -> JobRecord:
    """A job that has succeeded."""
    job = await a_job(core)
    await core.store.delete(entry_of(job).key())
    return await rewrite(core, job, **{"status": "succeeded", "ended_at": core.now(), **changes})


async def a_child_of(core: Core, parent: str, entered: bool = True) -> JobRecord:
    child = await a_job(core)
    child = await rewrite(core, child, parent=ParentLink(job=parent, attempt=1))
    if entered:
        await create_child_entry(core, child)
    return child


async def an_endpoint_of(core: Core, job: str) -> str:
    record = EndpointRecord(namespace="n", name="x", actor_id="id", job=job, attempt=1, nonce="n", address="a:1")
    await core.records.write(EndpointKey("n", "x", "id").key(), EndpointRecord, record, None)
    return EndpointKey("n", "x", "id").key()


async def a_queue(core: Core) -> QueueKeys:
    """An empty queue, the first of its name."""
    queue = QueueKeys.of("n", "q", (await naming.take_name(core, "n", "queue", "q", "", exist_ok=True)).incarnation)
    await open_queue(core, queue)
    return queue


async def everything(core: Core) -> dict[str, str | None]:
    return {row.key: row.version for row in await core.store.list("", versions=True)}


async def assert_left_alone(core: Core, key: str, words: str, remedy: str) -> None:
    """Check that fsck reports the object under `key` with these words, and that no repair changes anything."""
    await core.clock.sleep(LONG)
    before = await everything(core)
    for _ in range(2):
        [problem] = await fsck.check(core)
        assert problem.key == key
        assert words in problem.what
        assert remedy in problem.remedy
        assert "--repair" not in problem.remedy
        await fsck.repair(core)
    assert await everything(core) == before
