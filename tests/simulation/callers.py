"""Simulated callers: they create missing actors, call them, repeat calls until they are answered, and delete them."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING

from fray_coordinator.actors import naming
from fray_coordinator.actors.naming import EndpointLookup
from fray_coordinator.core import Core
from fray_coordinator.errors import NameTaken, StoreError
from fray_coordinator.jobs.stopping import stop
from fray_coordinator.jobs.submission import submit
from fray_coordinator.protocol.naming import Rank, rank
from fray_layouts.object_keys import JobIds
from fray_layouts.records import EndpointRecord, JobRecord
from fray_layouts.spec_parsing import parse_spec
from tests.simulation.actortasks import DURABLE, FORGETFUL, NAMESPACE, RUN_ON, CallId, Request

if TYPE_CHECKING:
    from tests.simulation.actors import ActorWorld

NAMES = DURABLE + FORGETFUL
LINES = 3
PATIENCE = 20.0
"""Seconds that a caller waits for a reply before it repeats the call."""


class Caller:
    """One program. answered: when it last got a reply."""

    def __init__(self, world: ActorWorld, name: str, core: Core, draw: random.Random) -> None:
        self.world = world
        self.name = name
        self.core = core
        self.draw = draw
        self.answered = -1.0
        self._views = {name: EndpointLookup(core, NAMESPACE, name) for name in NAMES}
        self._met: dict[str, Rank] = dict.fromkeys(NAMES, (0, 0))
        self._serial = 0

    async def live(self) -> None:
        """Make calls, several at once, until everything closes."""
        await asyncio.gather(*(self._line() for _ in range(LINES)))

    async def _line(self) -> None:
        while not self.world.closing:
            await self.core.clock.sleep(self.draw.expovariate(1 / 2))
            name = self.draw.choice(NAMES)
            if self.world.stormy and self.draw.random() < 0.02:
                await self._patiently(partial(self._delete, name))
            elif self.draw.random() < 0.1:
                await self._patiently(partial(self._create, name, exist_ok=False))
            else:
                await self._call(name)

    async def _patiently(self, act: object) -> None:
        try:
            await act()  # type: ignore[operator]
        except (StoreError, NameTaken):
            return

    async def _call(self, name: str) -> None:
        """Repeat a call until it is answered."""
        self._serial += 1
        call = f"{self.name}.{self._serial}"
        while not self.world.closing:
            try:
                found = await self._views[name].poll()
            except StoreError:
                await asyncio.sleep(1.0)
                continue
            if found and await self._ask(name, max(found, key=rank), call):
                return
            if not found:
                await self._patiently(lambda: self._create(name, exist_ok=True))
                await self.core.clock.sleep(1.0)

    async def _ask(self, name: str, target: EndpointRecord, call: CallId) -> bool:
        """Send the call to one endpoint; return whether it got an acceptable reply."""
        self._meet(name, target)
        answer: asyncio.Future[EndpointRecord] = asyncio.get_running_loop().create_future()
        self.world.send(self.world.deliver, target.address, Request(call, answer))
        try:
            async with asyncio.timeout(PATIENCE):
                replier = await asyncio.shield(answer)
        except (TimeoutError, ConnectionError):
            return False
        if not self._views[name].seen.accepts(replier):
            return False
        self._meet(name, replier)
        self.world.acknowledged(call, replier)
        self.answered = self.world.loop.now
        return True

    def _meet(self, name: str, endpoint: EndpointRecord) -> None:
        self.world.met(self.name, self._met[name], endpoint)
        self._met[name] = max(self._met[name], rank(endpoint))

    async def _create(self, name: str, exist_ok: bool) -> None:
        """Create an actor like `create_actor`: first take the name, for a job that is then submitted."""
        job_id = JobIds.fresh("endless", self.core.now(), self.core.rng.token())
        taken = await naming.take_name(self.core, NAMESPACE, "actor", name, job_id, exist_ok)
        if taken.job != job_id:
            self.world.found(name, taken)
            return
        spec = {
            "name": "endless",
            "actor": True,
            "entrypoint": {"command": ["simulated"]},
            "max_retries_failure": self.draw.choice([0, 3, 1000]),
            "environment": {"env_vars": {"ACTOR": name, "INCARNATION": str(taken.incarnation)}},
            "resources": {"cpu": 0.5},
            "grace": self.draw.choice([0.0, 2.0]),
            "outage": "run" if name in RUN_ON else "",
        }
        gives_up = self.core.clock.boottime() + self.world.scenario.gives_up
        while self.core.clock.boottime() < gives_up:
            try:
                (done,) = await submit(self.core, [parse_spec(spec)], ids=[job_id])
                self.world.submitted(done.job, done.found)
                return
            except StoreError:
                await asyncio.sleep(1.0)
                continue

    async def _delete(self, name: str) -> None:
        """Delete an actor like `delete_actor`."""
        taken = await naming.read_held(self.core, NAMESPACE, "actor", name)
        job: JobRecord | None = self.world.watching.jobs.get(taken.job) if taken else None
        if taken is not None and job is not None:
            await stop(self.core, taken.job, "deleted")
            await naming.free_name(self.core, NAMESPACE, "actor", name, taken.incarnation)
