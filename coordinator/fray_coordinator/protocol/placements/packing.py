"""Packing: which hosts get equal bundles, one by one or as whole slices.

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
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from fray_coordinator.protocol.placements.hosts import NEVER, HostView, Room
from fray_coordinator.protocol.placements.owners import Part

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
