"""One simulated cluster of gangs, from a seed; `python -m tests.simulation.gangs` runs seeds, or replays one.

Hosts, storage and faults are those of the simulation of jobs. Here hosts have room for several bundles, zones and TPU
slices, and many jobs are gangs, whose replicas fail together, hang, and are lost one by one.
"""

from __future__ import annotations

import dataclasses
import random
import sys
from typing import Any, ClassVar
from unittest import mock

from msgspec.structs import replace

from fray_agents.agent import private_pools
from fray_agents.agent.agent import Agent, AgentOptions
from fray_agents.agent.held import HeldLease, HeldPlacement
from fray_agents.agent.leases import Leases
from fray_agents.agent.placement_loop import PlacementWatch
from fray_agents.host.capacity import HostPlace
from fray_agents.tasks.task_handle import TaskSpec
from fray_coordinator.protocol.placements.rounds import owner_of
from fray_coordinator.protocol.transitions import TERMINAL, Status
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_layouts.index_keys import PendingKey
from fray_layouts.object_keys import AgentKeys, ReservationKeys
from fray_layouts.records import JobRecord, Resources, SliceMember
from fray_layouts.spec import is_gang
from fray_layouts.states import ReservationState
from tests.simulation import calm, gang_invariants, gang_variants, reservation_invariants, reservation_variants
from tests.simulation.broken_code import Variants
from tests.simulation.campaign import main
from tests.simulation.effects import Run
from tests.simulation.gang_watching import GangWatch
from tests.simulation.gangpeople import LONGEST_TTL, OPERATING, USUAL, GangOperator, GangUser
from tests.simulation.gangwork import CHIPS, LONGEST, SLICE_HOSTS, Fleet, GangTask, fits, task_of
from tests.simulation.host import Host
from tests.simulation.invariants import Broken, told
from tests.simulation.loop import Participant
from tests.simulation.operators import Operator
from tests.simulation.tasks import HostTask
from tests.simulation.users import User
from tests.simulation.world import SWEEP, World

SETTLED = 700.0
"""Virtual seconds from the last fault until all hosts are back and whatever was dead is found to be."""

FORMS = 4 * (1.5 * LONGEST + 10 + 2 * 72 + 30)
"""Virtual seconds in which a gang that is first and fits has been started: as long as the longest job that is in its
way, and until its agents hear of it although every hint was lost, and as much for each of three moves."""


HEARD_OF = 2 * 6.0 + calm.LONGEST_GRACE + calm.A_WHILE
"""Virtual seconds in which a member has looked at its gang's record, and its replicas have ended by that."""


class GangHost(Host):
    """A machine with room for several bundles, in a zone, perhaps a part of a slice.

    Attributes:
        older: it knows no gangs.
        chip_is_held: a stranger's process has one of its chips.
        found_free_at: when its agent last looked at its chips and found them free; None if it found one held.
    """

    def __init__(self, world: GangWorld, name: str, draw: random.Random, place: SliceMember | None) -> None:
        super().__init__(world, name, draw)
        self.cores = draw.choice([2, 4, 4, 8])
        self.slice = place
        zone = f"z{draw.randrange(world.fleet.zones)}" if place is None else "z0"
        self.place = HostPlace(zone=zone, slice=place)
        self.chip_is_held = False
        self.found_free_at: float | None = None
        self.older = place is None and name != "h1" and draw.random() < world.fleet.older

    @property
    def capacity(self) -> Resources:
        if self.slice is None:
            return super().capacity
        device = f"tpu-{self.slice.type}"
        return Resources(cpu=1000 * self.cores, memory=2**36, disk=2**36, device=device, device_count=CHIPS)

    def options(self) -> AgentOptions:
        check = self._check_chips if self.slice is not None else None
        return dataclasses.replace(super().options(), check_chips=check)

    def _check_chips(self) -> str:
        self.found_free_at = None if self.chip_is_held else self.world.loop.now
        return "a stranger has a chip" if self.chip_is_held else ""

    def hold_chip(self, held: bool) -> None:
        """A stranger's process takes a chip or releases it."""
        self.chip_is_held = held
        self.world.note(self.name, "a stranger takes a chip" if held else "the stranger lets go of the chip", "")


class GangWorld(World):
    """A cluster with gangs.

    Attributes:
        fleet: its hosts.
        gangs: the observer of them.
    """

    kind = "gangs"
    module = "tests.simulation.gangs"
    variants = Variants(gang_variants.VARIANTS | reservation_variants.VARIANTS)
    usual: ClassVar[dict[str, float]] = USUAL
    operating: ClassVar[dict[str, float]] = OPERATING
    operator: ClassVar[type[Operator]] = GangOperator
    hosts: list[GangHost]  # type: ignore[assignment]

    def __init__(self, seed: int) -> None:
        self.fleet = Fleet.drawn(random.Random(f"fleet {seed}"))
        super().__init__(seed)
        self.gangs = GangWatch(self)
        self._first: tuple[str, float] = ("", 0.0)
        self._again_and_again(self.fleet.lose_slice_every, self._lose_a_slice)
        self._again_and_again(self.fleet.hold_chip_every, self._hold_a_chip)

    @property
    def plan(self) -> str:
        return f"{super().plan} {self.fleet}"

    def run(self) -> None:
        add, won, poll, schedule = Leases.add, Leases.use_again, PlacementWatch.poll, Reconciler.schedule_placements
        wrong: dict[HeldLease, Broken] = {}

        def tried(leases: Leases, entry: PendingKey, room: HeldPlacement | None = None) -> HeldLease:
            broken: Broken | None = None
            try:
                self.gangs.claims(leases, entry, room)
            except Broken as error:
                broken = error  # if it is claimed: its record may forbid it
            lease = add(leases, entry, room)
            if broken is not None:
                wrong[lease] = broken
            return lease

        def claimed(leases: Leases, lease: HeldLease) -> None:
            if (broken := wrong.pop(lease, None)) is not None:
                self.is_broken(broken)
            won(leases, lease)

        async def poll_unless_old(watch: PlacementWatch) -> None:
            if watch.member.id not in self.gangs.older:
                await poll(watch)

        async def schedule_unless_old(reconciler: Reconciler, woken: bool = False) -> None:
            if reconciler.identity not in self.gangs.older:
                await schedule(reconciler, woken)

        with (
            mock.patch.object(private_pools, "ROWS_PER_REQUEST", self.fleet.pool_page),
            mock.patch.object(Leases, "add", tried),
            mock.patch.object(Leases, "use_again", claimed),
            mock.patch.object(PlacementWatch, "poll", poll_unless_old),
            mock.patch.object(Reconciler, "schedule_placements", schedule_unless_old),
        ):
            super().run()

    # --- hosts and agents

    def made(self, agent: Agent) -> None:
        super().made(agent)
        host = self.process_host(agent.id)
        assert isinstance(host, GangHost)
        if host.older:
            agent.member.record = replace(agent.member.record, supports_placements=False)
            self.gangs.older.add(agent.id)

    def machines(self) -> list[Host]:
        places = [
            SliceMember(id=f"{kind}-{number}", type=kind, index=index, hosts=SLICE_HOSTS[kind])
            for number, kind in enumerate(self.fleet.slices)
            for index in range(SLICE_HOSTS[kind])
        ]
        rest: list[SliceMember | None] = [None] * self.scenario.hosts
        drawn = enumerate([*rest, *places])
        return [GangHost(self, f"h{n + 1}", random.Random(f"host {self.seed} {n}"), place) for n, place in drawn]

    def task(self, host: Host, spec: TaskSpec, deadline: float) -> HostTask:
        return task_of(host, spec, deadline)

    def user(self, name: str, core: Any, draw: random.Random) -> User:
        return GangUser(self, name, core, draw)

    def peer_lost(self, lost: Run) -> None:
        """A replica was killed; its connections to the others break."""
        tasks = [task for host in self.hosts for task in host.running if isinstance(task, GangTask)]
        for task in tasks:
            if (task.run.job, task.run.attempt) == (lost.job, lost.attempt):
                task.lose_a_peer()

    def process_host(self, agent: str) -> Host:
        """The host of an agent."""
        host = self._process_of[agent][1]
        assert isinstance(host, Host)
        return host

    def slice_of(self, agent: str) -> SliceMember | None:
        """The place that an agent's host really has."""
        return self.process_host(agent).slice

    def chips_found_free_at(self, agent: str) -> float | None:
        """When the agent last looked at the chips of its host; None if it found one held, or has not looked."""
        host = self.process_host(agent)
        assert isinstance(host, GangHost)
        return host.found_free_at

    def _lose_a_slice(self) -> None:
        """All hosts of a slice are taken away at once."""
        ids = sorted({host.slice.id for host in self.hosts if host.slice is not None})
        if ids:
            lost = self.draw.choice(ids)
            for host in self.hosts:
                if host.slice is not None and host.slice.id == lost:
                    host.preempt()

    def _hold_a_chip(self) -> None:
        """A stranger has a chip of a host for a while, or until the calm."""
        workers = [host for host in self.hosts if host.slice is not None]
        if workers:
            host = self.draw.choice(workers)
            host.hold_chip(True)
            self.loop.call_later(self.draw.uniform(1, 120), host.hold_chip, False)

    # --- checks

    def task_began(self, run: Run) -> None:
        super().task_began(run)
        if run.job in self.strangers.harmed:
            return
        checks = [
            gang_invariants.no_agent_runs_more_than_it_has,
            gang_invariants.a_job_finds_its_chips_free,
            reservation_invariants.a_bundle_has_one_job,
        ]
        for check in checks if run.replicas == 1 else [*checks, gang_invariants.a_replica_starts_with_its_gang]:
            try:
                check(self.gangs, run)
            except Broken as broken:
                self.is_broken(broken)

    def _on_write(self, key: str, before: Any, after: Any, sender: Participant) -> None:
        super()._on_write(key, before, after, sender)
        if self.strangers.is_stranger(key):
            self.gangs.note_votes(key, after)  # an agent that was put into another state goes on, and votes
            return
        try:
            self.gangs.on_write(key, after, sender)
        except Broken as broken:
            self.is_broken(broken)

    # --- the calm

    def _calm(self) -> None:
        for host in self.hosts:
            if host.older:
                host.older = False
                host.terminate()
        super()._calm()

    def _settle(self) -> None:
        """Wait also until reservations have ended that nobody renews any more."""
        super()._settle()
        begin = self.loop.now
        while reserved := self._reserved():
            if self.loop.now - begin > LONGEST_TTL + calm.PASSES_GO_ON:
                raise Broken("nothing is held for ever", f"{reserved[0]} has not ended", reserved[0])
            self.loop.advance(self.loop.now + SWEEP)
            self._sweep()

    def _reserved(self) -> list[str]:
        """The reservations that have not ended; groups end with their jobs."""
        kept = [r.id for r in self.gangs.reservations.values() if r.ttl and r.state != ReservationState.ENDED]
        return [name for name in kept if not self.strangers.is_stranger(ReservationKeys.key(name))]

    def _is_to_be_stopped(self, job: JobRecord) -> bool:
        """Also stop a gang without room on all sound hosts; later, one without room on those whose agents others see.

        A job of a group that is not held by then is stopped, too: there may be room for each job, but not for all.
        """
        sound = [host for host in self.hosts if not host.fails_starts]
        waited = self.loop.now - self.calm_since > SETTLED + FORMS
        too_large = is_gang(job.spec) and not fits(self, job.spec, self._unharmed() if waited else sound)
        owner = ReservationKeys.of_pool(job.spec.pool)
        left = bool(owner) and owner not in self.gangs.held and waited
        return too_large or left or super()._is_to_be_stopped(job)

    def _sweep(self) -> None:
        super()._sweep()
        if not self.stormy and self.loop.now - self.calm_since > SETTLED:
            self._check_first()
        if not self.stormy:
            self._check_ended()

    def _check_ended(self) -> None:
        """When one replica has ended the attempt, the others end soon."""
        for task in [task for host in self.hosts for task in host.running if task.run.replicas > 1]:
            job, attempt = self.watching.jobs.get(task.run.job), task.run.attempt
            since = self.watching.attempt_since.get((task.run.job, attempt + 1))
            if job is None or since is None or job.id in self.strangers.harmed or not self.works(task.run.agent):
                continue
            if self.loop.now - max(since, task.run.begin, self.calm_since + calm.AT_EASE) > HEARD_OF:
                message = f"{told(job)}, and replica {task.run.replica} of attempt {attempt} runs on"
                raise Broken("who hears that the others end, ends", f"{job.id}: {message}", job.id, task.run.agent)

    def _check_first(self) -> None:
        """The first gang in order forms, once there is no endless job."""
        waiting = [job for job in self.watching.jobs.values() if job.status == Status.GATHERING]
        waiting = [job for job in waiting if not ReservationKeys.of_pool(job.spec.pool)]
        waiting = [job for job in waiting if not self._is_to_be_stopped(job) and not self.strangers.excuses(job)]
        waiting = [job for job in waiting if fits(self, job.spec, self._unharmed())]
        endless = any(job.spec.name == "endless" and job.status not in TERMINAL for job in self.watching.jobs.values())
        first = min(waiting, key=lambda job: owner_of(job).order, default=None)
        if first is None or endless or self._is_behind_a_group(first):
            self._first = ("", 0.0)
            return
        which = f"{first.id}~{first.attempt}"
        if which != self._first[0]:
            self._first = (which, self.loop.now)
        since = max(self._first[1], first.not_before - self.epoch)
        if self.loop.now - since > FORMS:
            message = f"{told(first)} has been first since {since:.0f}"
            raise Broken("a gang that is first and fits is formed", f"{first.id}: {message}", first.id)

    def _is_behind_a_group(self, job: JobRecord) -> bool:
        """Whether a group or a reservation that comes earlier in order keeps room, and may wait for more."""
        forming = [r for r in self.gangs.reservations.values() if r.state == ReservationState.FORMING]
        return any(r.placement.members and owner_of(r).order < owner_of(job).order for r in forming)

    def _unharmed(self) -> list[GangHost]:
        """The sound hosts whose agents others can see, and which keep no room for a gang with an unreadable record."""
        agents = {host: host.agent for host in self.hosts if not host.fails_starts}
        return [host for host, agent in agents.items() if agent is None or not self._is_harmed(agent)]

    def _is_harmed(self, agent: Agent) -> bool:
        harmed = self.strangers.harmed.intersection([agent.id, *agent.member.leases.placements])
        return bool(harmed) or self.strangers.is_stranger(AgentKeys.key(agent.id))


if __name__ == "__main__":
    sys.exit(main(GangWorld))
