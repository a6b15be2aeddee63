"""A simulated provider of machines with faults, and scalers that are killed: `python -m tests.simulation.machines`.

Real agents run jobs on simulated machines in virtual time. Creates are refused, lost after they were carried out, or
late; lists are stale; machines never boot or are preempted, some in storms; two scalers look at once, and are killed
at any step. Then the faults end, and everything has to be done and gone.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fray_agents.agent import scaler_duty
from fray_agents.agent.agent import Agent, AgentOptions
from fray_agents.provisioning.provider import MachineRequest, ProviderError
from fray_agents.provisioning.scaler import Scaler
from fray_coordinator.core import Core
from fray_coordinator.errors import StoreError
from fray_coordinator.jobs.submission import submit
from fray_coordinator.protocol.scaling.costs import cost_so_far
from fray_coordinator.protocol.scaling.listed import ListedMachine, ListedState
from fray_coordinator.protocol.transitions import Status
from fray_layouts.machine_keys import MachineKeys
from fray_layouts.object_keys import JobKeys, PoolKeys
from fray_layouts.records import AgentPoolRecord, JobRecord, MachineRecord, ProvisioningSpec, Resources
from fray_layouts.spec_parsing import parse_spec
from fray_layouts.states import MachineState
from tests.support.fake_tasks import fake
from tests.support.virtual import Cluster, Way, run

POOL = "burst"
HOST = Resources(cpu=4000, memory=2**33, disk=2**33)
PRICE = 3.6
"""Dollars an hour: a thousandth of a dollar a second."""
FAULTY_SECONDS, CALM_SECONDS = 1200.0, 3600.0
UNRECORDED_SECONDS = 300.0
"""For so long a machine may be there without a record at most: a reply that is late, and a few looks."""
LATE_SECONDS = 60.0
"""After so long a create whose caller gave up may still be carried out; less than the rules count on."""


STRANGER = "stranger-"
"""The names of machines that no record ever knew begin like this."""


@dataclass(slots=True)
class SimulatedMachine:
    """A machine from when it is paid until it is not. stop: ends its host."""

    listed: ListedMachine
    since: float
    stop: Callable[[], None] = lambda: None
    ended: float | None = None


@dataclass(slots=True)
class FaultyProvider:
    """The provider of one pool. calm: it has no faults any more."""

    world: MachineWorld
    rng: random.Random
    calm: bool = False
    machines: dict[str, SimulatedMachine] = field(default_factory=dict)
    past: list[SimulatedMachine] = field(default_factory=list)
    creates: int = 0

    async def open(self, core: Core, pool: str, spec: ProvisioningSpec) -> FaultyProvider:
        """As `open_provider`."""
        return self

    async def list(self) -> Sequence[ListedMachine]:
        """What there is, and now and then what was deleted lately."""
        await asyncio.sleep(self.rng.uniform(0, 1))
        if self._happens(0.05):
            raise ProviderError("unavailable", "no answer")
        now = _now()
        stale = [m.listed for m in self.past if m.ended is not None and now - m.ended < 20.0 and self._happens(0.3)]
        return [*(m.listed for m in self.machines.values()), *stale]

    async def create(self, request: MachineRequest) -> str:
        """Make machines, at once, late, or not; the reply may be lost."""
        self.creates += 1
        await asyncio.sleep(self.rng.uniform(0, 1))
        if self._happens(0.15):
            raise ProviderError("stockout", f"nothing left in {request.zone}")
        if self._happens(0.2):
            raise ProviderError("unavailable", "never carried out")
        if self._happens(0.15):
            asyncio.get_running_loop().call_later(self.rng.uniform(0, LATE_SECONDS), self._make, request)
            raise ProviderError("unavailable", "no answer yet")
        self._make(request)
        if self._happens(0.15):
            self._make(request)  # sent twice
        if self._happens(0.15):
            raise ProviderError("unavailable", "the reply is lost")
        return f"operation-{self.creates}"

    async def delete(self, name: str, zone: str, batch: str = "") -> None:
        """Remove a machine; the reply may be lost, or the call."""
        await asyncio.sleep(self.rng.uniform(0, 1))
        if self._happens(0.1):
            raise ProviderError("unavailable", "not carried out")
        self.end(name)
        if self._happens(0.1):
            raise ProviderError("unavailable", "the reply is lost")

    async def close(self) -> None:
        """Machines stay."""

    def preempt(self, name: str) -> None:
        """The host dies; the machine is listed, and paid, until it is deleted."""
        machine = self.machines[name]
        machine.stop()
        known = machine.listed
        machine.listed = ListedMachine(known.pool, name, known.zone, ListedState.LOST, known.batch, error="preempted")

    def add_stranger(self) -> None:
        """A machine of this cluster that no record knows, as where somebody has removed the record."""
        name = f"{STRANGER}{len(self.machines) + len(self.past)}"
        self.machines[name] = SimulatedMachine(ListedMachine(POOL, name, "a-a", ListedState.READY), _now())

    def end(self, name: str) -> None:
        """It is there, and paid, no more."""
        machine = self.machines.pop(name, None)
        if machine is not None:
            machine.stop()
            machine.ended = _now()
            if not name.startswith(STRANGER):
                self.past.append(machine)

    def _make(self, request: MachineRequest) -> None:
        for name in request.names:
            if name not in self.machines:
                listed = ListedMachine(POOL, name, request.zone, ListedState.READY, request.names[0])
                machine = self.machines[name] = SimulatedMachine(listed, _now())
                if not self._happens(0.4):
                    machine.stop = self.world.boot(name, self.rng.uniform(1, 60))

    def _happens(self, chance: float) -> bool:
        return not self.calm and self.rng.random() < chance


@dataclass(slots=True)
class MachineWorld:
    """One simulated cluster: what lies in it, who acts, and what was found wrong.

    Attributes:
        breaches: what broke an invariant, for people.
    """

    cluster: Cluster
    folder: Path
    rng: random.Random
    most: int
    provider: FaultyProvider = field(init=False)
    breaches: list[str] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)
    _unrecorded: dict[str, float] = field(default_factory=dict)
    _hosts: set[asyncio.Task[Any]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.provider = FaultyProvider(self, self.rng)

    def boot(self, name: str, seconds: float) -> Callable[[], None]:
        """Start an agent on a machine after so long; what is returned ends it without a word."""
        ways: list[Way] = []

        async def host() -> None:
            await asyncio.sleep(seconds)
            core = await self.cluster.core()
            ways.append(self.cluster.ways[-1])
            start = fake(self.folder, {"job": self.rng.uniform(5, 120)})
            work_dir = self.folder / name
            work_dir.mkdir(exist_ok=True)
            await Agent(core, AgentOptions(POOL, HOST, work_dir=work_dir, start_task=start, machine=name)).run()

        task = asyncio.create_task(host())
        self._hosts.add(task)

        def stop() -> None:
            for way in ways:
                way.cut = True
            task.cancel()

        return stop

    async def live(self) -> None:
        """The faulty time, then the calm one, and what must be true at its end."""
        core = await self.cluster.core()
        spec = ProvisioningSpec(
            provider="command", capacity=HOST, max=self.most, hourly_cost=PRICE, idle_seconds=60.0, zones=["a-a", "b-b"]
        )
        await core.records.write(PoolKeys.record(POOL), AgentPoolRecord, AgentPoolRecord(provisioning=spec), None)
        acting = [asyncio.create_task(work) for work in (self._scale(), self._scale(), self._submit(core))]
        weather, watch = asyncio.create_task(self._weather()), asyncio.create_task(self._watch(core))
        await asyncio.sleep(FAULTY_SECONDS)
        weather.cancel()
        self.provider.calm = True
        await asyncio.sleep(CALM_SECONDS)
        for task in [*acting, watch]:
            if task.done():
                task.result()
        await self._judge(core)
        for task in (*acting, watch, *self._hosts):
            task.cancel()
        await asyncio.gather(*acting, weather, watch, *self._hosts, return_exceptions=True)

    async def _scale(self) -> None:
        """A scaler that is killed now and then, at any step, and followed by another."""
        number = 0
        while True:
            number += 1
            scaler = Scaler(await self.cluster.core(), f"scaler-{id(self) % 7}-{number}", self.provider.open)
            alone = self.rng.random() < 0.5
            looks = asyncio.create_task(_look_on(scaler, alone))
            await asyncio.sleep(self.rng.uniform(0, 60) if not self.provider.calm else FAULTY_SECONDS + CALM_SECONDS)
            looks.cancel()
            await asyncio.gather(looks, return_exceptions=True)

    async def _submit(self, core: Core) -> None:
        wants: dict[str, Any] = {"name": "job", "pool": POOL, "entrypoint": {"command": ["true"]}}
        wants |= {"resources": {"cpu": 2}, "max_retries_failure": 20}  # three agents that die in a row are one failure
        for _ in range(4):
            specs = [parse_spec(wants) for _ in range(self.rng.randint(1, 12))]
            self.jobs += [done.job.id for done in await submit(core, specs, None)]
            await asyncio.sleep(self.rng.uniform(0, 300))

    async def _weather(self) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(20, 300))
            there = sorted(name for name in self.provider.machines if not name.startswith(STRANGER))
            storm = self.rng.random() < 0.3
            self.provider.add_stranger()
            for name in there if storm else there[:1]:
                self.provider.preempt(name)

    async def _watch(self, core: Core) -> None:
        """What must be true at any time."""
        while True:
            await asyncio.sleep(5)
            there = self.provider.machines
            made = sum(not name.startswith(STRANGER) for name in there)
            if made > self.most:
                self.breaches.append(f"{made} machines of at most {self.most} at {_now():.0f}")
            known = {m.name for m in await read_machines(self.cluster, core) if m.state != MachineState.GONE}
            self._unrecorded = {name: self._unrecorded.get(name, _now()) for name in there if name not in known}
            for name, since in self._unrecorded.items():
                if _now() - since > UNRECORDED_SECONDS:
                    self.breaches.append(f"{name} has no record since {since:.0f}")

    async def _judge(self, core: Core) -> None:
        """What must be true at the end."""
        for job in self.jobs:
            found = await core.records.read(JobKeys.key(job), JobRecord)
            if found is None or found.record.status != Status.SUCCEEDED:
                self.breaches.append(f"{job} is {found.record.status if found else 'not there'}")
        records = await read_machines(self.cluster, core)
        self.breaches += [f"{m.name} is {m.state}" for m in records if m.state != MachineState.GONE]
        self.breaches += [f"{name} is still there" for name in self.provider.machines]
        never = {m.listed.name for m in self.provider.past} - {m.name for m in records}
        self.breaches += [f"{name} never had a record" for name in never]
        billed = sum((m.ended or 0.0) - m.since for m in self.provider.past) / 3600.0 * PRICE
        told = sum(cost_so_far(m, core.now()) or 0.0 for m in records)
        looks = len(self.provider.past) * 2 * core.settings.pass_interval / 3600.0 * PRICE
        if abs(billed - told) > 0.01 * billed + looks + LATE_SECONDS / 3600.0 * PRICE:
            self.breaches.append(f"the provider bills ${billed:.3f}, and the records say ${told:.3f}")


async def _look_on(scaler: Scaler, alone: bool) -> None:
    """Look on and on; alone: without the lease, as `fray scale --once` does."""
    while True:
        with suppress(StoreError):
            await (scaler.look() if alone else scaler.try_look())
        await asyncio.sleep(scaler.core.settings.pass_interval)


async def read_machines(cluster: Cluster, core: Core) -> list[MachineRecord]:
    """The records of all machines, gone ones too."""
    keys = [key for key in cluster.keys(MachineKeys.area) if MachineKeys.parse(key)]
    found = [await core.records.read(key, MachineRecord) for key in keys]
    return [stored.record for stored in found if stored is not None]


def _now() -> float:
    return asyncio.get_running_loop().time()


def simulate(seed: int) -> MachineWorld:
    """Run one world; what was wrong is in its `breaches`."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:

        async def main(cluster: Cluster) -> MachineWorld:
            world = MachineWorld(cluster, Path(folder), rng, rng.randint(1, 4))
            with patch.object(scaler_duty, "Scaler", partial(Scaler, open_provider=world.provider.open)):
                await world.live()
            return world

        return run(main)


def main() -> int:
    """Run worlds of many seeds, and say which are wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many worlds")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    options = parser.parse_args()
    failed = 0
    for seed in range(options.first, options.first + options.seeds):
        world = simulate(seed)
        made = len(world.provider.past)
        print(f"seed {seed}: {len(world.jobs)} jobs, {made} machines, {world.provider.creates} creates", end="")
        print(f": {'; '.join(dict.fromkeys(world.breaches))}" if world.breaches else "", flush=True)
        failed += bool(world.breaches)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
