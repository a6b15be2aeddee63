"""The segments that a consumer holds: its deliveries are found in them, and ended, completed or released."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.queue.delivery import Delivery
from fray_coordinator.queue.errors import LeaseLost, UnknownLease
from fray_coordinator.queue.held_segment import HeldSegment, OutItem
from fray_layouts.errors import FrayError

log = logging.getLogger("fray")


class HeldSegments:
    """The segments of one consumer.

    Attributes:
        by_name: all of them.

    Args:
        on_complete: called with a segment all of whose items are done.
        on_release: called with a segment that was released.
    """

    def __init__(self, on_complete: Callable[[HeldSegment], None], on_release: Callable[[HeldSegment], None]) -> None:
        self.by_name: dict[str, HeldSegment] = {}
        self._stocked: dict[str, HeldSegment] = {}  # those that may have items to hand out
        self._on_complete = on_complete
        self._on_release = on_release

    def add(self, held: HeldSegment) -> None:
        """Hold a segment that was claimed."""
        self.by_name[held.name] = self._stocked[held.name] = held

    def next(self) -> HeldSegment | None:
        """The oldest segment that may have items to hand out; None if none has."""
        return min(self._stocked.values(), key=lambda held: held.name, default=None)

    def skip(self, held: HeldSegment) -> None:
        """Take no more items of this segment, until one is released."""
        self._stocked.pop(held.name, None)

    def lose(self, held: HeldSegment) -> None:
        """Hold a segment no longer whose claim is lost."""
        self._forget(held)
        held.lose()

    def delivered(self, lease: str) -> tuple[OutItem, Delivery]:
        """The item that was handed out under this lease. Raises UnknownLease."""
        held = self.by_name.get(lease.partition("/")[0])
        item = held.out.get(lease) if held else None
        if item is None or item.delivery is None:
            raise UnknownLease(lease)
        return item, item.delivery

    async def complete(self, leases: Iterable[str]) -> None:
        """Complete the items of these leases. Raises as `Consumer.done` does."""
        await self._by_segment(leases, self._complete)

    async def release(self, leases: Iterable[str], failed: bool) -> None:
        """Give the items of these leases back. Raises as `Consumer.done` does."""
        await self._by_segment(leases, partial(self._release, failed=failed))

    async def give_back(self, held: HeldSegment) -> None:
        """Release what can be released of a segment; the rest comes back when its lease runs out."""
        try:
            await self._release(held, held.delivered, failed=False)
        except FrayError:
            return
        except Exception:
            log.exception("%s was not given back", held.name)

    def settle(self, held: HeldSegment) -> None:
        """Hold a segment no longer if all its items are done."""
        if held.is_complete and self.by_name.get(held.name) is held:
            self._forget(held)
            self._on_complete(held)

    async def _by_segment(
        self, leases: Iterable[str], act: Callable[[HeldSegment, Sequence[OutItem]], Awaitable[None]]
    ) -> None:
        """`act` on the items of these leases, by segment. Raises UnknownLease afterwards for leases without one."""
        unknown: list[str] = []
        lost: list[str] = []
        groups: dict[HeldSegment, list[OutItem]] = {}
        for lease in dict.fromkeys(leases):
            try:
                item, _ = self.delivered(lease)
                groups.setdefault(item.segment, []).append(item)
            except UnknownLease:
                unknown.append(lease)

        async def act_on(held: HeldSegment, items: list[OutItem]) -> None:
            out = [item for item in items if item.id in held.out]
            unknown.extend(item.id for item in items if item not in out)
            try:
                if out:
                    await act(held, out)
            except LeaseLost:
                self.lose(held)
                lost.extend(item.id for item in out)

        # shielded: what was sent may land though the caller is cancelled, and then the item must not count as out
        await map_concurrently(groups.items(), lambda group: asyncio.shield(asyncio.ensure_future(act_on(*group))))
        if unknown or lost:
            raise (UnknownLease if unknown else LeaseLost)(*unknown, *lost)

    async def _complete(self, held: HeldSegment, items: Sequence[OutItem]) -> None:
        await self._written(held, held.complete(items))
        self.settle(held)

    async def _release(self, held: HeldSegment, items: Sequence[OutItem], failed: bool) -> None:
        whole = len(items) == len(held.out)
        if whole:
            self._forget(held)
        await self._written(held, held.release(items, failed))
        if whole:
            self._on_release(held)
        else:
            self._stocked[held.name] = held

    async def _written(self, held: HeldSegment, end: Awaitable[None]) -> None:
        """Wait until the end of items was written; a segment that may not have been given back is still held."""
        try:
            await end
        except Exception:
            if not held.lease.lost:
                self.by_name[held.name] = held
            raise

    def _forget(self, held: HeldSegment) -> None:
        self._stocked.pop(held.name, None)
        if self.by_name.get(held.name) is held:
            del self.by_name[held.name]
