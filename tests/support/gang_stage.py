"""A gang whose members consist of records, runners and scripted tasks, which end when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fray_agents.agent.devices import ChipWatch, GpuWatch
from fray_agents.agent.gang_runner import GangRunner
from fray_agents.agent.held import HeldBundle, HeldPlacement
from fray_agents.agent.leases import Leases
from fray_agents.agent.membership import Membership
from fray_agents.agent.replica_runner import ReplicaRunner
from fray_agents.environments.prepare import Preparer
from fray_agents.tasks.output_files import FoundOutputs
from fray_agents.tasks.task_handle import ResultFile, TaskExit, TaskFile, TaskHandle, TaskSpec
from fray_coordinator.core import Core
from fray_coordinator.jobs import notifications
from fray_coordinator.jobs.gang_peers import PeerAnswer
from fray_coordinator.protocol.placements.owners import owner_of_job
from fray_coordinator.store.interface import ABSENT
from fray_coordinator.store.records import Stored
from fray_layouts.object_keys import AgentKeys, JobKeys
from fray_layouts.records import (
    AgentRecord,
    AttemptExit,
    HintEndpoint,
    JobRecord,
    Placement,
    PlacementMember,
    ReplicaExit,
    Resources,
    ResourceUsage,
)
from fray_layouts.spec_parsing import parse_spec
from fray_runtime.network import NetworkSettings
from tests.support.virtual import Cluster

HOST = Resources(cpu=8000, memory=2**33, disk=2**33)


class ScriptedTask:
    """A replica's task: it ends when the test says so, or when its runner ends it."""

    def __init__(self, spec: TaskSpec, folder: Path) -> None:
        self.usage = ResourceUsage()
        self.unkilled: list[int] = []
        self.spec = spec
        self.exit: asyncio.Future[TaskExit] = asyncio.get_running_loop().create_future()
        self.told: list[tuple[float, str]] = []
        self._file = folder / f"{spec.directory.name}.out"

    def ends(self, kind: str = "success", result: bytes | None = None) -> None:
        """Let the task end by itself."""
        file = None
        if result is not None:
            self._file.write_bytes(result)
            file = ResultFile(self._file, "bytes", len(result))
        if not self.exit.done():
            self.exit.set_result(TaskExit(AttemptExit(kind=kind, message=f"it {kind}"), file, True))

    def set_deadline(self, boottime: float) -> None:
        """Do nothing: it has no deadline."""

    def stop(self, grace: float, why: str) -> None:
        self.told.append((grace, why))
        if not self.exit.done():
            self.exit.set_result(TaskExit(AttemptExit(kind=why), None, False))

    def kill(self) -> None:
        self.stop(0.0, "stopped")

    async def chunks(self) -> AsyncIterator[tuple[int, TaskFile]]:
        await asyncio.shield(self.exit)
        self._file.with_suffix(".log").write_bytes(f"log of {self.spec.env['FRAY_REPLICA']}".encode())
        yield 1, TaskFile(self._file.with_suffix(".log"))

    def read_file(self, name: str) -> bytes | None:
        return None

    async def wait(self) -> None:
        await asyncio.shield(self.exit)

    def find_outputs(self, patterns: Sequence[str]) -> FoundOutputs:
        raise AssertionError("no test asks these tasks for outputs")

    async def discard(self) -> None:
        """Do nothing: there is nothing to remove."""


@dataclass
class GangStage:
    """A gang whose members' agents consist of their records and runners.

    Attributes:
        answering: agents that answer when they are asked directly. gone: agents that are reported as ended.
        tasks: by replica, once they are started.
        late: the result of each member's runner. lives: each member's coroutine, until its work is done.
        asked: agents that were asked whether they live, in that order.
    """

    core: Core
    folder: Path
    gang: Stored[JobRecord]
    answering: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    tasks: dict[int, ScriptedTask] = field(default_factory=dict)
    held: dict[str, HeldPlacement] = field(default_factory=dict)
    runners: dict[str, GangRunner] = field(default_factory=dict)
    late: dict[str, asyncio.Task[dict[int, ReplicaExit]]] = field(default_factory=dict)
    lives: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    notified_pass: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    async def run(self, *agents: str) -> None:
        """Let the members run their replicas, and wait until all replicas are started."""
        for agent in agents:
            held = self.held[agent] = self._hold(agent)
            runner = self.runners[agent] = await self._runner(agent)
            self.late[agent] = asyncio.create_task(runner.run(held))
            self.lives[agent] = asyncio.create_task(self._live(agent))
        await asyncio.sleep(0.01)
        assert all(bundle.task is not None for agent in agents for bundle in self.held[agent].bundles)

    async def _live(self, agent: str) -> None:
        late = await self.late[agent]
        await self.runners[agent].store_late(self.gang.record, late)

    def _hold(self, agent: str) -> HeldPlacement:
        owner = owner_of_job(self.gang.record)
        bundles = [HeldBundle(number=n, wants=owner.parts[0].shape, taken=True) for n in owner.bundles_of(agent)]
        return HeldPlacement(owner, self.gang, tuple(bundles), phase="running")

    async def _runner(self, agent: str) -> GangRunner:
        known = await self.core.records.read(AgentKeys.key(agent), AgentRecord)
        assert known is not None
        member = Membership(self.core, known.record, Leases(HOST), known, trusted_until=float("inf"))
        gpus, chips, preparer = GpuWatch(member, {}), ChipWatch(member, None), Preparer(self.core, None)
        replicas = ReplicaRunner(member, self.folder, None, self._start, gpus, chips, preparer, NetworkSettings())
        return GangRunner(member, replicas, self._ask, lambda: self.notified_pass.append(agent))

    async def _start(self, spec: TaskSpec, deadline: float, lock_fd: int | None) -> TaskHandle:
        task = self.tasks[int(spec.env["FRAY_REPLICA"])] = ScriptedTask(spec, self.folder)
        return task

    async def _ask(self, endpoint: HintEndpoint) -> PeerAnswer:
        self.asked.append(endpoint.address)
        if endpoint.address in self.gone:
            return PeerAnswer.GONE
        return PeerAnswer.LIVES if endpoint.address in self.answering else PeerAnswer.SILENT

    async def now(self) -> JobRecord:
        stored = await self.core.records.read(self.gang.key, JobRecord)
        assert stored is not None
        return stored.record

    async def over(self, *agents: str) -> JobRecord:
        """Wait until these members have done all their work; return the job's record."""
        async with asyncio.timeout(10_000):
            await asyncio.gather(*(self.lives[agent] for agent in agents))
        return await self.now()

    async def agent_is(self, agent: str, **fields: Any) -> None:
        """Change an agent's record."""

        def change(record: AgentRecord) -> AgentRecord:
            return replace(record, **fields)

        await self.core.records.change(AgentKeys.key(agent), AgentRecord, change)

    async def beats(self, agent: str) -> None:
        """Let the agent send heartbeats."""
        for beat in range(1, 1000):
            await self.agent_is(agent, beat=beat, holdings={"g-1": self.held[agent].holding()})
            await asyncio.sleep(5)


async def stage_of(cluster: Cluster, folder: Path, members: dict[str, list[int]], **spec: Any) -> GangStage:
    """A gang that runs on these members, whose agent records exist."""
    core = await cluster.core()
    wanted = {"name": "g", "entrypoint": {"command": ["x"]}, "namespace": "g-1", "grace": 3}
    replicas = sum(len(bundles) for bundles in members.values())
    placed = [PlacementMember(agent=a, host=f"h{a}", address=a, bundles=b) for a, b in members.items()]
    job = JobRecord(
        id="g-1",
        spec=parse_spec({**wanted, "replicas": replicas, **spec}),
        status="running",
        submitted_at=core.now(),
        started_at=core.now(),
        placement=Placement(round=1, members=placed),
    )
    for agent in members:
        endpoint = HintEndpoint(address=agent, nonce="n")
        record = AgentRecord(id=agent, host=f"h{agent}", pool="default", hint_endpoint=endpoint)
        await core.records.put(AgentKeys.key(agent), record, ABSENT)
    await notifications.enter(core, job)
    await core.records.put(JobKeys.key(job.id), job, ABSENT)
    stored = await core.records.read(JobKeys.key(job.id), JobRecord)
    assert stored is not None
    return GangStage(core, folder, stored, set(members))
