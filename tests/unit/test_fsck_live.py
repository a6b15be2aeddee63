"""fsck on a cluster at work reports nothing, also in the middle of changes. Real agents, in virtual time."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from fray_agents.agent.agent import Agent, AgentOptions
from fray_coordinator import fsck
from fray_coordinator.core import Core
from fray_coordinator.jobs.lookup import all_jobs
from fray_coordinator.jobs.notifications import drain
from fray_coordinator.jobs.stopping import stop
from fray_coordinator.protocol.transitions import is_terminal
from fray_coordinator.store.interface import ANY
from fray_layouts.records import JobRecord, Resources
from fray_layouts.work_keys import InboxKeys
from tests.support.fake_tasks import fake
from tests.support.scripted_agents import launch
from tests.support.slow_reads import recorded_findings, slow_core
from tests.support.virtual import Cluster

HOST = Resources(cpu=4000, memory=2**33, disk=2**33)
SECONDS = {"quick": 1.0, "slow": 30.0, "parent": 60.0}
WORKING = 150.0
"""Virtual seconds; agents repair every minute, a death is told within half of one, and fsck waits for two."""


class Site:
    """The agents of a cluster and its users, all of which act at random."""

    def __init__(self, cluster: Cluster, folder: Path, seed: int) -> None:
        self.cluster = cluster
        self.draw = random.Random(seed)
        self.agents: list[tuple[Agent, asyncio.Task[object]]] = []
        self.parents: list[JobRecord] = []
        self._options = AgentOptions(
            capacity=HOST, work_dir=folder, start_task=fake(folder, SECONDS, b"", b"x" * 10**5)
        )

    async def start_agent(self) -> None:
        agent = Agent(await self.cluster.core(local=False), self._options)
        self.agents.append((agent, asyncio.create_task(agent.run())))

    async def work(self, user: Core) -> None:
        """Use the cluster, and remove an agent now and then."""
        acts: dict[Callable[[Core], Awaitable[None]], int] = {
            self.submit: 8, self.beget: 6, self.drop: 3, self.stop: 2, self.lose_an_agent: 1
        }  # fmt: skip
        while user.clock.boottime() < WORKING:
            await user.clock.sleep(self.draw.expovariate(1 / 2))
            [act] = self.draw.choices(list(acts), list(acts.values()))
            await act(user)

    async def submit(self, user: Core) -> None:
        job = await launch(user, name=self.draw.choice(list(SECONDS)))
        if job.spec.name == "parent":
            self.parents.append(job)

    async def beget(self, user: Core) -> None:
        for parent in self.draw.sample(self.parents, min(2, len(self.parents))):
            found = await user.records.read(f"jobs/{parent.id}.json", JobRecord)
            if found is not None and found.record.status == "running":
                name = self.draw.choice(["quick", "slow"])
                await launch(user, attempt_of_parent=found.record.attempt, name=name, parent=parent.id)

    async def drop(self, user: Core) -> None:
        spec = {"name": "quick", "entrypoint": {"command": ["true"]}}
        await user.store.put(InboxKeys.key(user.rng.token()), json.dumps(spec).encode(), ANY)

    async def stop(self, user: Core) -> None:
        alive = [job for job in await all_jobs(user, {}) if not is_terminal(job)]
        if alive:
            await stop(user, self.draw.choice(alive).id, "a user wished so")

    async def lose_an_agent(self, user: Core) -> None:
        """Ask the agent to leave, tell it to leave, or kill it; another one replaces it."""
        agent, running = self.agents.pop(0)
        match self.draw.choice(["drain", "terminate", "die"]):
            case "drain":
                await drain(user, agent.id)
            case "terminate":
                agent.terminate()
            case _:
                running.cancel()
        await self.start_agent()


async def test_nothing_is_wrong_with_a_cluster_at_work(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suspicions = recorded_findings(monkeypatch)

    site, user, checker = Site(cluster, tmp_path, 1), await cluster.core(), await slow_core(cluster)
    for _ in range(3):
        await site.start_agent()
    working = asyncio.create_task(site.work(user))
    while not working.done():
        await checker.clock.sleep(site.draw.uniform(0.1, 5))
        assert await fsck.check(checker) == []
    await working
    for _, agent in site.agents:
        agent.cancel()
    await asyncio.gather(*(agent for _, agent in site.agents), return_exceptions=True)
    assert suspicions, "at least one first look met something half-way"
