"""Participants on one simulated bucket: real agents with tasks that only take time, and submitters."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from benchmarks.scale.loop import LoopClock
from benchmarks.scale.storage import Storage, StoreConnection
from fray_agents.agent import predecessors
from fray_agents.agent.agent import Agent, AgentOptions
from fray_agents.host import agent_lock
from fray_agents.tasks.task_handle import StartTask, TaskHandle, TaskSpec
from fray_coordinator.clock import RandomSource
from fray_coordinator.core import Core, core_on
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.store.interface import Object
from fray_coordinator.store.memory import digest
from fray_coordinator.store.store import Store
from fray_layouts import codec, object_keys
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import (
    ClusterSettings,
    HintEndpoint,
    JobRecord,
    PendingEntry,
    ReconcilerRecord,
    Resources,
)
from fray_layouts.spec import JobSpec
from fray_layouts.spec_parsing import parse_spec
from tests.support.fake_tasks import FakeTask

ROOM = 2**40
"""Memory and disk of a host, so large that they never keep a job away."""

HINT_SECONDS = 0.002
"""Seconds that a hint needs: a connection within a network, and its first message."""

FOR_EVER = 1e9
"""Seconds."""


@dataclass(slots=True)
class Member:
    """One agent of the fleet and its connection to the bucket."""

    agent: Agent
    connection: StoreConnection
    running: asyncio.Task[object]


@dataclass(slots=True)
class Fleet:
    """Agents on one bucket.

    Attributes:
        tasks: least and most seconds that a task takes; a replica of a gang never ends.
        hints: whether agents take hints; they get them 2 ms after they were sent.
        replicas: when each replica of a gang's attempt began, by the gang's id and the attempt.
    """

    storage: Storage
    folder: Path
    seed: int
    tasks: tuple[float, float] = (20.0, 40.0)
    slots: int = 1
    hints: bool = False
    members: list[Member] = field(default_factory=list)
    replicas: defaultdict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    _cores: int = 0
    _by_nonce: dict[str, Agent] = field(default_factory=dict)

    @property
    def clock(self) -> LoopClock:
        return self.storage.clock

    async def core(self) -> tuple[Core, StoreConnection]:
        """One more participant."""
        connection, rng = StoreConnection(self.storage), RandomSource(f"{self.seed} {self._cores}")
        self._cores += 1
        return await core_on(Store(connection, self.clock, rng), ClusterSettings(), self.clock, rng), connection

    async def join(self, count: int, over: float) -> None:
        """Start agents, spread over `over` seconds."""
        for _ in range(count):
            core, connection = await self.core()
            options = AgentOptions(
                capacity=Resources(cpu=1000 * self.slots, memory=ROOM, disk=ROOM),
                work_dir=self.folder,
                start_task=self._starter(core.rng),
                hint_endpoint=HintEndpoint(address="host:1", nonce=core.rng.token()) if self.hints else None,
                send_hints=self._send_hints,
            )
            agent = Agent(core, options)
            connection.own = AgentKeys.key(agent.id)
            if options.hint_endpoint is not None:
                self._by_nonce[options.hint_endpoint.nonce] = agent
            self.members.append(Member(agent, connection, asyncio.create_task(agent.run())))
            await self.clock.sleep(over / count * core.rng.uniform(0.5, 1.0))

    def enqueue(self, count: int, over: float) -> None:
        """Put pending jobs into the bucket as if submitted evenly over the `over` seconds before now."""
        now = self.clock.wall()
        rng, spec = RandomSource(f"{self.seed} queued"), job_spec()
        for number in range(count):
            submitted_at = round(now - over + over * number / count, 3)
            self._put_job(spec, submitted_at, rng)

    def claims(self) -> tuple[int, int]:
        """Claims won and rejected so far, by all agents."""
        tallies = [member.agent.claim_counts for member in self.members]
        return sum(tally.won for tally in tallies), sum(tally.rejected for tally in tallies)

    def hint_reconciler(self) -> None:
        """Wake the agent that runs the pass, if it takes hints, as submitters of gangs do."""
        lease = codec.decode(
            self.storage.contents.objects[object_keys.CoordinatorKeys.reconciler].data, ReconcilerRecord
        ).record
        if lease.hint_endpoint is not None:
            self._send_hints([lease.hint_endpoint])

    async def leave(self) -> None:
        """End everything at once."""
        for member in self.members:
            member.running.cancel()
        await asyncio.gather(*(member.running for member in self.members), return_exceptions=True)

    def _put_job(self, spec: JobSpec, submitted_at: float, rng: RandomSource) -> None:
        op, token = rng.unique_id(), rng.token()
        job_id = object_keys.JobIds.fresh(spec.name, submitted_at, token)
        job = JobRecord(id=job_id, spec=spec, status="pending", submitted_at=submitted_at, op=op, created_op=op)
        entry = PendingEntry(op=op, created_op=op, job=job_id, attempt=1)
        for key, record in ((object_keys.JobKeys.key(job_id), job), (entry_of(job).key(), entry)):
            data = codec.encode(record)
            self.storage.contents.set(key, Object(data, digest(data), submitted_at))

    def _send_hints(self, endpoints: Collection[HintEndpoint]) -> None:
        loop = asyncio.get_running_loop()
        for endpoint in endpoints:
            loop.call_later(HINT_SECONDS, self._by_nonce[endpoint.nonce].check_placements)

    def _starter(self, rng: random.Random) -> StartTask:
        async def start(spec: TaskSpec, deadline: float, lock_fd: int | None) -> TaskHandle:
            is_replica = spec.env["FRAY_REPLICAS"] != "1"
            if is_replica:
                self.replicas[spec.env["FRAY_JOB_ID"], int(spec.env["FRAY_ATTEMPT"])].append(self.clock.boottime())
            return FakeTask(spec, self.folder, FOR_EVER if is_replica else rng.uniform(*self.tasks), b"", None)

        return start


def job_spec() -> JobSpec:
    """A small command job."""
    return parse_spec({"name": "job", "namespace": "scale", "entrypoint": {"command": ["true"]}})


@contextmanager
def hosts_apart() -> Iterator[None]:
    """Make thousands of agents in one process not look for each other's locks, because each has a host of its own.

    They also do not tell their tasks each second how long they may run, because the tasks have no processes.
    """

    class NoLock:
        fd = None

        def work_dir(self, parent: Path) -> Path:
            """Tasks without processes need no directories."""
            return parent / "unused"

        def release(self) -> None:
            """Do nothing: there is no directory."""

    async def nobody(core: Core, lock: object) -> list[str]:
        return []

    with (
        mock.patch.object(agent_lock, "acquire_lock", return_value=NoLock()),
        mock.patch.object(predecessors, "reap_predecessors", nobody),
        mock.patch.object(Agent, "_renew_deadlines", _for_ever),
    ):
        yield


async def _for_ever(agent: Agent) -> None:
    await asyncio.get_running_loop().create_future()
