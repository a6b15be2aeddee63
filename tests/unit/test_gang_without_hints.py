"""How soon a gang's replicas end after one has failed if agents take no hints and only poll; in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fray_agents.agent.agent import Agent, AgentOptions
from fray_agents.tasks.task_handle import TaskExit, TaskHandle, TaskSpec
from fray_coordinator.jobs.stopping import stop
from fray_coordinator.jobs.submission import submit
from fray_layouts.records import AttemptExit, Resources
from fray_layouts.spec_parsing import parse_spec
from tests.support.fake_tasks import FakeTask
from tests.support.virtual import Cluster

ONE_CORE = Resources(cpu=1000, memory=2**33, disk=2**33)
REPLICAS, FAILURES = 4, 12
BOUND = 10.0
"""Virtual seconds within which all others have ended: their agents beat and look at its record every few seconds."""


@dataclass
class Replicas:
    """The tasks of each attempt, by replica."""

    folder: Path
    of: dict[int, dict[int, FakeTask]] = field(default_factory=dict)

    async def start(self, spec: TaskSpec, deadline: float, lock_fd: int | None) -> TaskHandle:
        task = FakeTask(spec, self.folder, 1e6, b"", None)
        self.of.setdefault(int(spec.env["FRAY_ATTEMPT"]), {})[int(spec.env["FRAY_REPLICA"])] = task
        return task

    async def all_run(self, attempt: int) -> dict[int, FakeTask]:
        async with asyncio.timeout(300):
            while len(self.of.get(attempt, {})) < REPLICAS:  # noqa: ASYNC110  time is virtual
                await asyncio.sleep(0.1)
        return self.of[attempt]


@pytest.mark.slow
async def test_all_end_within_ten_seconds_after_one_has_failed(cluster: Cluster, tmp_path: Path) -> None:
    replicas = Replicas(tmp_path)
    options = AgentOptions(capacity=ONE_CORE, work_dir=tmp_path, start_task=replicas.start)
    agents = [Agent(await cluster.core(local=False), options) for _ in range(REPLICAS)]
    running = [asyncio.create_task(agent.run()) for agent in agents]
    client = await cluster.core(local=False)
    spec = {"name": "gang", "entrypoint": {"command": ["true"]}, "replicas": REPLICAS, "max_retries_failure": FAILURES}
    (submitted,) = await submit(client, [parse_spec(spec)])
    late: list[float] = []
    for attempt in range(1, FAILURES + 1):
        tasks = await replicas.all_run(attempt)
        await asyncio.sleep(10 + attempt * 0.7)  # heartbeats and looks are at another point each time
        failed_at = client.clock.boottime()
        tasks.pop(attempt % REPLICAS).exit.set_result(TaskExit(AttemptExit(kind="exited"), None, True))
        await asyncio.gather(*(asyncio.shield(task.exit) for task in tasks.values()))
        late.append(client.clock.boottime() - failed_at)
    assert max(late) < BOUND, late
    await stop(client, submitted.job.id, "enough")
    for agent in agents:
        agent.terminate()
    await asyncio.gather(*running)
