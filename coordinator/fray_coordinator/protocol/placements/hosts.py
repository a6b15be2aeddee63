"""Hosts as placements see them: all that an agent has, what else uses it and for how long, and where the host is.

**Invariant.** All owners together never have more of a host than the host has.

**Unsafe sequence.**

1. Agent A votes for owner O, and reserves the last room of its host.
2. The pass reads from A's heartbeat that nothing is free.
3. The pass believes that A has no room for O, and moves O to another agent; there the same happens again.

**Why this cannot happen.** The room of a host is its capacity less what earlier owners were given, by their records.
The free resources in a heartbeat only tell how soon that room is free, and what owners have reserved there is added to
them first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from fray_coordinator.protocol.placements.owners import Owner, Part
from fray_coordinator.protocol.scheduling import HostKind, elsewhere, kind_of_host, shortage
from fray_layouts.index_keys import Shape
from fray_layouts.records import AgentRecord, PlacementMember, Resources, SliceMember
from fray_layouts.states import AgentState

NEVER = float("inf")
"""The time when a host is free if nobody knows that time."""

ENDING = 1.0
"""The time when a host is free on which only attempts run that have already ended by the record: at once, but after
hosts that are free now."""


@dataclass(frozen=True, slots=True)
class Room:
    """An amount of what a host has: thousandths of cores and of devices, bytes of memory and of disk."""

    cpu: int = 0
    memory: int = 0
    disk: int = 0
    devices: int = 0

    def plus(self, other: Room) -> Room:
        """The sum of both."""
        return Room(
            self.cpu + other.cpu,
            self.memory + other.memory,
            self.disk + other.disk,
            self.devices + other.devices,
        )

    def less(self, other: Room) -> Room:
        """The difference; negative where the other is larger."""
        return Room(
            self.cpu - other.cpu,
            self.memory - other.memory,
            self.disk - other.disk,
            self.devices - other.devices,
        )

    def holds(self, other: Room) -> bool:
        """Whether the other fits."""
        return (
            self.cpu >= other.cpu
            and self.memory >= other.memory
            and self.disk >= other.disk
            and self.devices >= other.devices
        )

    def holds_both(self, one: Room, other: Room) -> bool:
        """Whether both fit together. No sum is made, since this is asked of each host for each owner that waits."""
        return (
            self.cpu >= one.cpu + other.cpu
            and self.memory >= one.memory + other.memory
            and self.disk >= one.disk + other.disk
            and self.devices >= one.devices + other.devices
        )


@dataclass(frozen=True, slots=True)
class HostView:
    """An agent as the pass sees it, with the room that it offers in one pool.

    Attributes:
        agent: its id.
        pool: the pool in which it offers this room: its own, or the private one of a reservation whose bundles it has.
        capacity: all of the room, whatever uses it.
        host: the host's name.
        address: the address at which other members reach it.
        kind: the kind of the host.
        busy: what is in use there by anything but owners.
        until: the storage's time when that will have ended; None if nobody knows.
        ending: the part of `busy` that an attempt has which is over, by the owner of that attempt.
        uses: the part of `busy` that a single job has, by the job.
        willing: it lives, knows the rules of placements, takes work, and does not leave.
        doubtful: it is silent: it keeps what it was given, and is given nothing new.
    """

    agent: str
    pool: str
    capacity: Resources
    host: str = ""
    address: str = ""
    kind: HostKind = HostKind()  # noqa: RUF009  it is frozen
    busy: Room = Room()
    until: float | None = None
    ending: Mapping[str, Room] = field(default_factory=dict)
    uses: Mapping[str, Room] = field(default_factory=dict)
    zone: str = ""
    region: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    slice: SliceMember | None = None
    started_at: float = 0.0
    willing: bool = True
    doubtful: bool = False

    @property
    def room(self) -> Room:
        """All the room that the host has."""
        return room_of(self.capacity)

    def needs(self, shape: Shape) -> Room:
        """The room that a bundle of this shape takes. It takes all TPU chips, because each process sees all of them."""
        devices = shape.device_share or 1000 * shape.device_count
        if shape.device.partition("-")[0] == "tpu":
            devices = max(devices, 1000 * self.capacity.device_count)
        return Room(shape.cpu, shape.memory, shape.disk, devices)

    def as_seen_by(self, owner: Owner) -> HostView:
        """The view for an owner.

        If it goes on where it was, the room that it is about to leave is free. What its ancestors use is no part of the
        host (`room_of_ancestors`), and not busy either.
        """
        busy = self.busy.less(self.room_of_ancestors(owner)) if owner.ancestors else self.busy
        if owner.stays and owner.id in self.ending:
            busy = busy.less(self.ending[owner.id])
        return self if busy is self.busy else replace(self, busy=busy)

    def room_of_ancestors(self, owner: Owner) -> Room:
        """The room that the owner's ancestors use here. It is not given to the owner, for whose end they may wait."""
        room = Room()
        for job in owner.ancestors:
            room = room.plus(self.uses[job]) if job in self.uses else room
        return room

    def place(self, same: str) -> str:
        """The zone or the region of the host, whichever `same` says; "" if the host does not tell."""
        return {"zone": self.zone, "region": self.region}.get(same, "")

    def member(self, bundles: Iterable[int], in_slice: bool) -> PlacementMember:
        """The host as a member that has these bundles."""
        return PlacementMember(
            agent=self.agent,
            host=self.host,
            address=self.address,
            bundles=sorted(bundles),
            slice=self.slice if in_slice else None,
        )


def room_of(resources: Resources) -> Room:
    """Resources as room, with parts of devices."""
    devices = 1000 * resources.device_count + sum(resources.device_shares)
    return Room(resources.cpu, resources.memory, resources.disk, devices)


def host_view(agent: AgentRecord, owners: Mapping[str, Owner], silent: bool = False) -> HostView:
    """The view of an agent's host, in the agent's own pool.

    Args:
        owners: by id, those that have not ended. What the agent's heartbeat lists of their present attempts does not
            count as busy.
        silent: a heartbeat of the agent is overdue.
    """
    view = HostView(
        agent=agent.id,
        pool=agent.pool,
        capacity=agent.capacity,
        host=agent.host,
        address=agent.advertise or agent.host,
        kind=kind_of_host(agent),
        zone=agent.zone,
        region=agent.region,
        labels=agent.labels,
        slice=agent.slice,
        started_at=agent.started_at,
        willing=agent.state == AgentState.LIVE
        and agent.supports_placements
        and not (agent.unfit or agent.drain or agent.driver),
        doubtful=silent,
    )
    return _with_use(view, agent, owners)


def _with_use(view: HostView, agent: AgentRecord, owners: Mapping[str, Owner]) -> HostView:
    """The view with what is in use besides owners' bundles, by the agent's heartbeat."""
    busy = room_of(agent.capacity).less(room_of(agent.free))
    ends: list[float | None] = []
    ending: dict[str, Room] = {}
    uses = uses_of(agent)
    for held, holding in agent.holdings.items():
        owner = owners.get(held)
        own = _room_of_bundles(view, owner, holding.bundles) if owner is not None and owner.pool == agent.pool else None
        if own is not None and owner is not None and owner.attempt == holding.attempt:
            busy = busy.less(own)
        else:
            is_over = owner is not None and holding.attempt < owner.attempt
            ends.append(ENDING if is_over else holding.ends_by)
            if own is not None and is_over:
                ending[held] = own
    known = [end for end in ends if end is not None]
    until = max(known) if known and len(known) == len(ends) else None
    return replace(view, busy=busy, until=until, ending=ending, uses=uses)


def uses_of(agent: AgentRecord, within: str = "") -> dict[str, Room]:
    """The room that single jobs use on an agent's host, by job. within: a reservation; "" for the host's own room."""
    return {
        job: room_of(holding.takes)
        for job, holding in agent.holdings.items()
        if holding.takes is not None and holding.within == within
    }


def _room_of_bundles(view: HostView, owner: Owner, bundles: Iterable[int]) -> Room:
    room = Room()
    for shape in _shapes(owner, bundles):
        room = room.plus(view.needs(shape))
    return room


def _shapes(owner: Owner, bundles: Iterable[int]) -> Iterable[Shape]:
    return (part.shape for number in bundles for part in owner.parts if number in part.bundles)


def lacks(host: HostView, part: Part, shape: Shape) -> list[str]:
    """Everything that a host will always lack for a bundle of the part, for people; [] if it could have one."""
    return [*shortage(shape, host.capacity, host.kind, "here"), *elsewhere(part.resources, host)]


def has_room(host: HostView, owner: Owner, agent: AgentRecord, bundles: Iterable[int]) -> bool:
    """Whether these bundles of an owner fit on a host now, by its agent's record."""
    need = _room_of_bundles(host, owner, bundles)
    free = room_of(agent.free) if host.pool == agent.pool else host.room.less(host.busy)
    return free.holds(need)
