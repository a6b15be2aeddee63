"""People at their keyboards: they submit, resubmit, drop files, stop, drain and wait, at random."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import msgspec

from fray_agents.agent.driver import Driver
from fray_coordinator.core import Core
from fray_coordinator.errors import JobGone, StoreUnavailable
from fray_coordinator.jobs.notifications import drain
from fray_coordinator.jobs.stopping import stop
from fray_coordinator.jobs.submission import submit
from fray_coordinator.jobs.waiting import wait_for
from fray_coordinator.store.interface import ANY
from fray_layouts.errors import FrayError
from fray_layouts.records import JobRecord
from fray_layouts.spec_parsing import parse_spec
from fray_layouts.work_keys import InboxKeys
from tests.simulation.work import drawn_kind, drawn_spec

if TYPE_CHECKING:
    from tests.simulation.operators import Upkeep
    from tests.simulation.scenario import People
    from tests.simulation.world import World


class User:
    """One person. ways: how often they act, and how."""

    def __init__(self, world: World, name: str, core: Core, draw: random.Random) -> None:
        self.world = world
        self.name = name
        self.core = core
        self.draw = draw
        self.ways: People | Upkeep = world.people
        self._driver = Driver(core, "simulation", "", name)
        self._dropped: list[str] = []
        self._serial = 0

    async def live(self) -> None:
        """Act until the storm is over."""
        habits = self.ways.habits
        while self.world.stormy:
            await self.core.clock.sleep(self.draw.expovariate(1 / self.ways.pause))
            action = self.draw.choices(list(habits), list(habits.values()))[0]
            try:
                await getattr(self, action)()
            except (FrayError, TimeoutError):
                continue
        await self._driver.leave()

    async def submit_one(self) -> None:
        await self._submit(self._spec(self.draw))

    async def submit_many(self) -> None:
        specs = [parse_spec(self._spec(self.draw)) for _ in range(self.draw.randint(3, 12))]
        for done in await submit(self.core, specs):
            self.world.submitted(done.job, done.found)

    async def submit_by_id(self) -> None:
        """Submit with an id of its own: repeat until it is acknowledged, with a limit, and now and then once more."""
        spec = drawn_spec(self.draw, "quick")
        spec["id"] = f"{self.world.seed_number}.{self.draw.randrange(30)}"
        for _ in range(self.draw.choice([1, 1, 3])):
            await self._insist(spec)

    async def submit_endless(self) -> None:
        """Submit a job that somebody stops later."""
        await self._submit(drawn_spec(self.draw, "endless"))

    async def own_one(self) -> None:
        """Own a job that ends with this program."""
        spec = drawn_spec(self.draw, self.draw.choice(["quick", "long", "endless"]))
        await self._submit({**spec, "parent": await self._driver.job()})

    async def leave(self) -> None:
        """End the jobs that this program owns; it may start again."""
        await self._driver.leave()

    async def stop_endless(self) -> None:
        if jobs := self.world.endless():
            await self._stop(self.draw.choice(jobs))

    async def stop_one(self) -> None:
        if job := self._some_job():
            await self._stop(job)

    async def stop_parent(self) -> None:
        parents = [job for job in self.world.known_jobs if job.startswith("parent-")]
        if parents:
            await self._stop(self.draw.choice(parents[-5:]))

    async def drop(self) -> None:
        self._serial += 1
        key = InboxKeys.key(f"{self.name}-{self._serial}")
        self._dropped.append(key)
        spec = self._spec(self.draw)
        if self.draw.random() < 0.1:
            spec["id"] = f"{self.world.seed_number}.{self.draw.randrange(30)}"
        await self._copy(key, spec)

    async def drop_rubbish(self) -> None:
        self._serial += 1
        await self.core.store.put(InboxKeys.key(f"{self.name}-{self._serial}"), b'{"name": "half', ANY)

    async def overwrite(self) -> None:
        """Drop the same name again, with other content or the same."""
        if self._dropped:
            spec = self._spec(random.Random(self._serial)) if self.draw.random() < 0.5 else self._spec(self.draw)
            await self._copy(self.draw.choice(self._dropped[-3:]), spec)

    async def take_back(self) -> None:
        if self._dropped:
            await self.core.store.delete(self._dropped[-1])

    async def drain_one(self) -> None:
        if self.world.agents:
            await drain(self.core, self.draw.choice(list(self.world.agents)))

    async def wait(self) -> None:
        if job := self._some_job():
            try:
                ended = await wait_for(self.core, [job], timeout=self.draw.uniform(10, 200))
            except JobGone:
                return
            self.world.outcome_seen(ended[job])

    def _spec(self, draw: random.Random) -> dict[str, Any]:
        return drawn_spec(draw, drawn_kind(draw, self.world.people))

    async def _submit(self, raw: dict[str, Any]) -> JobRecord:
        (done,) = await submit(self.core, [parse_spec(raw)])
        self.world.submitted(done.job, done.found)
        return done.job

    async def _insist(self, spec: dict[str, Any]) -> None:
        clock = self.core.clock
        gives_up = clock.boottime() + self.world.scenario.gives_up
        while clock.boottime() < gives_up:
            try:
                await self._submit(spec)
                return
            except StoreUnavailable:
                continue

    async def _stop(self, job: str) -> None:
        await stop(self.core, job, "a user wished so")
        self.world.stop_acknowledged(job)

    async def _copy(self, key: str, spec: dict[str, Any]) -> None:
        """Copy like `gsutil cp`, which overwrites without a condition."""
        await self.core.store.put(key, msgspec.json.encode(spec), ANY)

    def _some_job(self) -> str:
        known = self.world.known_jobs
        return self.draw.choice(known[-20:]) if known else ""
