"""Simulated people who run gangs, and single jobs that compete with them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from fray_coordinator.core import Core
from fray_coordinator.jobs.submission import submit
from fray_coordinator.jobs.waiting import wait_for
from fray_coordinator.placements import reservations
from fray_coordinator.placements.launching import GroupWish, launch
from fray_coordinator.protocol.placements.launching import in_private_pool
from fray_layouts.object_keys import JobIds
from fray_layouts.records import ReservationRecord, ReservedPart
from fray_layouts.spec import GangSpec, ResourceSpec
from fray_layouts.spec_parsing import parse_spec
from fray_layouts.states import ReservationKind
from tests.simulation.gangwork import LONGEST, drawn_gang
from tests.simulation.operators import Operator
from tests.simulation.users import User
from tests.simulation.work import drawn_kind, drawn_spec

if TYPE_CHECKING:
    from tests.simulation.gangs import GangWorld

USUAL = {
    "submit_one": 8.0,
    "submit_many": 1.0,
    "submit_endless": 0.5,
    "own_one": 1.0,
    "leave": 0.2,
    "stop_endless": 1.0,
    "stop_one": 2.0,
    "drop": 1.0,
    "overwrite": 0.3,
    "take_back": 0.3,
    "drain_one": 0.3,
    "wait": 1.0,
    "launch_group": 1.5,
    "reserve": 0.7,
    "use_reservation": 3.0,
    "renew": 0.5,
    "release": 0.3,
}
"""How often users do each of these things, as weights."""

OPERATING = {
    "retry_one": 3.0,
    "retry_failed": 0.5,
    "repair": 0.7,
    "drop_child": 2.0,
    "drive": 2.0,
    "keep_reservation": 1.5,
}
"""The same for operators."""

GANGS = 0.4
"""Share of what they submit."""


LONGEST_TTL = 600.0
"""Virtual seconds for which a reservation is made at most."""

NAMESPACE = "team"
"""For which reservations are made."""


def drawn_reservation(draw: random.Random, reservation: str, now: float) -> ReservationRecord:
    """A reservation as a user writes it: this many bundles at least, perhaps some more."""
    low, more, ttl = draw.choice([1, 2, 3]), draw.choice([0, 0, 2]), draw.uniform(60, LONGEST_TTL)
    wants = ResourceSpec(cpu=draw.choice([1.0, 2.0]))
    parts = [ReservedPart(gang=GangSpec(resources=wants, count=count)) for count in (low, more) if count]
    return ReservationRecord(
        id=reservation,
        kind=ReservationKind.RESERVATION,
        namespace=NAMESPACE,
        priority=draw.choice([0, 0, 3]),
        submitted_at=now,
        parts=parts,
        low=low,
        ttl=ttl,
        expires_at=now + ttl,
    )


class GangUser(User):
    """One person whose jobs are gangs, often."""

    world: GangWorld

    def __init__(self, world: GangWorld, name: str, core: Core, draw: random.Random) -> None:
        super().__init__(world, name, core, draw)
        self._reservations: list[str] = []

    async def own_one(self) -> None:
        await self._submit({**self._spec(self.draw), "parent": await self._driver.job()})

    async def launch_group(self) -> None:
        """Jobs of several shapes that start together."""
        specs = [self._bare_spec() for _ in range(self.draw.choice([2, 2, 3, 4]))]
        for done in await launch(self.core, [parse_spec(spec) for spec in specs], GroupWish("group")):
            self.world.submitted(done.job, done.found)

    async def reserve(self) -> None:
        now, core = self.core.now(), self.core
        wanted = drawn_reservation(self.draw, JobIds.fresh("reservation", now, core.rng.token()), now)
        made = await reservations.create(core, wanted)
        self._reservations.append(made.id)

    async def use_reservation(self) -> None:
        """Singles and gangs that run in the reserved bundles."""
        if self._reservations:
            reservation = self.draw.choice(self._reservations[-3:])
            await reservations.usable(self.core, reservation, NAMESPACE)
            for _ in range(self.draw.randint(1, 3)):
                spec = {**self._bare_spec(), "namespace": NAMESPACE}
                spec |= {"resources": {"cpu": self.draw.choice([0.5, 1.0])}, "slices": 0, "same": "", "spread": False}
                spec["replicas"] = min(spec.get("replicas", 1), 2)
                (done,) = await submit(self.core, [in_private_pool(parse_spec(spec), reservation)])
                self.world.submitted(done.job, done.found)

    async def renew(self) -> None:
        if self._reservations:
            await reservations.renew(self.core, self.draw.choice(self._reservations))

    async def release(self) -> None:
        if self._reservations:
            reservation = self._reservations.pop(self.draw.randrange(len(self._reservations)))
            await reservations.release(self.core, reservation, "a user wished so")

    def _bare_spec(self) -> dict[str, Any]:
        """A spec without a time to wait: the job's group ends with it."""
        spec = self._spec(self.draw)
        spec.pop("pending_timeout", None)
        return spec

    def _spec(self, draw: random.Random) -> dict[str, Any]:
        if draw.random() < GANGS:
            return drawn_gang(draw, self.world.fleet)
        spec = drawn_spec(draw, drawn_kind(draw, self.world.people))
        if draw.random() < 0.5:
            spec["timeout"] = draw.uniform(LONGEST, 1.5 * LONGEST)
        return spec


class GangOperator(Operator, GangUser):
    """One person who looks after gangs and reservations, and runs programs with actors beside them."""

    async def drive(self) -> None:
        """A program with an actor, which lives as long as it, and one thing after the other to do: single or gang."""
        actor = drawn_spec(self.draw, "endless")
        await self._submit({**actor, "parent": await self._driver.job()})
        for _ in range(self.draw.choice([1, 1, 2])):
            task = await self._submit({**self._spec(self.draw), "parent": await self._driver.job()})
            await wait_for(self.core, [task.id])
        await self._driver.leave()

    async def keep_reservation(self) -> None:
        """Make a reservation and renew it in time, or at the last moment, a few times."""
        await self.reserve()
        kept = self._reservations[-1]
        known = await reservations.read(self.core, kept)
        for _ in range(self.draw.randint(1, 3)):
            left = (known.record.expires_at or 0.0) - self.core.now()
            await self.core.clock.sleep(max(0.0, left * self.draw.choice([0.5, self.draw.uniform(0.95, 1.02)])))
            if not self.world.stormy:
                return
            await reservations.renew(self.core, kept)
            known = await reservations.read(self.core, kept)
