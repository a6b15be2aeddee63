"""An agent in virtual time that meets its own jobs again."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fray_agents.agent import Agent, AgentOptions
from fray_agents.taskhandle import TaskHandle
from fray_agents.tasks import TaskSpec
from fray_coordinator.follow import wait_for
from fray_coordinator.submit import submit
from fray_layouts.records import JobRecord, Resources
from fray_layouts.spec import parse_spec

from tests.support.faketask import FakeTask
from tests.support.virtual import Cluster, run

HOST = Resources(cpu=4000, memory=2**33, disk=2**33)


class FailsAtFirst(FakeTask):
    def _end(self, kind: str) -> None:
        super()._end("exited" if self.attempt == "1" else kind)


def test_a_failed_job_starts_again_on_the_same_agent_once_its_backoff_is_over(tmp_path: Path) -> None:
    async def start(spec: TaskSpec, deadline: float, lock_fd: int | None) -> TaskHandle:
        return FailsAtFirst(spec, tmp_path, 0.2, b"", None)

    async def main(cluster: Cluster) -> JobRecord:
        core = await cluster.core(local=False)
        agent = Agent(core, AgentOptions(capacity=HOST, work_dir=tmp_path, start_task=start))
        running = asyncio.create_task(agent.run())
        spec = {"name": "job", "entrypoint": {"command": ["true"]}, "max_retries_failure": 1}
        (submitted,) = await submit(core, [parse_spec(spec)])
        done = await wait_for(core, [submitted.job.id])
        agent.terminate()
        await running
        return done[submitted.job.id]

    job = run(main)
    assert (job.status, job.attempt) == ("succeeded", 2)
    assert job.started_at is not None
    assert job.started_at - job.history[0].ended_at < 10  # back-off 1 s, doorbell a few; a repair comes after 60
