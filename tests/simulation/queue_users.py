"""The users of a simulated queue in one process: threads that share one queue object, and clients behind a server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from fray.queue.file_queue import FileEngine
from fray_coordinator.queue.delivery import Delivery, UnknownLease
from fray_coordinator.store.interface import ABSENT
from fray_layouts.queue_keys import ItemPlace
from tests.simulation.loop import Participant
from tests.simulation.queue_watching import NOTES

if TYPE_CHECKING:
    from tests.simulation.queues import QueueWorld

LATEST = 12
"""Items among which threads choose those that they cancel, so that some of them still wait."""
TIMEOUT = 10.0
"""Seconds of a lease; some are three times as long, so that users with different time-outs share segments."""


class QueueUser:
    """The threads of one process, in virtual time: each does what users of `fray.queue` do, beside the others."""

    def __init__(self, world: QueueWorld, owner: Participant, engine: FileEngine, draw: random.Random) -> None:
        self._world = world
        self._owner = owner
        self._engine = engine
        self._life = f"{world.seed_number} {owner.name} {draw.random()}"
        self._closing = False

    async def work(self, thread: int) -> None:
        """Take and end items until one of the threads decides to close the queue."""
        draw = random.Random(f"thread {self._life} {thread}")
        sleep = self._engine.queue.core.clock.sleep
        while not self._closing:
            with self._world.troubled():
                if self._world.known.purges:
                    self._world.known.purges -= 1
                    self._world.note(self._owner.name, "purges", "")
                    await self._engine.purge()
                elif self._world.stormy and draw.random() < 0.05:
                    await self._look(draw)
                elif self._world.stormy and draw.random() < self._world.trouble.cancelling:
                    await self._cancel(draw)
                await self._take(draw)
            with self._world.troubled():
                await sleep(draw.uniform(0.1, 2))
            self._closing = self._closing or (self._world.stormy and draw.random() < 0.02)

    async def _look(self, draw: random.Random) -> None:
        """One of the calls that do not take items."""
        looks: list[Callable[[], Awaitable[object]]] = [
            self._engine.counts,
            lambda: self._engine.peek(3),
            lambda: self._engine.letters(3),
            self._engine.dead_counts,
        ]
        if not self._world.trouble.poison:  # a killer that is pushed again needs longer than the calm lasts
            looks.append(lambda: self._engine.redrive(2))
        await draw.choice(looks)()

    async def _cancel(self, draw: random.Random) -> None:
        """Cancel some of the latest items, of any producer."""
        known, store = self._world.known, self._engine.queue.core.store
        latest = [place for place in known.places if place not in known.acked | known.cancelled][-LATEST:]
        chosen = draw.sample(latest, min(len(latest), draw.choice([1, 2, 4])))

        async def note(places: Sequence[ItemPlace]) -> None:
            await store.put(f"{NOTES}{draw.random()}", " ".join(map(str, places)).encode(), ABSENT)

        cancelled = await self._engine.cancel(chosen, note)
        known.cancelled.update(cancelled)
        self._world.note(self._owner.name, "cancelled", " ".join(sorted(known.places[place] for place in cancelled)))

    async def _take(self, draw: random.Random) -> None:
        timeout = draw.choice([TIMEOUT, TIMEOUT, 3 * TIMEOUT])
        client = draw.choice(["", "", "", f"{self._owner.name} client {draw.randrange(2)}"])
        count = draw.choice([1, 1, 3, 6])
        wait = draw.choice([0.0, 5.0]) if self._world.stormy else 60.0
        for _ in range(draw.choice([1, 3, 6]) if count == 1 and not client else 1):
            ready = self._engine.take_now(timeout) if count == 1 and not client else None
            taken = [ready] if ready else await self._engine.take(count, timeout, wait, client)
            draw.shuffle(taken)
            done = [delivery for delivery in taken if await self._process(delivery, timeout, draw)]
            if draw.random() < 0.3:  # by several threads at once
                await asyncio.gather(*(self._acknowledge([delivery], bool(client)) for delivery in done))
            else:
                await self._acknowledge(done, bool(client))

    async def _process(self, delivery: Delivery, timeout: float, draw: random.Random) -> bool:
        """Process an item; return whether to acknowledge it."""
        world, payload = self._world, delivery.item.body.decode().strip()
        if payload in world.trouble.poison:
            world.note(self._owner.name, "is killed by", payload)
            world.loop.crash(self._owner)
            await asyncio.sleep(0)
        slow = world.stormy and draw.random() < world.trouble.slow
        if slow:
            world.known.excused.add(payload)
        await self._engine.queue.core.clock.sleep(timeout * 1.5 if slow else draw.choice([0.0, 0.5, 3.0]))
        with suppress(UnknownLease), world.troubled():
            if world.stormy and draw.random() < world.trouble.releasing:
                world.note(self._owner.name, "releases", f"{payload} {delivery.id}")
                world.known.ending.add(delivery.id)
                await self._engine.release([delivery.id], failed=False)
                return False
            if world.stormy and draw.random() < world.trouble.giving_up:
                world.note(self._owner.name, "gives up", f"{payload} {delivery.id}")
                world.known.excused.add(payload)
                await self._engine.give_up(delivery.id, "its user says so")
                return False
            if draw.random() < 0.2:
                await self._engine.extend(delivery.id, timeout)
        return True

    async def _acknowledge(self, done: list[Delivery], of_client: bool) -> None:
        """Complete items, with as many tries as needed; items whose lease is lost belong to another consumer."""
        if len(done) == 1 and not of_client and self._engine.done_now(done[0].id):
            self._world.note(self._owner.name, "noted", done[0].id)
            return
        while done:
            with self._world.troubled():
                with suppress(UnknownLease):
                    await self._engine.done([delivery.id for delivery in done])
                return
