"""The requests of a gang of four from its submission to its success, counted over all participants."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from fray_agents.agent.agent import Agent, AgentOptions
from fray_agents.tasks.task_handle import TaskHandle, TaskSpec
from fray_coordinator.core import Core
from fray_coordinator.jobs.submission import submit
from fray_coordinator.jobs.waiting import wait_for
from fray_layouts.object_keys import JobKeys
from fray_layouts.records import HintEndpoint, JobRecord, Resources
from fray_layouts.spec_parsing import parse_spec
from tests.support.fake_tasks import FakeTask
from tests.support.virtual import Cluster

ONE_CORE = Resources(cpu=1000, memory=2**33, disk=2**33)
CALM = 300.0
"""Virtual seconds until agents that found nothing look as rarely as they ever will."""

REPLICAS = 4


class Fleet:
    """Agents of one core each that accept hints."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.by_nonce: dict[str, Agent] = {}
        self.running: list[asyncio.Task[object]] = []

    async def join(self) -> None:
        core = await self.cluster.core(local=False)
        endpoint = HintEndpoint(address="host:1", nonce=core.rng.token())
        options = AgentOptions(
            capacity=ONE_CORE,
            work_dir=self.folder,
            start_task=self.start,
            hint_endpoint=endpoint,
            send_hints=self.send_hints,
        )
        self.by_nonce[endpoint.nonce] = agent = Agent(core, options)
        self.running.append(asyncio.create_task(agent.run()))

    async def start(self, spec: TaskSpec, deadline: float, lock_fd: int | None) -> TaskHandle:
        """Replicas end one after the other."""
        return FakeTask(spec, self.folder, 30.0 + int(spec.env["FRAY_REPLICA"]), b"", None)

    def send_hints(self, endpoints: Collection[HintEndpoint]) -> None:
        for endpoint in endpoints:
            self.by_nonce[endpoint.nonce].check_placements()

    async def leave(self) -> None:
        for agent in self.by_nonce.values():
            agent.terminate()
        await asyncio.gather(*self.running)


async def test_a_gang_of_four_costs_seven_writes_besides_its_votes_until_it_runs_and_six_until_it_has_ended(
    cluster: Cluster, tmp_path: Path
) -> None:
    fleet = Fleet(cluster, tmp_path)
    client = await cluster.core(local=False)
    for _ in range(REPLICAS):
        await fleet.join()
    await asyncio.sleep(CALM)
    for connection in cluster.connections:
        connection.asked.clear()
    spec = {"name": "gang", "entrypoint": {"command": ["true"]}, "replicas": REPLICAS}
    (submitted,) = await submit(client, [parse_spec(spec)])
    gang = submitted.job.id
    fleet.send_hints([HintEndpoint(address="host:1", nonce=nonce) for nonce in fleet.by_nonce])
    await wait_until_running(client, gang)
    forming = written(cluster, gang)
    assert forming == {
        "placements/": 1,
        "jobs/": 3,  # created, assigned, started
        "placements/bell": 1,
        "pools/default/plan.json": 1,
        "pools/default/doorbell": 1,
    }
    ended = await wait_for(client, [gang])
    assert ended[gang].status == "succeeded"
    await asyncio.sleep(1.0)
    assert written(cluster, gang) - forming == {"work/": REPLICAS, "jobs/": 1, "placements/bell": 1, "removed": 1}
    # Each member lists after its own exit, and the one that writes the end lists once more.
    assert listed(cluster, f"work/{gang}/") == REPLICAS + 1
    await fleet.leave()


async def wait_until_running(core: Core, gang: str) -> None:
    while True:
        found = await core.records.read(JobKeys.key(gang), JobRecord)
        if found is not None and found.record.status == "running":
            return
        await asyncio.sleep(0.1)


def written(cluster: Cluster, gang: str) -> Counter[str]:
    """All writes so far, by area for the gang's own and by key for the others; without heartbeats."""
    tally: Counter[str] = Counter()
    for connection in cluster.connections:
        for verb, key in connection.asked:
            if verb == "delete" and gang in key:
                tally["removed"] += 1
            elif verb == "put" and gang in key:
                tally[f"{key.partition('/')[0]}/"] += 1
            elif verb == "put" and key.startswith(("placements/", "pools/")):
                tally[key] += 1
    return tally


def listed(cluster: Cluster, prefix: str) -> int:
    return sum(
        verb == "list" and key.startswith(prefix)
        for connection in cluster.connections
        for verb, key in connection.asked
    )
