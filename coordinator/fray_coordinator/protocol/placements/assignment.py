"""Assignment: which agents get the bundles of each owner, all of them or none.

**Invariant.** No host is given more than it has. No bundle of an owner is given before all can be. What an earlier
owner was given is not taken from it for a later one.

**Unsafe sequence.**

1. Gangs A and B need two hosts each, and there are two.
2. Each is given one host.
3. Both wait for the other's host for ever.

Or: gang A is moved whenever another host looks better, and each time a small job takes the host that A has left.

**Why this cannot happen.** Owners are served in their total order, each as a whole, from what is left. An owner keeps
what it was given as long as it can still get all of it. It is moved to hosts that are free at once no more than
`MAX_MOVES` times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from fray_coordinator.concurrency import decide_each
from fray_coordinator.protocol.placements.families import in_order
from fray_coordinator.protocol.placements.hosts import (
    NEVER,
    HostView,
    Pack,
    Preference,
    Room,
    lacks,
    newest_workers,
    pack_hosts,
    pack_slices,
    wait_for,
)
from fray_coordinator.protocol.placements.owners import Owner, Part
from fray_layouts.index_keys import Shape
from fray_layouts.records import PlacementMember

MAX_MOVES = 3
"""Changes to a better set of members in one attempt. A host that looks better in a heartbeat may be taken by now, so
moving for ever would never end."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The members that an owner is to have.

    Attributes:
        members: () if it cannot have all.
        moved: the present members could still be used, but these ones are free now.
        until: the storage's time when everything else that runs on them will have ended, 0 if it has; None if nobody
            knows.
    """

    members: tuple[PlacementMember, ...] = ()
    moved: bool = False
    until: float | None = None


def assign(
    hosts: Iterable[HostView], owners: Iterable[Owner], problems: dict[str, str] | None = None
) -> dict[str, Assignment]:
    """The assignment of each owner that forms, by its id.

    Args:
        hosts: each agent at most once in a pool.
        owners: all that have not ended. Those that do not form have the members that their records name.
        problems: receives, by key of the record, the errors of owners that cannot be judged: these have no assignment,
            and the others have theirs. None: the first error is raised.
    """
    ordered = in_order(owners)
    noted = {} if problems is None else problems
    free = _FreeRoom(hosts, ordered, noted)
    forming = [owner for owner in ordered if owner.forming]
    found = dict(decide_each(forming, lambda owner: (owner.id, free.serve(owner)), noted, _key))
    if problems is None and noted:
        raise ValueError("; ".join(f"{key}: {problem}" for key, problem in noted.items()))
    return found


def _key(owner: Owner) -> str:
    return owner.key


class _FreeRoom:
    """The room that is left on each host while one owner after the other is served."""

    def __init__(self, hosts: Iterable[HostView], owners: list[Owner], problems: dict[str, str]) -> None:
        willing = sorted((host for host in hosts if host.willing), key=lambda host: host.agent)
        self._hosts = {(host.pool, host.agent): host for host in willing}
        self._left = {key: host.room for key, host in self._hosts.items()}
        self._pools: dict[str, list[HostView]] = {}
        self._able: dict[tuple[object, ...], list[HostView]] = {}
        self._wishes: dict[tuple[str, str], set[str]] = {}
        self._hopeless: dict[tuple[object, ...], int] = {}
        for host in willing:
            self._pools.setdefault(host.pool, []).append(host)
        fixed = [owner for owner in owners if not owner.forming]
        decide_each(fixed, lambda owner: self._take(owner, owner.placement.members), problems, _key)
        for owner in owners:
            for member in owner.placement.members if owner.forming else ():
                self._wishes.setdefault((owner.pool, member.agent), set()).add(owner.id)

    def serve(self, owner: Owner) -> Assignment:
        """Choose the members of an owner, and take their room from what is left."""
        members, moved = tuple(owner.placement.members), False
        if not self._can_keep_members(owner):
            members = _members(owner, self._choose(owner))
        elif self._free_at(owner, members) > 0.0 and owner.placement.moves < MAX_MOVES:
            better = self._choose(owner)
            if better is not None and better.wait == 0.0:
                members, moved = _members(owner, better), True
        wait = self._free_at(owner, members)
        self._take(owner, members)
        return Assignment(members, moved, wait if members and wait < NEVER else None)

    def _left_for(self, owner: Owner, host: HostView) -> Room:
        """What is left of a host for an owner: nothing that its own ancestors use."""
        left = self._left[host.pool, host.agent]
        return left.less(host.room_of_ancestors(owner)) if owner.ancestors else left

    def _take(self, owner: Owner, members: Iterable[PlacementMember]) -> None:
        for member in members:
            key = owner.pool, member.agent
            if key in self._hosts:
                self._left[key] = self._left[key].less(_needs(self._hosts[key], owner, member.bundles))

    def _can_keep_members(self, owner: Owner) -> bool:
        """Whether the owner can still get everything that it has been given."""
        members, refused = owner.placement.members, set(owner.placement.refused)
        if not members or sorted(n for member in members for n in member.bundles) != list(range(owner.low)):
            return False
        for member in members:
            key = owner.pool, member.agent
            if key not in self._hosts or member.agent in refused:
                return False
            if not self._left_for(owner, self._hosts[key]).holds(_needs(self._hosts[key], owner, member.bundles)):
                return False
        return self._workers_are_newest(owner)

    def _workers_are_newest(self, owner: Owner) -> bool:
        """Whether no newer agent has taken a member's place in its slice."""
        workers = {m.agent for m in owner.placement.members if owner.part_of(m.bundles[0]).slices}
        if not workers:
            return True
        newest = newest_workers(self._pools[owner.pool])
        return workers <= {host.agent for slice_ in newest.values() for host in slice_.values()}

    def _free_at(self, owner: Owner, members: Iterable[PlacementMember]) -> float:
        """The time when all that the owner was given is free; called before that room is taken."""
        waits = [0.0]
        for member in members:
            host = self._hosts[owner.pool, member.agent].as_seen_by(owner)
            left = self._left_for(owner, host)
            waits.append(wait_for(host, _needs(host, owner, member.bundles), left))
        return max(waits)

    def _choose(self, owner: Owner) -> Pack | None:
        """The hosts for all that the owner needs, those that are free soonest; None if there are too few."""
        packs = [
            (pack.wait, place, pack)
            for place in ([owner.within] if owner.within else self._places(owner.pool, owner.same))
            if (pack := self._pack(owner, place))
        ]
        return min(packs, key=lambda found: found[:2])[2] if packs else None

    def _places(self, pool: str, same: str) -> list[str]:
        """The zones or regions to try one by one; [""] if any place will do."""
        if not same:
            return [""]
        return sorted({host.place(same) for host in self._pools.get(pool, ())} - {""})

    def _pack(self, owner: Owner, place: str) -> Pack | None:
        """The hosts for all parts within `place`, largest bundles first, those of one part on one device variant."""
        taken: dict[str, Room] = {}
        whole = Pack()
        for part in sorted(needed_parts(owner), key=largest_first):
            best = self._pack_part(owner, part, place, taken)
            if best is None:
                return None
            for host, numbers in best.bundles:
                need = _needs(host, owner, numbers)
                taken[host.agent] = taken.get(host.agent, Room()).plus(need)
            whole = whole.and_also(best)
        return whole

    def _pack_part(self, owner: Owner, part: Part, place: str, taken: dict[str, Room]) -> Pack | None:
        """The hosts for a part, in the owner's `place`, and within one place of its own if the part asks for that."""
        places = [place] if part.same == owner.same else self._places(owner.pool, part.same)
        packs = [
            (pack.wait, own, pack)
            for own in places
            if (pack := self._pack_part_in(owner, part, {owner.same: place, part.same: own}, taken)) is not None
        ]
        return min(packs, key=lambda found: found[:2])[2] if packs else None

    def _pack_part_in(self, owner: Owner, part: Part, places: Mapping[str, str], taken: dict[str, Room]) -> Pack | None:
        refused, avoided = set(owner.placement.refused), set(owner.avoid_hosts)
        has = {member.agent for member in owner.placement.members}

        def left(host: HostView) -> Room:
            rest = self._left_for(owner, host)
            return rest.less(taken[host.agent]) if host.agent in taken else rest

        def preference(host: HostView) -> Preference:
            others = self._wishes.get((host.pool, host.agent), set()) - {owner.id}
            is_new = host.agent not in has and owner.id not in host.ending
            return host.host in avoided or host.agent == owner.lost_by, bool(others), is_new

        asked = (
            *self._request_key(owner.pool, part, part.shape),
            *places.items(),
            part.spread,
            part.slices and part.count // part.slices,
        )
        asked += tuple(part.resources.device_alternatives)
        if part.count >= self._hopeless.get(asked, part.count + 1):
            return None
        options: list[tuple[float, int, Pack]] = []
        for rank, shape in enumerate(part.variants()):
            able = (host for host in self._able_hosts(owner.pool, part, shape) if host.agent not in refused)
            near = (host for host in able if all(host.place(same) == place for same, place in places.items()))
            here = (host.as_seen_by(owner) for host in near)
            pack = (pack_slices if part.slices else pack_hosts)(part, here, left, preference)
            if pack is not None:
                options.append((pack.wait, rank, pack))
        if not (options or refused or taken or owner.ancestors):  # no later owner finds more: what is left only shrinks
            self._hopeless[asked] = part.count
        return min(options, key=lambda found: found[:2])[2] if options else None

    def _able_hosts(self, pool: str, part: Part, shape: Shape) -> list[HostView]:
        """The hosts that could ever have such a bundle. They are found once for all owners that ask for the same."""
        key = self._request_key(pool, part, shape)
        if key not in self._able:
            hosts = self._pools.get(pool, ())
            self._able[key] = [host for host in hosts if not host.doubtful and not lacks(host, part, shape)]
        return self._able[key]

    def _request_key(self, pool: str, part: Part, shape: Shape) -> tuple[object, ...]:
        """The key of a request: everything that decides which hosts could ever have such a bundle."""
        wants = part.resources
        return pool, shape, tuple(wants.regions), wants.zone, tuple(sorted(wants.labels.items()))


def needed_parts(owner: Owner) -> list[Part]:
    """The parts of an owner, cut to the bundles that it needs to start."""
    parts = (replace(part, count=min(part.count, owner.low - part.first)) for part in owner.parts)
    return [part for part in parts if part.count > 0]


def largest_first(part: Part) -> tuple[int, ...]:
    """The key by which the parts of an owner are packed: slices first, then those with the largest bundles."""
    shape = part.shape
    devices = shape.device_share or 1000 * shape.device_count
    return -part.slices, -devices, -shape.cpu, -shape.memory, -shape.disk, part.first


def _needs(host: HostView, owner: Owner, bundles: Iterable[int]) -> Room:
    """The room that these bundles take on a host."""
    need = Room()
    for number in bundles:
        need = need.plus(host.needs(owner.part_of(number).shape))
    return need


def _members(owner: Owner, pack: Pack | None) -> tuple[PlacementMember, ...]:
    """The members of a pack, ordered by their bundles."""
    numbers: dict[str, list[int]] = {}
    for host, given in pack.bundles if pack is not None else ():
        numbers.setdefault(host.agent, []).extend(given)
    hosts = {host.agent: host for host, _ in pack.bundles} if pack is not None else {}
    members = [
        host.member(numbers[agent], any(owner.part_of(n).slices for n in numbers[agent]))
        for agent, host in hosts.items()
    ]
    return tuple(sorted(members, key=lambda member: member.bundles[0]))
