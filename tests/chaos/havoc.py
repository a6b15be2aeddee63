"""The faults of a running cluster, one after the other, drawn from the seed."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from fray_agents.runner.process_tree import descendants, signal_each, stat_fields
from fray_coordinator.core import Core
from fray_coordinator.errors import StoreUnavailable
from fray_coordinator.store import file_locks
from fray_layouts.object_keys import CoordinatorKeys
from fray_layouts.records import ReconcilerRecord
from tests.chaos.copier import Copier
from tests.chaos.disks import without_rights
from tests.chaos.effects import Window
from tests.chaos.filelocks import freeze_in_lock
from tests.chaos.fleet import AgentProcess, Fleet, work_dir
from tests.chaos.poisoner import Poisoner
from tests.chaos.roots import Root
from tests.chaos.timing import Sightings

MOST = 0.5
"""The share of the agents that may have a fault at the same time."""
LONGEST_FREEZE = 16
"""Most beats for which an agent is frozen if nobody notices it, for example while the storage is down."""
POISONED = 60
"""Number of malformed objects and the like that are left under the root in a run."""
SETTLING = 12.0
"""Seconds after a fault of the storage in which its effects may last: the store waits up to 8 s between two tries."""


Blow = Callable[[AgentProcess], Awaitable[None]]


class Missed(Exception):
    """The fault did not find its target; nothing was done."""


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(slots=True)
class Havoc:
    """Applies faults for a while. struck: counts of faults that had a target. windows: times of storage faults."""

    core: Core
    root: Root
    fleet: Fleet
    sightings: Sightings
    wanted: int
    rng: random.Random
    poisoner: Poisoner
    copier: Copier
    struck: Counter[str] = field(default_factory=Counter)
    windows: list[Window] = field(default_factory=list)
    _deck: list[Blow] = field(default_factory=list)

    async def rage(self, seconds: float) -> None:
        """Apply faults for `seconds`, and return once all of them are over."""
        ends = boottime() + seconds
        async with asyncio.TaskGroup() as blows:
            if self.root.troubles:
                blows.create_task(self._trouble_the_storage(ends))
            blows.create_task(self.poisoner.act(seconds / POISONED, lambda: boottime() > ends))
            blows.create_task(self.copier.act(seconds))
            while boottime() < ends:
                await asyncio.sleep(self.rng.uniform(0.5, 1.5) * seconds / (3 * self.wanted))
                self._replace_the_missing()
                if sum(agent.busy for agent in self.fleet.agents if agent.runs) < MOST * self.wanted:
                    await self._begin_blow(blows)

    async def restore(self) -> None:
        """Make as many agents run again as are wanted."""
        for agent in self.fleet.agents:
            if agent.runs:
                agent.send(signal.SIGCONT)
        while sum(agent.runs for agent in self.fleet.agents) < self.wanted:
            self.fleet.start()

    def unstruck(self) -> list[str]:
        """The kinds of faults that have not had a target."""
        kinds = [*map(_name, self._kinds()), *self.root.troubles, *self.copier.kinds()]
        return sorted(kind for kind in kinds if not (self.struck + self.copier.struck)[kind])

    async def _begin_blow(self, blows: asyncio.TaskGroup) -> None:
        """Start the next fault of the deck; if it has no target, or misses it, it comes again after the next one."""
        if not self._deck:
            self._deck = self._shuffled_deck()
        blow = self._deck.pop()
        if (victim := await self._victim(blow)) is None:
            self._deck.insert(-1, blow)
        else:
            victim.busy = True
            blows.create_task(self._strike(blow, victim))

    async def _victim(self, blow: Blow) -> AgentProcess | None:
        """An idle agent: the holder of the pass if that is wanted, otherwise one at random."""
        only_holder = blow == self._freeze_the_pass_holder
        if only_holder or self.rng.random() < 0.3:
            holder = await self._pass_holder()
            if holder is not None and holder in self.fleet.idle():
                return holder
        idle = self.fleet.idle()
        return self.rng.choice(idle) if idle and not only_holder else None

    async def _pass_holder(self) -> AgentProcess | None:
        try:
            async with asyncio.timeout(2):
                found = await self.core.records.read(CoordinatorKeys.reconciler, ReconcilerRecord)
        except (StoreUnavailable, TimeoutError):
            return None
        return self.fleet.find(found.record.holder) if found else None

    async def _strike(self, blow: Blow, victim: AgentProcess) -> None:
        try:
            await blow(victim)
            self.struck[_name(blow)] += 1
        except Missed:
            self._deck.insert(-1, blow)
        finally:
            victim.busy = False

    def _kinds(self) -> list[Blow]:
        kinds: list[Blow] = [
            self._kill,
            self._kill_with_its_runners,
            self._freeze,
            self._freeze_the_pass_holder,
            self._freeze_briefly,
        ]
        kinds += [self._freeze_past_trust, self._terminate, self._terminate_and_kill, self._break_host]
        return kinds + ([self._freeze_with_a_lock_in_hand] if self.root.locks else [])

    def _shuffled_deck(self) -> list[Blow]:
        """The order of faults: every kind once, and then the most frequent kinds again."""
        again, kinds = [self._kill, self._kill, self._freeze], self._kinds()
        self.rng.shuffle(again)
        self.rng.shuffle(kinds)
        return [*again, *kinds]

    def _replace_the_missing(self) -> None:
        """Replace agents that ended and that their fault did not replace."""
        missing = self.wanted - sum(agent.runs or agent.busy for agent in self.fleet.agents)
        for _ in range(missing):
            self.fleet.start()

    # --- the faults

    async def _kill(self, victim: AgentProcess) -> None:
        """Kill an agent; half of the time its host comes back."""
        comes_back = self.rng.random() < 0.5
        self.sightings.expect_death(victim, "killed, its host comes back" if comes_back else "killed with its host")
        victim.process.kill()
        await victim.gone(10)
        await asyncio.sleep(self.rng.uniform(0, 1))
        self.fleet.start(victim.host if comes_back else None)

    async def _kill_with_its_runners(self, victim: AgentProcess) -> None:
        """Kill an agent and its runners, as when memory is short; the host's next agent ends processes of its tasks."""
        self.sightings.expect_death(victim, "killed with its runners")
        agent = victim.process.pid
        started = [pid for pid in descendants(agent) if stat_fields(pid)[1:2] == [str(agent)]]
        victim.process.kill()
        signal_each(started, signal.SIGKILL)
        await victim.gone(10)
        self.fleet.start(victim.host)

    async def _freeze(self, victim: AgentProcess, how: str = "frozen", least: float = 0.0) -> None:
        """Freeze an agent until it has been declared dead, and somewhat longer; then wake it."""
        frozen, beat = victim.ids[-1], self.core.settings.beat_interval
        victim.send(signal.SIGSTOP)
        noticed = self.sightings.expect_death(victim, how)
        await asyncio.gather(asyncio.wait([noticed], timeout=LONGEST_FREEZE * beat), asyncio.sleep(least))
        await self._frozen(victim, self.rng.uniform(0, 3) * beat)
        self.sightings.woke(frozen)

    async def _freeze_the_pass_holder(self, victim: AgentProcess) -> None:
        """Freeze the pass's holder, so that the pass is taken over although the holder may continue it at any time."""
        await self._freeze(victim, "frozen, holder of the pass")

    async def _freeze_with_a_lock_in_hand(self, victim: AgentProcess) -> None:
        """Freeze an agent with a lock for longer than others wait for the lock."""
        assert self.root.locks is not None
        if not await asyncio.to_thread(freeze_in_lock, victim.process.pid, self.root.locks):
            raise Missed
        await self._freeze(victim, "frozen with a lock in hand", least=file_locks.LOCK_TIMEOUT + 1)

    async def _freeze_briefly(self, victim: AgentProcess) -> None:
        """Freeze an agent so briefly that nobody need notice."""
        await self._frozen(victim, self.rng.uniform(0.1, 1.5) * self.core.settings.beat_interval)

    async def _freeze_past_trust(self, victim: AgentProcess) -> None:
        """Freeze an agent until its tasks are killed, but wake it before it is found dead: no failure of the jobs."""
        await self._frozen(victim, self.rng.uniform(3.2, 4.8) * self.core.settings.beat_interval)

    async def _frozen(self, victim: AgentProcess, seconds: float) -> None:
        victim.send(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        victim.send(signal.SIGCONT)
        await asyncio.sleep(2 * self.core.settings.beat_interval)  # to join again

    async def _terminate(self, victim: AgentProcess) -> None:
        victim.send(signal.SIGTERM)
        await victim.gone(30)
        self.fleet.start()

    async def _terminate_and_kill(self, victim: AgentProcess) -> None:
        """End an agent as a cloud takes a host away: SIGTERM, and soon SIGKILL, even if it has not finished."""
        victim.send(signal.SIGTERM)
        await victim.gone(self.rng.uniform(0, 1))
        self.fleet.start(victim.host)

    async def _break_host(self, victim: AgentProcess) -> None:
        """Make a host's disk read-only: every start of a task fails there."""
        victim.send(signal.SIGTERM)
        await victim.gone(30)
        broken = self.fleet.start()
        broken.busy = True
        await broken.joined()
        if not broken.ids:
            raise Missed
        with without_rights(work_dir(broken.host) / broken.ids[-1]):
            await asyncio.sleep(6 * self.core.settings.beat_interval)
            broken.send(signal.SIGTERM)
            await broken.gone(30)
        self.fleet.start()

    async def _trouble_the_storage(self, ends: float) -> None:
        """Apply a fault of the storage now and then: each kind once, then at random."""
        kinds = list(self.root.troubles)
        self.rng.shuffle(kinds)
        pause = (ends - boottime()) / (2 * len(kinds) + 1)
        while True:
            await asyncio.sleep(pause * self.rng.uniform(0.6, 1.0))
            if boottime() > ends:
                return
            kind = kinds.pop() if kinds else self.rng.choice(list(self.root.troubles))
            self.struck[kind] += 1
            begin = boottime()
            await self.root.troubles[kind](self.rng.uniform(2, 6) * self.core.settings.beat_interval)
            if kind not in self.root.harmless:
                self.windows.append(Window(begin, boottime() + SETTLING))


def _name(blow: Blow) -> str:
    return blow.__name__.strip("_").replace("_", " ")
