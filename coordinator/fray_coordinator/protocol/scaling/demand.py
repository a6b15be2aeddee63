"""Demand: the machines that the waiting work needs besides what is free or on its way, and what a machine holds.

The hosts of a pool's machines are known by number and capacity, before there is a machine and after.

**Demand.**

**Invariant.** Work that fits on no machine of the pool orders none, and what a host offers is counted once.

**Unsafe sequence.**

1. A job asks for more memory than any machine of the pool has.
2. The scaler orders a machine for it. The machine stays idle and is released.
3. The next run of the scaler orders another one, and so on for ever.

Or: ten jobs wait, ten machines are on their way, and the next run orders ten more.

**Why this cannot happen.** Work is packed, in its order, into the hosts that live and those that are on their way. The
rest is packed into machines as they would be made in a zone where the work may run, and only work that fits there
orders machines. A gang is packed as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from fray_coordinator.concurrency import decide_each
from fray_coordinator.protocol.placements.assignment import largest_first, needed_parts
from fray_coordinator.protocol.placements.hosts import (
    HostView,
    Preference,
    Room,
    host_view,
    lacks,
    pack_hosts,
    pack_slices,
)
from fray_coordinator.protocol.placements.owners import Owner, Part
from fray_coordinator.protocol.scaling.view import SERVING, PoolView, WaitingJob, open_zones, place_of
from fray_coordinator.protocol.scheduling import HostKind
from fray_layouts.index_keys import Shape
from fray_layouts.records import AgentRecord, ProvisioningSpec, Resources, SliceMember
from fray_layouts.states import AgentState, MachineState
from fray_layouts.topology import TPU_TOPOLOGIES, tpu_family

_TPU_HOSTS = {
    "v4": {4: (240, 407)},
    "v5p": {4: (208, 448)},
    "v5e": {1: (24, 48), 4: (112, 192), 8: (224, 384)},
    "v6e": {1: (44, 176), 4: (180, 720), 8: (180, 1440)},
}
"""Cores and GB of memory of a virtual machine by its number of chips, from Google Cloud's pages on each family."""

_SMALLEST_TPU_HOST = (24, 48)
"""The same for a number of chips that is not in the table (2 chips of v5e): it has no less than the smallest host."""


def hosts_of(spec: ProvisioningSpec) -> int:
    """The number of hosts of each machine: those of the slice, if its type is a slice."""
    topology = TPU_TOPOLOGIES.get(spec.machine_type)
    return topology.vm_count if topology is not None else 1


def capacity_of(spec: ProvisioningSpec, agents: Iterable[AgentRecord]) -> Resources | None:
    """The capacity of each host; None if nobody knows it yet.

    It is what the pool says, else what the newest agent on one of the machines said, else what the machine type has.
    Nobody knows it if there is no agent yet, and the pool says neither its type nor its cores and memory.
    """
    said = spec.capacity or Resources()
    known = [agent for agent in agents if agent.machine]
    has = max(known, key=lambda agent: agent.started_at).capacity if known else _of_type(spec.machine_type)
    if has is None:
        return said if said.cpu and said.memory else None
    return Resources(
        cpu=said.cpu or has.cpu,
        memory=said.memory or has.memory,
        disk=said.disk or has.disk,
        device=said.device or has.device,
        device_count=said.device_count if said.device else has.device_count,
    )


def _of_type(machine_type: str) -> Resources | None:
    """The capacity of the hosts of a type of TPU slice; None for any other type."""
    topology = TPU_TOPOLOGIES.get(machine_type)
    if topology is None:
        return None
    cpu, gigabytes = _TPU_HOSTS[tpu_family(machine_type)].get(topology.chips_per_vm, _SMALLEST_TPU_HOST)
    return Resources(
        cpu=1000 * cpu,
        memory=gigabytes * 10**9,
        disk=50 * 10**9,  # a cautious guess, until an agent says what its host has
        device=f"tpu-{machine_type}".lower(),
        device_count=topology.chips_per_vm,
    )


@dataclass(frozen=True, slots=True)
class Order:
    """Machines that are missing.

    Attributes:
        zone: where to make them; "" if the provider has no zones; None if every zone that would do is avoided now.
        together: one request makes all of them, or none.
    """

    count: int
    zone: str | None
    together: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Demand:
    """The machines that the waiting work needs.

    Attributes:
        used: the names of existing or coming machines that it needs.
        orders: the missing machines.
        cut: some work still lacks machines, even if the pool makes as many as it may.
        problems: the agents, owners and jobs that cannot be judged, with the errors. They order no machines.
    """

    used: frozenset[str]
    orders: tuple[Order, ...]
    cut: bool = False
    problems: Mapping[str, str] = field(default_factory=dict)


def demand(view: PoolView, now: float) -> Demand:
    """The demand of a pool's waiting work. Gangs, reservations and jobs are served in their order."""
    if view.capacity is None:
        return _probe(view, now)
    packing = _Packing(view, now)
    items: list[tuple[tuple[int, float, str], Owner | list[WaitingJob]]] = []
    items += [(owner.order, owner) for owner in view.forming()]
    items += [((-jobs[0].priority, jobs[0].submitted_at, jobs[0].id), jobs) for jobs in _jobs_by_kind(view.jobs)]

    def serve(item: Owner | list[WaitingJob]) -> None:
        if isinstance(item, Owner):
            packing.serve_owner(item)
        else:
            packing.serve_jobs(item)

    in_order = [item for _, item in sorted(items, key=lambda found: found[0])]
    decide_each(in_order, serve, packing.problems, lambda item: item.key if isinstance(item, Owner) else item[0].id)
    return Demand(frozenset(packing.used), tuple(packing.orders), packing.cut, packing.problems)


def _probe(view: PoolView, now: float) -> Demand:
    """An order of one machine. Its agents will tell what the pool's machines have."""
    there = [m.name for m in view.machines.values() if m.state in SERVING]
    if not view.jobs and not view.forming():
        return Demand(frozenset(), ())
    zones = open_zones(view.spec, view.zones, now)
    order = Order(1, zones[0] if zones else None, reason="to learn what its machines have")
    return Demand(frozenset(there[:1]), () if there else (order,))


def _jobs_by_kind(jobs: Iterable[WaitingJob]) -> list[list[WaitingJob]]:
    """The jobs grouped by what they ask of a host. Each group has the place of its first job."""
    kinds: dict[object, list[WaitingJob]] = {}
    for job in sorted(jobs, key=lambda job: (-job.priority, job.submitted_at, job.id)):
        wants = job.resources
        place = wants.zone, tuple(sorted(wants.regions)), tuple(sorted(wants.labels.items()))
        kinds.setdefault((job.shape, place), []).append(job)
    return list(kinds.values())


@dataclass(slots=True)
class _Packing:
    """The room that is left on each host while one piece of work after the other is served."""

    view: PoolView
    now: float
    hosts: list[HostView] = field(default_factory=list)
    left: dict[str, Room] = field(default_factory=dict)
    machine_of: dict[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    orders: list[Order] = field(default_factory=list)
    cut: bool = False
    problems: dict[str, str] = field(default_factory=dict)
    _made: int = 0
    _hopeless: set[object] = field(default_factory=set)
    _needs: dict[tuple[str, Shape, str], Room | None] = field(default_factory=dict)
    _open: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self._open = frozenset(open_zones(self.view.spec, self.view.zones, self.now))
        owners = {owner.id: owner for owner in self.view.owners}
        by_machine = self.view.agents_by_machine()

        def offer(agent: AgentRecord) -> None:
            known = self.view.machines.get(agent.machine)
            seen = agent.id not in self.view.silent or known is not None
            if agent.state == AgentState.LIVE and seen and (known is None or known.state == MachineState.UP):
                # An unfit agent on a machine counts: it is soon fit again, or its machine is replaced.
                host = host_view(agent if known is None else msgspec.structs.replace(agent, unfit=False), owners)
                if host.willing:
                    room = host.room.less(host.busy)
                    self._offer(replace(host, busy=Room()), room, agent.machine if known is not None else "")

        agents = sorted(self.view.agents.values(), key=lambda a: (not a.holdings, a.id))
        decide_each(agents, offer, self.problems, lambda agent: agent.id)
        placed = (owner for owner in owners.values() if not owner.forming)
        decide_each(placed, self._take_placed, self.problems, lambda owner: owner.key)
        for machine in sorted(self.view.machines.values(), key=lambda m: (m.state, m.name)):
            if machine.state in SERVING and not (machine.state == MachineState.UP and by_machine.get(machine.name)):
                for host in self._hosts_of(machine.name, machine.zone):
                    self._offer(host, host.room, machine.name)

    def _offer(self, host: HostView, room: Room, machine: str) -> None:
        self.hosts.append(host)
        self.left[host.agent] = room
        self.machine_of[host.agent] = machine

    def _take_placed(self, owner: Owner) -> None:
        for host in self.hosts:
            for number in owner.bundles_of(host.agent):
                self._take(host, host.needs(owner.part_of(number).shape))

    def _take(self, host: HostView, need: Room) -> None:
        self.left[host.agent] = self.left[host.agent].less(need)

    def _hosts_of(self, machine: str, zone: str) -> list[HostView]:
        """The hosts of a machine that is on its way or would be made in this zone."""
        view, spec = self.view, self.view.spec
        assert view.capacity is not None
        named, region = place_of(spec.provider, zone)
        kind = HostKind(preemptible=spec.spot, inbound=spec.provider != "cloud_run")
        return [
            HostView(
                agent=f"{machine}/{number}",
                host=f"{machine}/{number}",
                pool=view.pool,
                capacity=view.capacity,
                kind=kind,
                zone=named,
                region=region,
                labels=spec.labels,
                slice=SliceMember(id=machine, type=spec.machine_type or "any", index=number, hosts=view.hosts),
            )
            for number in range(view.hosts)
        ]

    def serve_jobs(self, jobs: Sequence[WaitingJob]) -> None:
        """Give free room to jobs of one kind, and order machines for the rest."""
        part = Part(0, 1, jobs[0].shape, jobs[0].resources)
        waiting = len(jobs)
        for host in self.hosts:
            if waiting == 0:
                return
            if (need := self._need(host, part)) is not None:
                count = min(_count_fitting(self.left[host.agent], need), waiting)
                self._give(host, need, count)
                waiting -= count
        zones = self._zones_for([part])
        if waiting == 0 or not zones:
            return
        zone = zones[0]
        of_one = sum(_count_fitting(h.room, need) for h in self._hosts_of("new", zone) if (need := self._need(h, part)))
        if of_one == 0:
            return
        count = -(-waiting // of_one)
        who = "a waiting job has" if waiting == 1 else f"{waiting} waiting jobs have"
        self._order(count, zone, f"{who} no room")
        for host in self._add_machines(min(count, self.view.spec.max - self._made), zone):
            if (need := self._need(host, part)) is not None:
                given = min(_count_fitting(self.left[host.agent], need), waiting)
                self._give(host, need, given)
                waiting -= given

    def _give(self, host: HostView, need: Room, count: int) -> None:
        for _ in range(count):
            self._take(host, need)
        if count and self.machine_of[host.agent]:
            self.used.add(self.machine_of[host.agent])

    def _zones_for(self, parts: Sequence[Part]) -> list[str]:
        """The zones that would do and may be asked; if none may be asked now, the first that would do."""
        able = [
            zone
            for zone in self.view.spec.zones or [""]
            if all(self._need(self._hosts_of("new", zone)[0], part) is not None for part in parts)
        ]
        return [zone for zone in able if zone in self._open] or able[:1]

    def _order(self, count: int, zone: str, reason: str, together: bool = False) -> None:
        self.orders.append(Order(count, zone if zone in self._open else None, together, reason))

    def _add_machines(self, count: int, zone: str) -> list[HostView]:
        """The hosts of ordered machines. Work that comes later in the order may use what is left of them."""
        added: list[HostView] = []
        for _ in range(count):
            added += self._hosts_of(f"new-{self._made}", zone)
            self._made += 1
        for host in added:
            self._offer(host, host.room, "")
        return added

    def serve_owner(self, owner: Owner) -> None:
        """Give a gang or a reservation all that it needs to form, with the fewest new machines; or give it nothing."""
        parts = needed_parts(owner)
        wanted = tuple((p.count, p.shape, p.slices, p.spread, p.same, repr(p.resources)) for p in parts)
        kind = wanted, owner.same, owner.within, tuple(owner.placement.refused)
        if kind in self._hopeless:
            return
        if (given := self._pack_anywhere(owner, parts, [])) is not None:
            self._take_all(given)
            return
        zones = self._zones_for(parts)
        stays_together = owner.same or any(part.same for part in parts)
        tried = ((zone, self._fewest(owner, parts, zone)) for zone in (zones if stays_together else zones[:1]))
        found = [(count, zone, given) for zone, fewest in tried if fewest is not None for count, given in [fewest]]
        if not found:
            self._hopeless.add(kind)
            self.cut |= bool(zones) and self._made > 0
            return
        count, zone, given = min(found, key=lambda each: each[0])  # the hosts that are there may be in a later zone
        together = any(part.slices > 1 for part in parts) and count > 1
        self._order(count, zone, f"{owner.kind} {owner.id} waits for hosts", together)
        self._add_machines(count, zone)
        self._take_all(given)

    def _fewest(self, owner: Owner, parts: Sequence[Part], zone: str) -> tuple[int, list[tuple[HostView, Room]]] | None:
        """The fewest new machines in the zone with which the owner can form, within the pool's `max`."""
        low, high, best = 0, 1, None
        most = self.view.spec.max - self._made
        while best is None and low < most:
            high = min(high, most)
            given = self._pack_anywhere(owner, parts, self._new_hosts(high, zone))
            if given is None:
                low, high = high, 2 * high
            else:
                best = high, given
        while best is not None and best[0] - low > 1:
            middle = (low + best[0]) // 2
            given = self._pack_anywhere(owner, parts, self._new_hosts(middle, zone))
            if given is None:
                low = middle
            else:
                best = middle, given
        return best

    def _new_hosts(self, count: int, zone: str) -> list[HostView]:
        return [h for n in range(count) for h in self._hosts_of(f"new-{self._made + n}", zone)]

    def _take_all(self, given: Sequence[tuple[HostView, Room]]) -> None:
        for host, need in given:
            self._give(host, need, 1)

    def _pack_anywhere(
        self, owner: Owner, parts: Sequence[Part], more: Sequence[HostView]
    ) -> list[tuple[HostView, Room]] | None:
        for here in _by_place([*self.hosts, *more], owner.same, owner.within):
            if (given := self._pack(owner, parts, here)) is not None:
                return given
        return None

    def _pack(
        self, owner: Owner, parts: Sequence[Part], hosts: Sequence[HostView]
    ) -> list[tuple[HostView, Room]] | None:
        left = {host.agent: self.left.get(host.agent, host.room) for host in hosts}
        refused = set(owner.placement.refused)
        has = {member.agent for member in owner.placement.members}
        given: list[tuple[HostView, Room]] = []

        def preference(host: HostView) -> Preference:
            return False, not self.machine_of.get(host.agent, "new"), host.agent not in has

        willing = [host for host in hosts if host.agent not in refused]
        for part in sorted(parts, key=largest_first):
            packs = (self._pack_part(part, here, left, preference) for here in _by_place(willing, part.same))
            found = next((pack for pack in packs if pack is not None), None)
            if found is None:
                return None
            for host, need in found:
                left[host.agent] = left[host.agent].less(need)
            given += found
        return given

    def _pack_part(
        self,
        part: Part,
        hosts: Sequence[HostView],
        left: Mapping[str, Room],
        preference: Callable[[HostView], Preference],
    ) -> list[tuple[HostView, Room]] | None:
        """The hosts for the bundles of one part, all on one variant of its device."""
        for shape in part.variants():
            able = [host for host in hosts if self._need_of(host, part, shape) is not None]
            wanted = replace(part, shape=shape)
            pack = (pack_slices if part.slices else pack_hosts)(wanted, able, lambda h: left[h.agent], preference)
            if pack is not None:
                return [(host, host.needs(shape)) for host, numbers in pack.bundles for _ in numbers]
        return None

    def _need(self, host: HostView, part: Part) -> Room | None:
        """The room that one bundle takes on the host; None if the host can never have it."""
        needs = (self._need_of(host, part, shape) for shape in part.variants())
        return next((need for need in needs if need is not None), None)

    def _need_of(self, host: HostView, part: Part, shape: Shape) -> Room | None:
        """The room that one bundle of this shape takes.

        It is found once for all machines of a zone and for all work of one kind.
        """
        wants = part.resources
        place = repr((wants.zone, wants.regions, wants.labels)) if wants.zone or wants.regions or wants.labels else ""
        key = host.agent if "/" not in host.agent else f"/{host.zone}/{host.region}", shape, place
        if key not in self._needs:
            self._needs[key] = None if lacks(host, part, shape) else host.needs(shape)
        return self._needs[key]


def _by_place(hosts: Sequence[HostView], same: str, within: str = "") -> list[list[HostView]]:
    """The hosts of each zone or region, whichever `same` says; all of them together if it says neither.

    within: only the hosts of this one.
    """
    if not same:
        return [list(hosts)]
    places = [within] if within else sorted({host.place(same) for host in hosts} - {""})
    return [[host for host in hosts if host.place(same) == place] for place in places]


def _count_fitting(left: Room, need: Room) -> int:
    """The number of times that `need` fits."""
    pairs = (left.cpu, need.cpu), (left.memory, need.memory), (left.disk, need.disk), (left.devices, need.devices)
    fits = [have // want for have, want in pairs if want > 0]
    if any(have < 0 for have, _ in pairs):
        return 0
    return max(min(fits, default=10**6), 0)  # no limit for work that needs nothing: more than ever waits
