"""Users of pools of machines: they submit, reserve, stop their jobs, and move a pool to another project."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from fray_coordinator.core import Core
from fray_coordinator.errors import StoreError
from fray_coordinator.jobs.pools import change_pool
from fray_coordinator.jobs.stopping import stop
from fray_coordinator.jobs.submission import submit
from fray_coordinator.placements import reservations
from fray_coordinator.protocol.scaling.machines import given_up_stray
from fray_layouts.errors import FrayError
from fray_layouts.object_keys import JobIds, JobKeys, MachineKeys, PoolKeys
from fray_layouts.records import AgentPoolRecord, MachineRecord, ReservationRecord, ReservedPart, TpuSettings
from fray_layouts.spec import GangSpec, ResourceSpec
from fray_layouts.spec_parsing import parse_spec
from fray_layouts.states import MachineState, ReservationKind
from tests.simulation.clocks import HostClock
from tests.simulation.machine_plan import PROJECTS, SINGLES, SLICE, SLICES

if TYPE_CHECKING:
    from tests.simulation.machines import MachineWorld


class MachineUsers:
    """All users, each for one task; a user whom the storage refuses does not try again."""

    def __init__(self, world: MachineWorld) -> None:
        self.world = world
        self.draw = world.draw

    def set_up(self) -> None:
        """Create the pools."""

        async def act(core: Core) -> None:
            for pool, spec in self.world.specs.items():
                record = AgentPoolRecord(provisioning=spec)
                await core.records.write(PoolKeys.record(pool), AgentPoolRecord, record, None)

        self._do("people", act)

    def submit_some(self) -> None:
        """Submit a batch of single jobs, perhaps gangs of replicas and of slices, and a reservation.

        Stop some of them soon.
        """
        draw, world = self.draw, self.world
        wanted, reserves = self._drawn_jobs(), draw.random() < 0.4
        regret = draw.uniform(1, 60) if world.stormy and draw.random() < 0.3 else None

        async def act(core: Core) -> None:
            mine: list[str] = []
            for raw in wanted:
                (done,) = await submit(core, [parse_spec(raw)], None)
                if world.storage.went_with_another_root(JobKeys.key(done.job.id)):
                    continue
                mine.append(done.job.id)
                world.jobs.append(done.job.id)
            if reserves:
                await self._reserve(core)
            if regret is not None:
                await core.clock.sleep(regret)
                world.regretted.update(mine)
                for job in mine:
                    await stop(core, job, "not needed any more")

        self._do("user", act)

    def _drawn_jobs(self) -> list[dict[str, Any]]:
        draw, most = self.draw, self.world.trouble.most
        entry: dict[str, Any] = {
            "entrypoint": {"command": ["x"]},
            "max_retries_failure": 50,
            "max_retries_preemption": 500,
        }
        single = {"name": "single", "pool": SINGLES, "resources": {"cpu": draw.choice([1, 2])}, **entry}
        wanted = [single] * draw.randint(1, self.world.trouble.batch)
        if draw.random() < 0.6:
            replicas = draw.randint(2, 2 * most)
            wanted.append({"name": "gang", "pool": SINGLES, "replicas": replicas, "resources": {"cpu": 2}, **entry})
        if draw.random() < 0.6:
            slices = draw.randint(1, min(most, 2))
            wants = {"cpu": 1, "device": {"kind": "tpu", "variant": SLICE, "count": 4}}
            gang = {"name": "gang", "pool": SLICES, "slices": slices, "replicas": 2 * slices, "resources": wants}
            wanted.append({**gang, **entry})
        return wanted

    async def _reserve(self, core: Core) -> None:
        now = core.now()
        part = ReservedPart(gang=GangSpec(resources=ResourceSpec(cpu=2.0), count=self.draw.randint(1, 2)))
        record = ReservationRecord(
            id=JobIds.fresh("reservation", now, core.rng.token()),
            kind=ReservationKind.RESERVATION,
            pool=SINGLES,
            namespace="n",
            submitted_at=now,
            parts=[part],
            low=part.gang.count,
            ttl=200.0,
            expires_at=now + 200.0,
        )
        await reservations.create(core, record)

    def move(self) -> None:
        """Make the slices in another project from now on."""
        project = self.draw.choice(PROJECTS)

        def moved(record: AgentPoolRecord) -> AgentPoolRecord:
            spec = self.world.specs[SLICES]
            return replace(record, provisioning=replace(spec, tpu=TpuSettings(project=project)))

        self.world.note("people", "move", f"{SLICES} to {project}")
        self._do("people", lambda core: change_pool(core, SLICES, moved))

    def delete_strays(self) -> None:
        """Delete the stray machines, as `fray machines NAME --delete` does."""
        strays = [machine for machine in self.world.records.values() if machine.state == MachineState.STRAY]

        async def act(core: Core) -> None:
            for machine in strays:
                with suppress(FrayError):  # a stranger has damaged its record since
                    await core.records.change(
                        MachineKeys.key(machine.pool, machine.name), MachineRecord, given_up_stray
                    )

        if strays:
            self._do("people", act)

    def _do(self, name: str, act: Callable[[Core], Coroutine[Any, Any, None]]) -> None:
        owner = self.world.newcomer(name)

        async def live() -> None:
            core = await self.world.joined(owner, HostClock(self.world.loop), spared=True)
            with suppress(StoreError):
                await act(core)

        self.world.spawn(owner, live())
