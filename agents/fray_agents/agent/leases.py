"""The leases of an agent, and the resources of its host that they leave free; heartbeats list the leases."""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from fray_agents.agent.held import HeldBundle, HeldLease, HeldPlacement, HeldTask
from fray_agents.tasks.task_handle import TaskHandle
from fray_coordinator.protocol.placements.families import families_first, goes_before
from fray_coordinator.protocol.placements.reservations import room_of_bundles
from fray_coordinator.protocol.scheduling import WHOLE, HostKind, gpus_for, part_of_each, remaining_after, shortage
from fray_layouts.index_keys import PendingKey, Shape
from fray_layouts.records import Holding, JobRecord, KeptRoom, ParentLink, Resources
from fray_layouts.states import ExitKind


@dataclass(slots=True)
class Leases:
    """Everything that the agent holds: jobs by their ids, and bundles by the ids of their owners.

    Attributes:
        changed: set whenever something was added, removed or freed.
        gpus_out: indices of the GPUs that must not be used now, each with the reason.
    """

    capacity: Resources
    held: dict[str, HeldLease] = field(default_factory=dict)
    placements: dict[str, HeldPlacement] = field(default_factory=dict)
    gpus_out: dict[int, str] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, entry: PendingKey, room: HeldPlacement | None = None) -> HeldLease:
        """Reserve what the entry's job needs, before its claim is sent.

        room: the reservation in whose bundles it is to run; None: the host's own room.
        """
        gpus = gpus_for(entry.shape, self.gpus_left(room))
        lease = self.held[entry.job] = HeldLease(entry, gpus=gpus, room=room)
        self.changed.set()
        return lease

    def remove(self, lease: HeldLease) -> None:
        """Remove a lease for which nothing is left to do."""
        if self.held.get(lease.entry.job) is lease:
            del self.held[lease.entry.job]
        self.changed.set()

    def add_placement(self, placement: HeldPlacement) -> None:
        """Keep resources that become free for an owner, until there is room for all its bundles."""
        self.placements[placement.owner.id] = placement
        self.changed.set()

    def reserve(self, bundles: Sequence[HeldBundle], host: HostKind) -> bool:
        """Give these bundles of one placement their room, all or none, before a vote is sent; whether they got it."""
        done: list[HeldBundle] = []
        for bundle in bundles:
            gpus = gpus_for(bundle.shape, self.gpus_left(bundle.room))
            if shortage(bundle.shape, self.free(bundle.room), host) or (_has_gpu(bundle.shape) and not gpus):
                for taken in done:
                    taken.taken, taken.gpus = False, ()
                return False
            bundle.taken, bundle.gpus = True, gpus
            done.append(bundle)
        self.changed.set()
        return True

    def could_have(self, bundles: Sequence[HeldBundle], host: HostKind) -> bool:
        """Whether the host would have room for all of these bundles if nothing else ran on it."""
        room = bundles[0].room
        left = self.capacity if room is None else _room_of(room, self.capacity.device)
        if self.gpus_out:
            left = replace(left, device_count=left.device_count - len(self.gpus_out))
        return _fit((bundle.shape for bundle in bundles), left, host)

    def parents(self) -> set[str]:
        """The parents with which jobs here end."""
        links = [*map(_parent_of, self.held.values()), *map(_parent_of, self.placements.values())]
        return {link.job for link in links if link is not None and not link.detached}

    def orphans_in_the_way(
        self, parent: str, wants: Sequence[Shape], host: HostKind, room: HeldPlacement | None
    ) -> list[HeldLease | HeldPlacement]:
        """The children of a job here that use the room for which the job itself waits.

        [] if they would not make enough room.

        Args:
            parent: the id of the job, which does not run.
            wants: the resources that it waits for on this host.
            room: the reservation in which it would run; None: the host's own room.
        """
        children: list[HeldLease | HeldPlacement] = []
        everything: list[HeldLease | HeldPlacement] = [*self.held.values(), *self.placements.values()]
        for held in everything:
            link, tasks = _parent_of(held), _tasks_of(held)
            if link is not None and link.job == parent and not link.detached and tasks and tasks[0].room is room:
                children.append(held)
        for count in range(1, len(children) + 1):
            without = [task for child in children[:count] for task in _tasks_of(child)]
            if _fit(wants, self.free(room, without), host):
                return children[:count]
        return []

    def release(self, placement: HeldPlacement) -> None:
        """Remove a placement for which nothing is left to do: its owner moved on, and no process of it is left."""
        if self.placements.get(placement.owner.id) is placement:
            del self.placements[placement.owner.id]
        self.changed.set()

    def tasks(self) -> Iterator[HeldTask]:
        """Everything that uses or waits for resources of the host or of a reservation."""
        yield from self.held.values()
        for placement in self.placements.values():
            yield from placement.bundles

    def running(self) -> Iterator[tuple[JobRecord, TaskHandle]]:
        """The tasks that were started, each with its job's record."""
        for lease in self.held.values():
            if lease.task is not None and lease.job is not None:
                yield lease.job.record, lease.task
        for placement in self.placements.values():
            job = placement.record.record
            for bundle in placement.bundles:
                if bundle.task is not None and isinstance(job, JobRecord):
                    yield job, bundle.task

    def free(self, room: HeldPlacement | None = None, without: Collection[HeldTask] = ()) -> Resources:
        """The unused resources of the host or of a reservation; 0 cores if children run in their parents' room.

        without: tasks that count as if they used nothing.
        """
        left = self.capacity if room is None else _room_of(room, self.capacity.device)
        for task in self._in(room):
            left = left if task in without else remaining_after(left, task.shape)
        left = replace(left, cpu=max(left.cpu, 0))
        if not (gpus := self.gpus_left(room, without)):
            return left
        shares = sorted(rest for rest in gpus if 0 < rest < WHOLE)
        return replace(left, device_count=gpus.count(WHOLE), device_shares=shares)

    def waiting_placements(self, room: HeldPlacement | None = None) -> list[HeldPlacement]:
        """The owners that wait for room of the host or of a reservation; freed resources are kept for them."""
        return [held for held in self.placements.values() if held.waits and held.bundles[0].room is room]

    def gathering_placements(self, room: HeldPlacement | None = None) -> list[HeldPlacement]:
        """The owners for which room of the host or of a reservation is kept that they do not use yet."""
        return [held for held in self.placements.values() if held.gathers and held.bundles[0].room is room]

    def kept_out_by(self, entry: PendingKey, host: HostKind, room: HeldPlacement | None = None) -> list[HeldPlacement]:
        """The owners for whose sake alone an entry's job does not fit; [] if it fits, or would not fit without them."""
        keep = [
            held
            for held in self.gathering_placements(room)
            if not goes_before(entry, held.owner) or any(bundle.taken for bundle in held.bundles)
        ]
        votes = [bundle for held in keep if held.owner.forming for bundle in held.bundles if bundle.taken]
        if not keep or shortage(entry.shape, self.free(room, votes), host):
            return []
        return keep if shortage(entry.shape, self.unreserved(room, entry), host) else []

    def unreserved(self, room: HeldPlacement | None = None, entry: PendingKey | None = None) -> Resources:
        """The resources that are free and not kept for owners that wait for room.

        entry: a job's: resources kept for owners that it goes before count as free. None: it goes before none.
        """
        left = self.free(room)
        for placement in self.waiting_placements(room):
            for bundle in placement.bundles if entry is None or not goes_before(entry, placement.owner) else ():
                left = left if bundle.taken else remaining_after(left, bundle.shape)
        return replace(
            left,
            cpu=max(left.cpu, 0),
            memory=max(left.memory, 0),
            disk=max(left.disk, 0),
            device_count=max(left.device_count, 0),
        )

    def kept(self) -> dict[str, KeptRoom]:
        """By owner, the room of the host that is kept for it and that it does not have yet."""
        return {held.owner.id: _kept_for(held) for held in self.waiting_placements()}

    def gpus_left(self, room: HeldPlacement | None = None, without: Collection[HeldTask] = ()) -> list[int]:
        """Unused thousandths of each GPU of the host, or of a reservation's bundles; empty without GPUs."""
        count = self.capacity.device_count if self.capacity.device.startswith("gpu") else 0
        left = [0 if place in self.gpus_out else WHOLE for place in range(count)]
        if room is not None:
            left = [0] * count
            for bundle in room.bundles:
                for place in bundle.gpus:
                    left[place] += part_of_each(bundle.shape)
        for task in self._in(room):
            for place in task.gpus if task not in without else ():
                left[place] = max(left[place] - part_of_each(task.shape), 0)
        return left

    def _in(self, room: HeldPlacement | None) -> Iterator[HeldTask]:
        """The tasks that use resources of the host, or of a reservation's bundles."""
        return (task for task in self.tasks() if task.room is room and task.takes_room)

    def has_alone(self, task: HeldTask, place: int) -> bool:
        """Whether no other task at work uses a part of the GPU."""
        around = (task, *(task.room.bundles if task.room is not None else ()))
        return not any(place in other.gpus for other in self.tasks() if other not in around and other.takes_room)

    def use_again(self, lease: HeldLease) -> None:
        """Let an idle job use the host again; if others have taken its room, requeue it before it starts."""
        if lease.idle:
            if shortage(lease.shape, self.free(lease.room), HostKind()):
                lease.ask_to_stop(0.0, ExitKind.PREEMPTED)
            lease.gpus = gpus_for(lease.shape, self.gpus_left(lease.room))
        lease.idle = False

    def lists_any(self) -> bool:
        """Whether the heartbeat lists anything."""
        return bool(self.held) or any(placement.listed for placement in self.placements.values())

    def nothing_to_do(self) -> bool:
        """Whether the agent has ended everything that it could; a reservation stays while unended jobs use it."""
        gangs = [held for held in self.placements.values() if held.abandoned]
        rooms = {task.room for task in (*self.held.values(), *(b for held in gangs for b in held.bundles))}
        placements = (held.abandoned or not held.listed or held in rooms for held in self.placements.values())
        return all(lease.abandoned for lease in self.held.values()) and all(placements)

    def any_at_work(self) -> bool:
        """Whether anything runs, or may be about to run."""
        leases = any(not lease.idle for lease in self.held.values())
        return leases or any(placement.at_work for placement in self.placements.values())

    def holdings(self) -> dict[str, Holding]:
        """The holdings that the heartbeat lists."""
        listed = {owner: placement.holding() for owner, placement in self.placements.items() if placement.listed}
        return {job: lease.holding() for job, lease in self.held.items()} | listed


def _room_of(placement: HeldPlacement, device: str) -> Resources:
    """The resources that a reservation's bundles offer to jobs that run in them."""
    return room_of_bundles((bundle.shape for bundle in placement.bundles if bundle.taken), device)


def _kept_for(held: HeldPlacement) -> KeptRoom:
    shapes = [bundle.shape for bundle in held.bundles if not bundle.taken]
    owner = held.owner
    return KeptRoom(
        room=room_of_bundles(shapes, shapes[0].device if shapes else ""),
        priority=owner.priority,
        submitted_at=owner.submitted_at,
        first=sorted(families_first(owner.placement)),
    )


def _parent_of(held: HeldLease | HeldPlacement) -> ParentLink | None:
    """The link of a job that is held here to its parent; None if it has none, or if its record is not known yet."""
    record = held.record.record if isinstance(held, HeldPlacement) else held.job.record if held.job else None
    return record.parent if isinstance(record, JobRecord) else None


def _tasks_of(held: HeldLease | HeldPlacement) -> Sequence[HeldTask]:
    return held.bundles if isinstance(held, HeldPlacement) else (held,)


def _fit(wants: Iterable[Shape], left: Resources, host: HostKind) -> bool:
    """Whether all of this fits at once."""
    for shape in wants:
        if shortage(shape, left, host):
            return False
        left = remaining_after(left, shape)
    return True


def _has_gpu(shape: Shape) -> bool:
    return shape.device.startswith("gpu")
