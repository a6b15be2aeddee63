"""Simulated actors: a task whose process restores, fences, publishes, and then answers calls, each after a checkpoint.

An actor's state is the list of the calls that it applied. Its process may crash or freeze by itself; it ends with its
task, or a while later. The network delays and loses calls.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fray_agents.tasks.task_handle import TaskSpec
from fray_coordinator.actors import naming
from fray_coordinator.actors.checkpoints import CheckpointLog, open_log
from fray_coordinator.core import Core
from fray_coordinator.errors import Fenced, StaleAttempt, StoreError
from fray_layouts.object_keys import EndpointKey
from fray_layouts.records import AttemptExit, EndpointRecord
from fray_runtime.current_task import ENDPOINTS_FILE
from tests.simulation.loop import Participant
from tests.simulation.tasks import HostTask

if TYPE_CHECKING:
    from tests.simulation.actors import ActorWorld
    from tests.simulation.host import Host

NAMESPACE = "ns"
DURABLE, FORGETFUL = ("a", "b"), ("c",)
"""Names of actors with checkpoints, and of those whose state is in memory only."""
RUN_ON = ("b",)
"""Names of actors that run on in an outage."""
CallId = str


@dataclass(slots=True)
class Request:
    """A call on its way: `answer` is the caller's future for (applied calls, who answered)."""

    call: CallId
    answer: asyncio.Future[EndpointRecord]


@dataclass(slots=True, eq=False)
class Server:
    """A server at an address."""

    record: EndpointRecord
    process: Participant
    requests: asyncio.Queue[Request] = field(default_factory=asyncio.Queue)


class ActorTask(HostTask):
    """The task of an actor's job."""

    def __init__(self, world: ActorWorld, host: Host, spec: TaskSpec, deadline: float) -> None:
        self.world = world
        self.env = spec.env
        super().__init__(host, spec, deadline)
        host.begin_process(self, self._live)

    def crash(self) -> None:
        """Let it fail by itself."""
        self._end(AttemptExit(kind="exited", code=1), "failure")

    def _end(self, end: AttemptExit, how: str = "") -> None:
        """End its process. Now and then that takes a while, and the writes in that time must do no harm."""
        lasts = self.world.process_lives_on_for()
        if self.run.end is None and lasts and (process := self._host.let_go(self)) is not None:
            self.world.note(process.name, "lives on", f"for {lasts:.1f} s")
            self._at(lasts, self.world.loop.crash, process)
        super()._end(end, how)

    async def _live(self, process: Participant) -> None:
        process.on_crash.append(lambda: self._at(0.0, self.crash))
        try:
            core = await self._opened(process)
            log, state = await self._restored(core) if self.env["ACTOR"] in DURABLE else (None, [])
            server = await self._published(core, process)
            await self._serve(server, log, state)
        except (Fenced, StaleAttempt) as why:
            self.world.note(process.name, "ends", type(why).__name__)
            self._at(0.0, self.crash)

    async def _opened(self, process: Participant) -> Core:
        while True:
            try:
                return await self.world.core(process, self._host.clock)
            except StoreError:
                await asyncio.sleep(1.0)
                continue

    async def _restored(self, core: Core) -> tuple[CheckpointLog, list[CallId]]:
        while True:
            try:
                data, log = await open_log(core, self.run.job, "a", self.run.attempt)
                break
            except StoreError:
                await asyncio.sleep(1.0)
                continue
        state: list[CallId] = json.loads(data) if data is not None else []
        self.world.restored(self.run, state)
        return log, state

    async def _published(self, core: Core, process: Participant) -> Server:
        name = self.env["ACTOR"]
        record = EndpointRecord(
            namespace=NAMESPACE,
            name=name,
            actor_id=name,
            job=self.run.job,
            attempt=self.run.attempt,
            incarnation=int(self.env["INCARNATION"]),
            nonce=core.rng.token(),
            address=f"{self._host.name}:{core.rng.token()}",
        )
        key = EndpointKey(NAMESPACE, name, name).key()
        (self.directory / ENDPOINTS_FILE).write_bytes(f"{key}\n".encode())
        server = self.world.servers[record.address] = Server(record, process)
        while True:
            try:
                await naming.publish(core, record, singleton=True)
                return server
            except StoreError:
                await asyncio.sleep(1.0)
                continue

    async def _serve(self, server: Server, log: CheckpointLog | None, state: list[CallId]) -> None:
        while True:
            request = await server.requests.get()
            if request.call not in state:
                state.append(request.call)
                if log is not None:
                    await self._save(log, state)
                else:
                    await asyncio.sleep(self.world.takes())
            self.world.send(_answer, request.answer, server.record)

    async def _save(self, log: CheckpointLog, state: list[CallId]) -> None:
        while True:
            try:
                await log.write(json.dumps(state).encode())
                return
            except StoreError:
                await asyncio.sleep(1.0)
                continue


def _answer(answer: asyncio.Future[Any], record: EndpointRecord) -> None:
    if not answer.done():
        answer.set_result(record)
