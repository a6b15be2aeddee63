"""The view of a gang: where its replicas are, what each returned, and what they use together."""

from __future__ import annotations

import uuid

import pytest

from fray.cluster.job_info import fetch_result, fetch_results, info_of
from fray.errors import NoResult
from fray_coordinator.core import Core, open_core
from fray_coordinator.jobs.lookup import job_usage
from fray_layouts.errors import InvalidInput
from fray_layouts.object_keys import AgentKeys, JobKeys
from fray_layouts.records import (
    AgentRecord,
    AttemptExit,
    Holding,
    JobRecord,
    JobResult,
    Placement,
    PlacementMember,
    ReplicaExit,
    Resources,
    ResourceUsage,
)
from fray_layouts.spec_parsing import parse_spec
from fray_layouts.work_keys import WorkKeys

SPEC = parse_spec({"name": "train", "entrypoint": {"command": ["true"]}, "replicas": 3})
MEMBERS = [
    PlacementMember(agent="agent-b", host="vm-b", bundles=[2]),
    PlacementMember(agent="agent-a", host="vm-a", bundles=[0, 1]),
]
RUNNING = JobRecord(id="train-1", spec=SPEC, status="running", attempt=2, placement=Placement(members=MEMBERS))


@pytest.fixture
async def core() -> Core:
    return await open_core(f"memory://{uuid.uuid4()}")


async def leave(core: Core, replica: int, result: JobResult | None) -> None:
    left = ReplicaExit(agent="agent-a", host="vm-a", exit=AttemptExit(kind="success"), ended_at=1.0, result=result)
    await core.records.write(WorkKeys.exit(RUNNING.id, RUNNING.attempt, replica), ReplicaExit, left, None)


def test_a_gang_tells_the_host_of_each_replica() -> None:
    info = info_of("memory://x", RUNNING)
    assert (info.replicas, info.hosts) == (3, ("vm-a", "vm-a", "vm-b"))
    assert (info.agent, info.host) == ("agent-a", "vm-a")
    assert repr(info) == "JobInfo('train-1', RUNNING, attempt=2, replicas=3, host='vm-a')"


def test_a_gang_that_gathers_is_pending_and_nowhere() -> None:
    info = info_of("memory://x", JobRecord(id="train-1", spec=SPEC, status="gathering"))
    assert (info.status.value, info.hosts, info.host) == ("pending", (), None)


async def test_every_replica_has_a_result(core: Core) -> None:
    for replica in range(3):
        await leave(core, replica, JobResult(encoding="json", value=replica * 10))
    assert [result.value for result, _ in await fetch_results(core, RUNNING)] == [0, 10, 20]
    result, _ = await fetch_result(core, RUNNING, replica=2)
    assert result.value == 20


async def test_a_replica_without_a_result_is_named(core: Core) -> None:
    await leave(core, 0, JobResult(encoding="json", value=1))
    await leave(core, 1, None)
    with pytest.raises(NoResult, match="replica 1 of job train-1 has no result"):
        await fetch_result(core, RUNNING, replica=1)
    with pytest.raises(InvalidInput, match=r"replica: 3 .*the replicas of train-1 are 0 to 2"):
        await fetch_result(core, RUNNING, replica=3)


async def test_the_result_of_a_job_that_is_no_gang_is_that_of_its_only_replica(core: Core) -> None:
    spec = parse_spec({"name": "one", "entrypoint": {"command": ["true"]}})
    done = JobRecord(id="one-1", spec=spec, status="succeeded", result=JobResult(encoding="json", value=5))
    assert [result.value for result, _ in await fetch_results(core, done)] == [5]
    with pytest.raises(InvalidInput, match=r"replica: 1 .*one-1 has only replica 0"):
        await fetch_result(core, done, replica=1)


async def test_the_usage_of_a_gang_is_the_sum_over_its_members(core: Core) -> None:
    await core.records.write(JobKeys.key(RUNNING.id), JobRecord, RUNNING, None)
    assert await job_usage(core, RUNNING.id) is None
    for name, seconds in (("agent-a", 1.5), ("agent-b", 2.0)):
        usage = ResourceUsage(cpu_seconds=seconds, memory=100)
        held = Holding(attempt=2, phase="running", usage=usage)
        room = Resources(cpu=1000, memory=1, disk=1)
        agent = AgentRecord(
            id=name, host="vm", pool="default", interval=5.0, capacity=room, free=room, holdings={RUNNING.id: held}
        )
        await core.records.write(AgentKeys.key(name), AgentRecord, agent, None)
    assert await job_usage(core, RUNNING.id) == ResourceUsage(cpu_seconds=3.5, memory=200)
