"""The simulated provider of a pool's machines: it replies late or never, and may execute calls late or twice.

Once a call is sent, the provider executes it whatever becomes of its sender. Its bill covers the time for which each
machine existed.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from fray_agents.provisioning.provider import MachineRequest, ProviderError
from fray_coordinator.protocol.scaling.view import ListedMachine, ListedState
from tests.simulation.loop import OWNER
from tests.simulation.scenario import Plan, between

if TYPE_CHECKING:
    from tests.simulation.machines import MachineWorld

T = TypeVar("T")

LATE_SECONDS = 60.0
"""Most seconds after which a call is executed that its sender gave up, or that is repeated; the rules rely on less
than `CALL_SECONDS` from the write before it."""

DELETED_SECONDS = 20.0
"""Seconds for which a deleted machine may still be listed."""

STRANGER = "stranger-"
"""The beginning of the names of machines that no record knew when they were made."""


@dataclass(frozen=True, slots=True)
class Service(Plan):
    """The faults of a provider, as shares of its calls and of its machines.

    Attributes:
        refused: refused for lack of capacity. never: not executed and not answered. late: executed late, not answered.
        lost: executed, but the reply is lost. twice: executed again later.
        mute: lists and deletes that are not answered. stale: lists that have recently deleted machines.
        waits: requests that wait for capacity, some of them for ever.
        never_boots: machines that are ready but never get an agent.
        kills, freezes: calls at which their sender is killed, or frozen for a while.
    """

    refused: float
    never: float
    late: float
    lost: float
    twice: float
    mute: float
    stale: float
    waits: float
    never_boots: float
    kills: float
    freezes: float

    @staticmethod
    def drawn(draw: random.Random) -> Service:
        """Draw the rates evenly on a logarithmic scale, so that some providers have few faults and some have many."""
        often, rarely = ((0.02, 0.3), (0.01, 0.1))
        return Service(
            **{name: between(draw, *often) for name in ("refused", "never", "late", "lost", "twice", "stale", "waits")},
            **{name: between(draw, *rarely) for name in ("mute", "kills", "freezes")},
            never_boots=between(draw, 0.05, 0.4),
        )


@dataclass(slots=True)
class SimulatedMachine:
    """A machine from its request to its end.

    Attributes:
        since: when its bill starts; None while it waits for capacity.
        project: its project.
        again: whether a repeated call made it again after it had existed.
        stop: ends its hosts.
    """

    listed: ListedMachine
    since: float | None
    project: str = ""
    again: bool = False
    stop: Callable[[], None] = lambda: None
    ended: float | None = None


@dataclass(slots=True)
class SimulatedProvider:
    """The provider of one pool; it has faults as long as the world is stormy.

    Attributes:
        machines: existing machines, by name. past: former ones.
        asked: how often each machine was requested.
        unnoticed: names of machines whose begin or end nobody could know.
        replies: by machine, the time and content of the last reply, unless the sender was gone.
    """

    world: MachineWorld
    pool: str
    service: Service
    draw: random.Random
    machines: dict[str, SimulatedMachine] = field(default_factory=dict)
    past: list[SimulatedMachine] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    replies: dict[str, tuple[float, str]] = field(default_factory=dict)
    unnoticed: set[str] = field(default_factory=set)

    def preempt(self, name: str) -> None:
        """Let the hosts die. The machine is listed and billed until it is deleted; some machines vanish at once."""
        self.world.note(self.pool, "preempts", name)
        machine = self.machines[name]
        machine.stop()
        machine.listed = replace(machine.listed, state=ListedState.LOST, error="preempted")
        if self.draw.random() < 0.2:
            self.unnoticed.add(name)
            self.end(name)

    def add_stranger(self) -> None:
        """Add a machine of this cluster that no record knows, as if somebody had removed the record."""
        name = f"{STRANGER}{len(self.machines) + len(self.past)}"
        self.unnoticed.add(name)
        self.machines[name] = SimulatedMachine(
            ListedMachine(self.pool, name, "a-a", ListedState.READY), self.world.loop.now
        )

    def end(self, name: str) -> None:
        """End the machine and its bill."""
        machine = self.machines.pop(name, None)
        if machine is not None:
            self.world.note(self.pool, "ends", name)
            machine.stop()
            machine.ended = self.world.loop.now
            self.past.append(machine)

    def bill(self, until: float, name: str) -> list[tuple[float, float]]:
        """The spans of time for which a machine was billed."""
        mine = [m for m in (*self.past, *self.machines.values()) if m.listed.name == name]
        return [(m.since, until if m.ended is None else m.ended) for m in mine if m.since is not None]

    def listing(self, project: str) -> Sequence[ListedMachine]:
        """The machines of a project, with recently deleted ones if the list is stale."""
        now, late = self.world.loop.now, self.fails("stale")
        gone = [m for m in self.past if late and m.ended is not None and now - m.ended < DELETED_SECONDS]
        told = [*self.machines.values(), *(m for m in gone if m.listed.name not in self.machines)]
        return [machine.listed for machine in told if machine.project == project]

    def make(self, request: MachineRequest, project: str, repeated: bool = False) -> None:
        """Make the machines that do not exist; some wait for capacity first."""
        for name in request.names:
            if name in self.machines:
                continue
            again = any(m.listed.name == name for m in self.past) or repeated
            waits = ListedMachine(self.pool, name, request.zone, ListedState.WAITING, request.names[0], billed=False)
            machine = SimulatedMachine(waits, None, project, again)
            self.machines[name] = machine
            self.unnoticed |= {name} if again else set()
            self.world.note(self.pool, "makes", name)
            self.world.made(self, machine)
            wait = self.draw.choice([60.0, 200.0, math.inf]) if self.fails("waits") else 0.0
            if not wait:
                self._grant(machine, request.hosts)
            elif wait < math.inf:
                self.world.later(wait, self._grant, machine, request.hosts)

    def _grant(self, machine: SimulatedMachine, hosts: int) -> None:
        if machine.ended is not None or machine.listed.state is ListedState.LOST:
            return
        machine.listed, machine.since = (
            replace(machine.listed, state=ListedState.READY, billed=True),
            self.world.loop.now,
        )
        if not self.fails("never_boots"):
            machine.stop = self.world.boot(self.pool, machine.listed.name, hosts, machine.listed.zone)

    async def call(self, act: Callable[[], T], silent: bool = False) -> T:
        """Execute a call and answer it after a while; its sender may be killed or frozen meanwhile."""
        world, sender = self.world, OWNER.get()
        answer: asyncio.Future[T] = world.loop.create_future()
        out, back = self.draw.uniform(0, 1), self.draw.uniform(0, 1)
        for fault, kind in (("kills", "crash"), ("freezes", "freeze")):
            if self.fails(fault):
                world.later(
                    self.draw.choice([0.5 * out, out + 0.5 * back, out + back + 1e-6]), world.meet, sender, kind
                )

        def land() -> None:
            try:
                told = act()
            except ProviderError as error:
                world.later(back, _fail, answer, error)
                return
            if silent:
                world.later(back, _fail, answer, ProviderError("unavailable", "the reply is lost"))
            else:
                world.later(back, _tell, answer, told)

        world.later(out, land)
        return await answer

    def fails(self, how: str) -> bool:
        """Whether a fault of `Service` happens now."""
        return self.world.stormy and self.draw.random() < getattr(self.service, how)


@dataclass(slots=True)
class Account:
    """The provider in one of its projects, as scalers call it."""

    of: SimulatedProvider
    project: str

    async def list(self) -> Sequence[ListedMachine]:
        """List the machines, now and then also recently deleted ones."""
        return await self.of.call(lambda: self.of.listing(self.project), self.of.fails("mute"))

    async def create(self, request: MachineRequest) -> str:
        """Make machines, all or none."""
        of = self.of
        of.world.asks_for(of, request)
        of.asked.update(request.names)
        operation = f"operation-{of.asked.total()}"
        there = any(name in of.machines for name in request.names)
        if of.fails("refused") and not there:
            return await of.call(_refuse)
        if of.fails("never"):
            return await of.call(_keep_quiet)
        if of.fails("late"):
            of.world.later(of.draw.uniform(0, LATE_SECONDS), of.make, request, self.project)
            return await of.call(_keep_quiet)
        if of.fails("twice"):
            of.world.later(of.draw.uniform(2, LATE_SECONDS), of.make, request, self.project, True)

        def make() -> str:
            of.make(request, self.project)
            return operation

        told = await of.call(make, of.fails("lost"))
        of.replies.update(dict.fromkeys(request.names, (of.world.loop.now, told)))
        return told

    async def delete(self, name: str, zone: str, batch: str = "") -> None:
        """Remove a machine."""
        of = self.of
        of.world.asks_to_delete(of, name)
        is_there = name in of.machines and of.machines[name].project == self.project
        act = _keep_quiet if of.fails("mute") else partial(of.end, name) if is_there else _do_nothing
        await of.call(act, of.fails("lost"))

    async def check(self) -> Sequence[ProviderError]:
        """Find no problem."""
        return ()

    async def close(self) -> None:
        """Keep the machines."""


def _refuse() -> NoReturn:
    raise ProviderError("stockout", "nothing left there")


def _keep_quiet() -> NoReturn:
    raise ProviderError("unavailable", "no answer")


def _do_nothing() -> None:
    """Do nothing: the machine is deleted already."""


def _tell(answer: asyncio.Future[Any], result: Any) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
