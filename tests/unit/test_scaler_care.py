"""Looks of the scaler: whose jobs count as waiting, also while a provider is slow, and which answers are stored."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fray_agents.agent.agent import Agent, AgentOptions
from fray_agents.provisioning.scaler import Scaler
from fray_coordinator.core import Core
from fray_coordinator.jobs.submission import submit
from fray_coordinator.store.interface import ABSENT
from fray_layouts.object_keys import AgentKeys, JobKeys, MachineKeys
from fray_layouts.records import AgentRecord, Holding, JobLease, JobRecord, MachineRecord
from fray_layouts.spec_parsing import parse_spec
from tests.support.fake_tasks import fake
from tests.support.memory_provider import MemoryProvider
from tests.support.virtual import Cluster
from tests.unit.test_scaler import HOST, POOL, SCOPE, with_jobs, with_pool


async def with_silent_agent(core: Core, state: str, job: dict[str, Any], **fields: Any) -> None:
    """An agent whose last beat is an hour old, or that was declared dead, and its jobs."""
    spec = parse_spec({"name": "j", "pool": POOL, "entrypoint": {"command": ["true"]}, **job})
    record = JobRecord(
        id="j-1",
        spec=spec,
        status="running",
        lease=JobLease(agent="a", host="h", since=core.now()),
        driver="driver" in fields,
    )
    holdings = {"j-1": Holding(attempt=1, phase="running")}
    agent = AgentRecord(id="a", host="h", pool=POOL, state=state, capacity=HOST, holdings=holdings, **fields)
    await core.records.put(AgentKeys.key("a"), agent, ABSENT)
    await core.records.put(JobKeys.key("j-1"), record, ABSENT)
    await asyncio.sleep(0 if state == "dead" else 3500)


@pytest.mark.parametrize(
    ("state", "job", "fields", "machines"),
    [
        ("live", {}, {}, 1),
        ("dead", {}, {}, 1),
        ("dead", {}, {"reaped": True}, 0),
        ("live", {"replicas": 2}, {}, 0),
        ("live", {}, {"driver": True}, 0),
    ],
)
async def test_a_job_whose_agent_was_lost_waits_though_nobody_has_requeued_it(
    cluster: Cluster, state: str, job: dict[str, Any], fields: dict[str, Any], machines: int
) -> None:
    """A requeued gang waits as an owner. A program that has ended needs no machine."""
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core)
    await with_silent_agent(core, state, job, **fields)
    await Scaler(core, "one", SCOPE, provider.open).run_once()
    assert len(provider.machines) == machines


async def test_a_job_that_is_claimed_during_a_run_waits_no_more(cluster: Cluster) -> None:
    """Its agent may have come after the run had read the agents."""
    core, provider = await cluster.core(), MemoryProvider(slow=20.0)
    await with_pool(core)
    (done,) = await submit(core, [parse_spec({"name": "j", "pool": POOL, "entrypoint": {"command": ["true"]}})])
    looking = asyncio.create_task(Scaler(core, "one", SCOPE, provider.open).run_once())
    await asyncio.sleep(10)
    lease = JobLease(agent="new", host="h", since=core.now())
    key = JobKeys.key(done.job.id)
    await core.records.update(key, JobRecord, lambda now: replace(done.job, status="running", lease=lease))
    await looking
    assert provider.asked == []


async def test_a_providers_answer_is_stored(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core)
    await with_jobs(core, 1)
    await Scaler(core, "one", SCOPE, provider.open).run_once()
    (key,) = cluster.keys(MachineKeys.folder(POOL))
    found = await core.records.read(key, MachineRecord)
    assert found is not None
    assert (found.record.operation, found.record.created_at) == ("operation", core.now())


async def test_agents_are_not_silent_because_their_provider_is_slow(cluster: Cluster, tmp_path: Path) -> None:
    core, provider = await cluster.core(), MemoryProvider(slow=80.0)
    await with_pool(core)
    await with_jobs(core, 1)
    options = AgentOptions(pool=POOL, capacity=HOST, work_dir=tmp_path, start_task=fake(tmp_path, {"job": 3600.0}))
    agent = Agent(await cluster.core(), options)
    running = asyncio.create_task(agent.run())
    await asyncio.sleep(60)
    await Scaler(core, "one", SCOPE, provider.open).run_once()
    assert provider.asked == [], "its job does not wait for a machine"
    running.cancel()


async def test_machines_that_a_zone_refuses_at_once_are_one_refusal(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider(refuse={"us-a": "stockout"})
    await with_pool(core, zones=["us-a"])
    await with_jobs(core, 4)
    found = await Scaler(core, "one", SCOPE, provider.open).run_once()
    assert provider.asked == [("create", "us-a")] * 4
    assert found[POOL].zones["us-a"].times == 1
