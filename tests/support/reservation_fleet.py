"""Agents of two cores each that hold reservations in virtual time, and a client that submits jobs to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fray_agents.agent.agent import Agent, AgentOptions
from fray_agents.host.capacity import HostPlace
from fray_coordinator.core import Core
from fray_coordinator.jobs.submission import submit
from fray_coordinator.placements import launching, reservations
from fray_coordinator.placements.launching import GroupWish, ReservationRouter
from fray_layouts.object_keys import JobIds
from fray_layouts.records import JobRecord, ReservationRecord, ReservedPart, Resources, SliceMember
from fray_layouts.spec import GangSpec, JobSpec, ResourceSpec
from fray_layouts.spec_parsing import parse_spec
from tests.support.fake_tasks import fake
from tests.support.scripted_agents import job_now
from tests.support.virtual import Cluster

HOST = Resources(cpu=2000, memory=2**33, disk=2**33)
BOUND = 120.0
"""Virtual seconds within which each of these has to come about: two repairs."""


class Fleet:
    """Agents of two cores each, and a submitter."""

    def __init__(self, cluster: Cluster, core: Core, folder: Path) -> None:
        self.cluster, self.core, self.folder = cluster, core, folder
        self.seconds: dict[str, float] = {"job": 30.0, "long": 1e6}
        self.agents: dict[str, Agent] = {}
        self.running: dict[str, asyncio.Task[Any]] = {}

    async def join(self, *names: str) -> None:
        for name in names:
            await self._start(name, HOST, None)

    async def join_small(self, name: str) -> None:
        """Add a host of one core."""
        await self._start(name, replace(HOST, cpu=1000), None)

    async def join_slice(self, slice_id: str, name: str, index: int = 0) -> None:
        """Add a host of a slice of two."""
        capacity = replace(HOST, device="tpu-v5litepod-16", device_count=4)
        await self._start(name, capacity, SliceMember(id=slice_id, type="v5litepod-16", index=index, hosts=2))

    async def _start(self, name: str, capacity: Resources, of_slice: SliceMember | None) -> None:
        folder = self.folder / name
        folder.mkdir()
        options = AgentOptions(
            capacity=capacity, work_dir=folder, start_task=fake(folder, self.seconds), place=HostPlace(slice=of_slice)
        )
        agent = self.agents[name] = Agent(await self.cluster.core(), options)
        self.running[name] = asyncio.create_task(agent.run())

    async def crash(self, name: str) -> None:
        """End an agent as a crash does."""
        self.running[name].cancel()
        await asyncio.wait([self.running[name]])

    async def leave(self, name: str) -> None:
        self.agents[name].terminate()
        await self.running[name]

    def name_of(self, agent: str) -> str:
        return next(name for name, one in self.agents.items() if one.id == agent)

    async def submit(self, name: str = "job", **fields: Any) -> JobRecord:
        (spec,) = await ReservationRouter().route(self.core, [self.spec(name, **fields)])
        (submitted,) = await submit(self.core, [spec])
        await asyncio.sleep(0.1)  # virtual: the next one is later in the index
        return submitted.job

    def spec(self, name: str = "job", **fields: Any) -> JobSpec:
        return parse_spec({"name": name, "entrypoint": {"command": ["true"]}, "namespace": "team", **fields})

    async def reserve(self, least: int, most: int = 0, cpu: float = 1.0) -> ReservationRecord:
        counts = [least, *([most - least] if most > least else [])]
        record = ReservationRecord(
            id=JobIds.fresh("reservation", self.core.now(), self.core.rng.token()),
            kind="reservation",
            namespace="team",
            submitted_at=self.core.now(),
            parts=[ReservedPart(gang=GangSpec(resources=ResourceSpec(cpu=cpu), count=n)) for n in counts],
            low=least,
        )
        return await reservations.create(self.core, record)

    async def launch(self, *specs: JobSpec) -> list[JobRecord]:
        return [one.job for one in await launching.launch(self.core, list(specs), GroupWish("group"))]

    async def now(self, reservation: str) -> ReservationRecord:
        return (await reservations.read(self.core, reservation)).record

    async def until(self, what: Callable[[], Awaitable[bool]], bound: float = BOUND) -> None:
        for _ in range(int(bound)):
            if await what():
                return
            await asyncio.sleep(1.0)
        raise AssertionError("it has not come about in time")

    async def has_status(self, job: JobRecord, status: str) -> bool:
        return (await job_now(self.core, job.id)).status == status

    async def runs(self, *jobs: JobRecord) -> None:
        for job in jobs:
            await self.until(partial(self.has_status, job, "running"))

    async def bundles(self, reservation: str) -> int:
        """The number of bundles that agents really hold."""
        held = [agent.member.leases.placements.get(reservation) for agent in self.live()]
        return sum(bundle.taken for one in held if one is not None for bundle in one.bundles)

    async def has_bundles(self, reservation: str, count: int) -> None:
        async def has() -> bool:
            return await self.bundles(reservation) == count

        await self.until(has)

    async def is_held(self, reservation: str) -> None:
        async def held() -> bool:
            return (await self.now(reservation)).state == "held"

        await self.until(held)

    def live(self) -> list[Agent]:
        return [agent for name, agent in self.agents.items() if not self.running[name].done()]

    async def nothing_held(self) -> bool:
        return all(agent.member.leases.free() == agent.member.leases.capacity for agent in self.live())


@asynccontextmanager
async def fleet(cluster: Cluster, folder: Path, *names: str) -> AsyncIterator[Fleet]:
    found = Fleet(cluster, await cluster.core(), folder)
    await found.join(*names)
    await asyncio.sleep(20.0)
    try:
        yield found
    finally:
        for running in found.running.values():
            running.cancel()
        await asyncio.gather(*found.running.values(), return_exceptions=True)
