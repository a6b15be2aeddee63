"""Simulated pools of machines, from a seed; `python -m tests.simulation.machines` runs seeds, or replays one.

Scalers, agents and passes are real; the provider, hosts and tasks are simulated. In the storm, creates are refused,
lost, late or repeated; requests wait; lists are stale; machines never boot, have full disks or are preempted, some in
storms; users stop jobs and move a pool to another project; records are damaged; the storage has its faults; and two
scalers run at once, and are killed and frozen at any step. In the end all jobs must be done, and unneeded machines
must be gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from fray_agents.agent import agent as agent_module, scaler_loop, voting
from fray_agents.agent.agent import Agent, AgentOptions
from fray_agents.host import agent_lock
from fray_agents.host.capacity import HostPlace
from fray_agents.provisioning.provider import ProviderError
from fray_agents.provisioning.scaler import Scaler
from fray_coordinator.clock import RandomSource
from fray_coordinator.core import Core, core_on
from fray_coordinator.errors import RootMismatch, StoreError
from fray_coordinator.protocol.scaling.provisioning import ScalingScope
from fray_coordinator.store.memory import MemoryBackend, MemoryContents
from fray_coordinator.store.store import Store
from fray_layouts.object_keys import MachineKeys
from fray_layouts.records import ClusterSettings, ProvisioningSpec, SliceMember
from fray_runtime.network import HeldPorts
from tests.simulation.campaign import main
from tests.simulation.clocks import HostClock
from tests.simulation.invariants import Broken
from tests.simulation.loop import OWNER, Participant
from tests.simulation.machine_invariants import STEP, MachineWatch
from tests.simulation.machine_plan import CHIPS, HOST, SINGLES, SLICE, SLICES, Trouble
from tests.simulation.machine_provider import STRANGER, Account, SimulatedProvider
from tests.simulation.machine_users import MachineUsers
from tests.simulation.machine_variants import VARIANTS
from tests.simulation.network import StoreConnection
from tests.simulation.strange_roots import StrangeRoots
from tests.support.fake_tasks import fake
from tests.support.malformed_objects import odd_body

STORM = 600.0
COPY_RUNS = 30
"""Runs of the scaler over the pools of a copy of the root, if it may run there at all."""
STRAYS_GO = 200.0
"""Virtual seconds between two looks of people at the stray machines in the calm."""


class MachineWorld(MachineWatch):
    """Pools whose machines come and go, and their users."""

    kind = "machines"
    module = "tests.simulation.machines"
    variants = VARIANTS

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.trouble = Trouble.drawn(self.draw)
        self.providers = {
            pool: SimulatedProvider(self, pool, self.trouble.service, random.Random(f"{pool} {seed}"))
            for pool in (SINGLES, SLICES)
        }
        self.specs = {pool: self.trouble.spec(pool) for pool in self.providers}
        self.users = MachineUsers(self)
        self._agents: list[Agent] = []
        self._full: set[str] = set()
        self._folder = Path()

    @property
    def plan(self) -> str:
        return str(self.trouble)

    # --- the run

    def run(self) -> None:
        with self._replaced():
            try:
                self._storm()
                self._calm()
            finally:
                amounts = {"jobs": len(self.jobs), "machines": sum(len(p.past) for p in self.providers.values())}
                self._sum_up(**amounts)
                self.loop.bury()
                for agent in self._agents:
                    if agent._lock.path.exists():  # the agent was killed
                        os.close(agent._lock.fd)

    def _storm(self) -> None:
        trouble = self.trouble
        self.users.set_up()
        self.advance(self.loop.now + STEP)
        for number in range(2):
            self._start_scaler(f"scaler{number + 1}")
        for _ in range(3):
            self._in(self.draw.uniform(0, 0.8 * STORM), self.users.submit_some)
        for _ in range(trouble.outages):
            self._in(self.draw.uniform(0, STORM), self._outage)
        self._again_and_again(trouble.preempt_every, self._preempt)
        self._again_and_again(trouble.full_every, self._fill_disk)
        self._again_and_again(trouble.move_every, self.users.move)
        self._again_and_again(trouble.strays_every, self.users.delete_strays)
        self._again_and_again(trouble.damage_every, self._damage)
        self._again_and_again(trouble.restore_every, self._restore_later)
        self._again_and_again(300.0, self.providers[SINGLES].add_stranger)
        StrangeRoots(self, 0.8 * STORM, lambda begin, end: self.outages.append((begin, end)))
        self._in(random.Random(f"copy {self.seed_number}").uniform(0.1, 0.9) * STORM, self._copy_root)
        self.advance(STORM)

    def _calm(self) -> None:
        self.stormy = False
        self.note("world", "calm begins")
        self.storage.heal()
        for owner, connection in self.connections.items():
            connection.suffer(None)
            self.loop.wake(owner)
        self._tidy()
        self._look_for_strays()
        self.users.submit_some()
        self.calm_since = self.loop.now
        self.advance(self.loop.now + STEP)
        self.settle()
        self.figures.calm_seconds = self.loop.now - self.calm_since
        self.settle_machines()
        self.check_bill()

    # --- participants

    def core(self, owner: Participant, clock: HostClock, spared: bool = False) -> Coroutine[Any, Any, Core]:
        """A participant's core, with its own connection to the storage. spared: whether it has only outages."""
        connection = StoreConnection(
            self.storage, owner, clock, self.trouble.rates if self.stormy and not spared else None
        )
        connection.fate = lambda kind: self.meet(owner, kind)
        self.connections[owner] = connection
        rng = RandomSource(f"chance {self.seed_number} {self._next()}")
        return core_on(Store(connection, clock, rng, 45.0), ClusterSettings(), clock, rng)

    def meet(self, owner: Participant, kind: str) -> None:
        """Crash or freeze a participant."""
        if not self.stormy or owner.mode != "up":
            return
        self.note(owner.name, "meets", kind)
        if kind == "crash":
            self.loop.crash(owner)
        else:
            self.loop.freeze(owner)
            self.later(self.draw.choice([3.0, 40.0, 200.0]), self.loop.wake, owner)

    def boot(self, pool: str, name: str, hosts: int, zone: str) -> Callable[[], None]:
        """Start the agents of a machine after a while; return a function that ends them without notice."""
        there: list[Participant] = []
        over: list[bool] = []

        def start(index: int) -> None:
            if over:
                return
            owner = self.newcomer(f"{name}.{index}.")
            owner.on_crash.append(lambda: self.later(self.draw.uniform(1, 60), start, index))
            there.append(owner)
            member = SliceMember(id=name, type=SLICE, index=index, hosts=hosts) if pool == SLICES else None
            self.spawn(owner, self._host(owner, pool, name, HostPlace(zone=zone, slice=member)))

        def stop() -> None:
            over.append(True)
            for owner in there:
                self.loop.crash(owner)

        for index in range(hosts):
            self.later(self.draw.uniform(1, 60), start, index)
        return stop

    async def _host(self, owner: Participant, pool: str, name: str, place: HostPlace) -> None:
        clock = self.drawn_clock(self.draw)
        core = await self.joined(owner, clock)
        seconds = {"single": self.draw.uniform(5, 120), "gang": self.draw.uniform(5, 90)}
        folder = self._folder / owner.name
        folder.mkdir()
        capacity = HOST if pool == SINGLES else CHIPS
        options = AgentOptions(
            pool, capacity, work_dir=folder, start_task=fake(folder, seconds), machine=name, place=place
        )
        with suppress(StoreError):
            agent = Agent(core, options)
            self._agents.append(agent)
            await agent.run()

    def _start_scaler(self, name: str) -> None:
        owner = self.newcomer(f"{name}.")
        owner.on_crash.append(lambda: self.later(self.draw.uniform(0, 20), self._start_scaler, name))
        alone = self.trouble.alone and self.draw.random() < 0.8

        async def live() -> None:
            """Let a scaler run again and again. alone: without the lease, like repeated `fray scale --once`."""
            core = await self.joined(owner, self.drawn_clock(self.draw))
            scope = ScalingScope(named=frozenset({SINGLES, SLICES}))
            fresh = partial(Scaler, core, owner.name, scope, open_provider=self._open_provider)
            scaler = fresh()
            while True:
                with suppress(StoreError):
                    await (fresh().run_once() if alone else scaler.run_if_elected())
                await core.clock.sleep(core.settings.pass_interval)

        self.spawn(owner, live())
        if self.stormy:
            self.later(self.draw.uniform(0, 120), self.meet, owner, "crash")

    def _copy_root(self) -> None:
        """Copy all objects elsewhere, and scale the pools of the copy, as somebody does who tries something out."""
        owner, contents, clock = self.newcomer("copier"), MemoryContents(), HostClock(self.loop)
        for key, found in self.storage.contents.objects.items():
            contents.set(key, found)
        self.note(owner.name, "copies the root", f"{len(contents.objects)} objects")

        async def scale() -> None:
            rng = RandomSource(f"copy {self.seed_number}")
            store = Store(MemoryBackend("memory://copy", contents, clock), clock, rng)
            with suppress(RootMismatch):
                core = await core_on(store, None, clock, rng)
                scaler = Scaler(core, owner.name, ScalingScope(every=True), open_provider=self._open_provider)
                for _ in range(COPY_RUNS):
                    await scaler.run_once()
                    await clock.sleep(core.settings.pass_interval)

        self.spawn(owner, scale())

    def newcomer(self, name: str) -> Participant:
        """Add a participant with a name of its own."""
        return Participant(f"{name}{self._next()}")

    async def joined(self, owner: Participant, clock: HostClock, spared: bool = False) -> Core:
        while True:
            try:
                return await self.core(owner, clock, spared)
            except StoreError:
                await clock.sleep(1.0)

    async def _open_provider(self, core: Core, pool: str, spec: ProvisioningSpec) -> Account:
        if spec.provider != self.specs[pool].provider:  # a stranger's
            raise ProviderError("invalid", f"there is no provider {spec.provider!r}")
        return Account(self.providers[pool], spec.tpu.project if spec.tpu is not None else "")

    # --- faults of machines and their records

    def _preempt(self) -> None:
        provider = self.draw.choice(list(self.providers.values()))
        there = sorted(name for name in provider.machines if not name.startswith(STRANGER))
        for name in there if self.draw.random() < self.trouble.storms else there[:1]:
            provider.preempt(name)

    def _fill_disk(self) -> None:
        """Fill a host's disk, for a while or until the machine is gone."""
        hosts = sorted(owner.name for owner in self.connections if owner.mode == "up" and owner.name[0] == "m")
        if not hosts:
            return
        name = self.draw.choice(hosts)
        self.note(name, "has a full disk")
        self._full.add(name)
        if self.draw.random() < 0.5:
            self.later(self.draw.uniform(10, 300), self._full.discard, name)

    def _lack_of_room(self, folder: Path) -> str:
        return "the disk is full" if OWNER.get().name in self._full else ""

    def _damage(self) -> None:
        """Damage the record of a machine, remove it, or put a malformed object beside it."""
        objects = self.storage.contents.objects
        keys = sorted(key for key in objects if MachineKeys.parse(key) and key not in self.damaged)
        if not keys:
            return
        key, how = self.draw.choice(keys), self.draw.choice(["damage", "damage", "remove", "odd"])
        good = objects[key].data
        self.harm(key, odd=how == "damage")
        if how == "odd":
            key = f"{key.rpartition('/')[0]}/{self.draw.choice(['copy.json', 'x y.json', '.DS_Store', 'a/b/c.json'])}"
        if how == "remove" or key in self.damaged:
            self.overwrite(key, None)
        else:
            self.overwrite(key, odd_body(self.draw, good))
            back = good if how == "damage" and self.draw.random() < 0.5 else None
            self.damaged[key] = back
            self.later(self.draw.uniform(10, 120), self._mend, key)

    def _restore_later(self) -> None:
        """Keep a copy of the records of all machines, and put it in their place a while later."""
        objects = self.storage.contents.objects
        copy = {key: found.data for key, found in objects.items() if MachineKeys.parse(key) and key not in self.damaged}
        self.later(self.draw.uniform(20, 200), self._restore, copy)

    def _restore(self, copy: dict[str, bytes]) -> None:
        there = {key for key in self.storage.contents.objects if MachineKeys.parse(key)}
        for key in sorted(there.union(copy)) if self.stormy else ():
            self.harm(key)
            self.damaged.pop(key, None)
            self.overwrite(key, copy.get(key))

    def _look_for_strays(self) -> None:
        """Let people delete the stray machines, again and again, as long as the world lasts."""
        self.users.delete_strays()
        self.later(STRAYS_GO, self._look_for_strays)

    def _mend(self, key: str) -> None:
        """Repair like people: restore the damaged records, or remove them."""
        if key in self.damaged:
            self.overwrite(key, self.damaged.pop(key))

    def _tidy(self) -> None:
        for key in list(self.damaged):
            self._mend(key)

    def _outage(self) -> None:
        until = self.loop.now + self.draw.uniform(20, 120)
        self.note("storage", "is down", f"until {until:.1f}")
        self.storage.down_until = until
        self.outages.append((self.loop.now, until))

    def spawn(self, owner: Participant, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work, context=owner.context())
        task.add_done_callback(lambda ended: self._over(owner, ended), context=self.owner.context())

    def _over(self, owner: Participant, ended: asyncio.Task[None]) -> None:
        if not ended.cancelled() and (error := ended.exception()) is not None and owner.mode != "gone":
            broken = Broken("nobody ends by an unexpected error", f"{owner} ended with {error!r}", owner.name)
            broken.__cause__ = error
            self.is_broken(broken)

    @contextmanager
    def _replaced(self) -> Iterator[None]:
        """Let agents on machines open the simulated provider, keep locks in a folder of the world, and draw ports."""

        @contextmanager
        def held_ports(names: Any, rng: Any) -> Iterator[HeldPorts]:
            yield HeldPorts({name: rng.randint(20000, 30000) for name in names}, ())

        def lock_folder(root: str) -> Path:
            return self._folder / f"locks-{OWNER.get().name}"

        opened = partial(Scaler, open_provider=self._open_provider)
        with tempfile.TemporaryDirectory(prefix="fray-sim-") as folder, ExitStack() as stack:
            self._folder = Path(folder)
            for owner, name, new in (
                (logging.getLogger("fray"), "disabled", True),
                (scaler_loop, "Scaler", opened),
                (voting, "held_ports", held_ports),
                (agent_lock, "lock_folder", lock_folder),
                (agent_module, "lack_of_room", self._lack_of_room),
            ):
                stack.enter_context(mock.patch.object(owner, name, new))
            yield


if __name__ == "__main__":
    sys.exit(main(MachineWorld))
