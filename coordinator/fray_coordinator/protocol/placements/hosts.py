"""Hosts as placements see them, and packing: which hosts get equal bundles, one by one or as whole slices.

A host is all that an agent has, what else uses it and for how long, and where it is.

**Invariant.** All owners together never have more of a host than the host has.

**Unsafe sequence.**

1. Agent A votes for owner O, and reserves the last room of its host.
2. The pass reads from A's heartbeat that nothing is free.
3. The pass believes that A has no room for O, and moves O to another agent; there the same happens again.

**Why this cannot happen.** The room of a host is its capacity less what earlier owners were given, by their records.
The free resources in a heartbeat only tell how soon that room is free, and what owners have reserved there is added to
them first.

**Packing.**

**Invariant.** Equal bundles get hosts whenever there is room for all of them. Slices are given whole or not at all.

**Unsafe sequence.**

1. The agent of a slice's host restarts under another id, while its old record still looks alive.
2. Both ids count as workers of the slice, so the slice looks complete although it lacks a host.
3. Two replicas start, and wait for a third that was given a host which has one already.

**Why this cannot happen.** Each place in a slice counts once, for the agent that started last. Bundles are equal, so
whichever host with room is taken, as many places remain for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush

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


Preference = tuple[bool, bool, bool]
"""The reasons to take a host later than others: the job was recently lost there, another owner wants it, and the owner
had nothing there before."""


@dataclass(frozen=True, slots=True)
class Pack:
    """Hosts with the numbers of the bundles that each gets. wait: when all of them are free, 0 if they are now."""

    wait: float = 0.0
    bundles: tuple[tuple[HostView, tuple[int, ...]], ...] = ()

    def and_also(self, other: Pack) -> Pack:
        """Both packs together."""
        return Pack(max(self.wait, other.wait), self.bundles + other.bundles)


def wait_for(host: HostView, need: Room, left: Room) -> float:
    """The time when this room is free on a host, of what is `left` there for the asking owner; 0 if it is free now."""
    if left.holds_both(host.busy, need):
        return 0.0
    return host.until if host.until is not None else NEVER


def pack_hosts(
    part: Part,
    hosts: Iterable[HostView],
    left: Callable[[HostView], Room],
    preference: Callable[[HostView], Preference],
) -> Pack | None:
    """Each bundle on the host that has room soonest, and of these on the fullest; None if there is no room for all."""
    able = ((host, rest) for host in hosts if (rest := left(host)).holds(host.needs(part.shape)))
    heap = [_RankedHost(part, host, rest, preference(host)) for host, rest in able]
    heapify(heap)
    wait, given = 0.0, 0
    counts: dict[str, int] = {}
    order: list[HostView] = []
    while given < part.count:
        if not heap:
            return None
        best = heappop(heap)
        wait, given = max(wait, best.wait), given + 1
        if best.host.agent not in counts:
            order.append(best.host)
        counts[best.host.agent] = counts.get(best.host.agent, 0) + 1
        if not part.spread:
            best.take()
            if best.fits:
                heappush(heap, best)
    return Pack(wait, tuple(_numbered(part.first, ((host, counts[host.agent]) for host in order))))


def pack_slices(
    part: Part,
    hosts: Iterable[HostView],
    left: Callable[[HostView], Room],
    preference: Callable[[HostView], Preference],
) -> Pack | None:
    """Whole slices, those that are free soonest, with one bundle on each host; None if there are too few."""
    size = part.count // part.slices
    whole: list[tuple[Preference, float, str, list[HostView]]] = []
    for name, workers in newest_workers(hosts).items():
        candidates = [_RankedHost(part, host, left(host), preference(host)) for host in workers.values()]
        if len(workers) == size and is_whole_slice(workers) and all(candidate.fits for candidate in candidates):
            wait = max(candidate.wait for candidate in candidates)
            avoided, wished, new = zip(*(candidate.preference for candidate in candidates), strict=True)
            whole.append(((any(avoided), any(wished), any(new)), wait, name, [workers[n] for n in range(size)]))
    if len(whole) < part.slices:
        return None
    whole.sort(key=lambda found: (found[1], found[0], found[2]))
    chosen = sorted(whole[: part.slices], key=lambda found: found[2])
    members = [host for _, _, _, workers in chosen for host in workers]
    return Pack(max(found[1] for found in chosen), tuple(_numbered(part.first, ((host, 1) for host in members))))


def is_whole_slice(workers: Mapping[int, HostView]) -> bool:
    """Whether these hosts, by their places in a slice, are all hosts of the slice."""
    sizes = {host.slice.hosts for host in workers.values() if host.slice is not None}
    return sizes == {len(workers)} and sorted(workers) == list(range(len(workers)))


def newest_workers(hosts: Iterable[HostView]) -> Mapping[str, dict[int, HostView]]:
    """The hosts of each slice by their places. If two agents claim one place, the newer agent counts."""
    slices: dict[str, dict[int, HostView]] = {}
    for host in hosts:
        if host.slice is not None:
            workers = slices.setdefault(host.slice.id, {})
            known = workers.get(host.slice.index)
            if known is None or (known.started_at, known.agent) < (host.started_at, host.agent):
                workers[host.slice.index] = host
    return slices


class _RankedHost:
    """A host with the room that is left on it for the bundles of one part. The least host is taken first."""

    __slots__ = ("_left", "_need", "_rank", "fits", "host", "preference", "wait")

    def __init__(self, part: Part, host: HostView, left: Room, preference: Preference) -> None:
        self.host, self.preference = host, preference
        self._left, self._need = left, host.needs(part.shape)
        self._update_rank()

    def take(self) -> None:
        """Take the room of one bundle."""
        self._left = self._left.less(self._need)
        self._update_rank()

    def _update_rank(self) -> None:
        self.fits = self._left.holds(self._need)
        if not self.fits:
            return
        self.wait = wait_for(self.host, self._need, self._left)
        avoided, wished, new = self.preference
        has_device = self._left.devices > 0 == self._need.devices
        self._rank = (self.wait, avoided, has_device, wished, new, self._left.cpu, self.host.agent)

    def __lt__(self, other: _RankedHost) -> bool:
        return self._rank < other._rank


def _numbered(first: int, counts: Iterable[tuple[HostView, int]]) -> Iterator[tuple[HostView, tuple[int, ...]]]:
    """Each host with the numbers of its bundles, which follow one another."""
    for host, count in counts:
        yield host, tuple(range(first, first + count))
        first += count
