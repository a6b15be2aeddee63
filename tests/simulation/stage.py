"""The base of every simulated world: one loop, one storage, a history, the faults of its seed, and the first breach."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fray_coordinator.store.interface import Object
from tests.simulation.broken_code import Variants
from tests.simulation.clocks import HostClock
from tests.simulation.history import History
from tests.simulation.invariants import Broken
from tests.simulation.loop import Participant, SimLoop
from tests.simulation.network import Storage, StoreConnection
from tests.simulation.scenario import Hardships


@dataclass(slots=True)
class Figures:
    """The figures of a run. amounts: counts of this kind of world, such as jobs."""

    operations: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    amounts: dict[str, float] = field(default_factory=dict)
    calm_seconds: float = 0.0
    digest: str = ""


class Stage:
    """A simulated world; `run` raises `Broken`.

    Attributes:
        kind: its subject. module: the module that replays its seeds.
        variants: the broken variants of the code that it must catch.
        stormy: whether faults are active.
        draw: random source of the faults.
        connections: each participant's connection to the storage.
    """

    kind: ClassVar[str]
    module: ClassVar[str]
    variants: ClassVar[Variants]

    def __init__(self, seed: int, scheduler: str = "") -> None:
        self.seed_number = seed
        self.hardships = Hardships.drawn(random.Random(f"hardships {seed}"))
        self.loop = SimLoop(f"{scheduler}{seed}")  # type: ignore[abstract]  # nobody asks for the rest here
        self.loop.on_error = self._loop_error
        self.history = History()
        self.storage = Storage(self.loop, random.Random(f"storage {seed}"), self._on_write)
        self.owner = Participant("world")
        self.draw = random.Random(f"{self.kind} {seed}")
        self.stormy = True
        self.connections: dict[Participant, StoreConnection] = {}
        self.figures = Figures()
        self._serial = 0

    @property
    def plan(self) -> str:
        """The plan of this seed's world, with every rate."""
        raise NotImplementedError

    def run(self) -> None:
        """Run this world from begin to end."""
        raise NotImplementedError

    def is_broken(self, broken: Broken) -> None:
        """End the run at once; the first breach counts."""
        self.loop.broken = self.loop.broken or broken

    def note(self, who: str, what: str, more: str = "") -> None:
        self.history.note(self.loop.now, who, what, more)

    def drawn_clock(self, draw: random.Random) -> HostClock:
        """A machine's clock: minutes off, too fast or too slow."""
        return HostClock.drawn(self.loop, draw, self.hardships.clock_offset, self.hardships.clock_drift, self.mishap)

    def mishap(self, place: str) -> None:
        """Raise if the world wants an exception here."""

    def _again_and_again(self, every: float, act: Callable[[], object]) -> None:
        def now() -> None:
            if self.stormy:
                act()
                self._again_and_again(every, act)

        if every < math.inf:
            self._in(self.draw.expovariate(1 / every), now)

    def _partition(self) -> None:
        reachable = [p for p in self.connections if p.mode == "up"]
        if reachable:
            cut, how_long = self.draw.choice(reachable), self.draw.choice([5.0, 20.0, 60.0, 150.0])
            self.note(cut.name, "is cut off", f"for {how_long:g} s")
            self.connections[cut].cut_until = self.loop.now + how_long

    def _on_write(self, key: str, before: Object | None, after: Object | None, sender: Participant) -> None:
        """Note a change of the storage."""
        raise NotImplementedError

    def _loop_error(self, context: dict[str, Any]) -> None:
        """Note an error of a task that nobody awaited."""
        raise NotImplementedError

    def later(self, delay: float, act: Callable[..., object], *args: Any) -> None:
        """Call a function after a while, even if its caller is gone by then."""
        self._in(delay, act, *args)

    def _in(self, delay: float, act: Callable[..., object], *args: Any) -> None:
        self.loop.call_later(delay, act, *args, context=self.owner.context())

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    def _sum_up(self, **amounts: float) -> None:
        f = self.figures
        f.operations, f.faults, f.amounts = self.storage.operations, dict(self.storage.faults), amounts
        self.note("world", "ends", f"{f.operations} operations {sum(f.faults.values())} faults {self.loop.steps} steps")
        f.digest = self.history.digest
