"""One simulated queue, from a seed: producers and consumers in a storm, then a calm in which everything must be done.

`python -m tests.simulation.queues` runs seeds, or replays one. The services are real; the network, the clocks and the
crashes are those of the simulation of clusters.
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fray.queue.file_queue import FileEngine
from fray_coordinator.clock import RandomSource
from fray_coordinator.errors import StoreError
from fray_coordinator.protocol.queue_segments import LARGE_ITEM_BYTES
from fray_coordinator.queue.delivery import EncodedItem, UnknownLease
from fray_coordinator.queue.doorbell import QueueDoorbell
from fray_coordinator.queue.held_segment import PoisonIsolation
from fray_coordinator.queue.open_queue import OpenQueue, open_queue, standalone_core
from fray_coordinator.queue.producer import Producer
from fray_coordinator.store.interface import AttemptFailed
from fray_layouts.queue_records import QueueRecord
from tests.simulation.campaign import main
from tests.simulation.clocks import HostClock
from tests.simulation.honest import HonestStore
from tests.simulation.invariants import Broken
from tests.simulation.loop import OWNER, Participant
from tests.simulation.mishaps import is_mishap
from tests.simulation.network import Refusal, StoreConnection
from tests.simulation.queue_users import QueueUser
from tests.simulation.queue_variants import VARIANTS
from tests.simulation.queue_watching import DEAD, NAMES, QueueWatch
from tests.simulation.scenario import Plan, between
from tests.simulation.weather import Rates

STORM = 240.0
BOUND = 900.0
"""Seconds of calm in which every item must be done."""
REST, SWEPT = 400.0, 2600.0
"""Seconds after that in which finished segments must be gone, and those after which old receipts were swept, too."""
IDLE = 120.0
QUARANTINE = 20.0
"""Seconds; short, so that many creates come too late."""


@dataclass(frozen=True, slots=True)
class Trouble(Plan):
    """The faults of a queue and its users.

    Attributes:
        outages, unwritable: number of outages, and of outages of writes only.
        outage_length: most seconds of one. partition_every: average seconds until a participant is cut off.
        poison: number of items that kill their consumers.
        slow, releasing: shares of deliveries that take longer than their lease, and that are released.
        stranger_every, refuse_every: seconds between two actions of strangers, and between two bursts of refusals.
        mishaps: share of the requests that end in an unexpected exception.
        consumers, threads: number of consuming processes, and of threads of each, which share its queue object.
        large: share of the items that are objects of their own.
        giving_up: share of deliveries that their user gives up.
        purges: number of purges.
        cancelling: share of their turns in which threads cancel items.
    """

    rates: Rates
    poison: frozenset[str]
    outages: int
    unwritable: int
    outage_length: float
    partition_every: float
    slow: float
    releasing: float
    stranger_every: float
    refuse_every: float
    mishaps: float
    consumers: int
    threads: int
    large: float
    giving_up: float
    purges: int
    cancelling: float

    @staticmethod
    def drawn(draw: random.Random) -> Trouble:
        return Trouble(
            rates=Rates.drawn(draw),
            poison=frozenset({f"p1-{draw.randrange(12)}"} if draw.random() < 0.3 else ()),
            outages=draw.randrange(3),
            unwritable=draw.randrange(2),
            outage_length=between(draw, 10, 200),
            partition_every=between(draw, 40, 400),
            slow=between(draw, 0.05, 0.5),
            releasing=between(draw, 0.03, 0.3),
            stranger_every=between(draw, 5, 60) if draw.random() < 0.5 else math.inf,
            refuse_every=between(draw, 20, 200) if draw.random() < 0.5 else math.inf,
            mishaps=between(draw, 0.001, 0.02) if draw.random() < 0.5 else 0.0,
            consumers=draw.choice([3, 3, 3, 8]),
            threads=draw.choice([1, 2, 3]),
            large=draw.choice([0.0, 0.0, 0.2]),
            giving_up=draw.choice([0.0, 0.0, 0.05]),
            purges=int(draw.random() < 0.1),
            cancelling=draw.choice([0.0, 0.05, 0.3]),
        )


class QueueWorld(QueueWatch):
    """A queue and its users."""

    kind = "queues"
    module = "tests.simulation.queues"
    variants = VARIANTS

    def __init__(self, seed: int) -> None:
        super().__init__(seed, "queue ")
        self.trouble = Trouble.drawn(self.draw)
        self.purging = self.trouble.purges > 0
        self.producing: set[Participant] = set()
        self._mishaps = random.Random(f"queue mishaps {seed}")

    @property
    def plan(self) -> str:
        h = self.hardships
        return f"{self.trouble} clock_offset={h.clock_offset:.3g} clock_drift={h.clock_drift:.3g}"

    # --- the run

    def run(self) -> None:
        with self.watched():
            try:
                self._storm()
                self._calm()
            finally:
                self._sum_up(**{"items done": len(self.known.acked), "items cancelled": len(self.known.cancelled)})
                self.loop.bury()

    def _storm(self) -> None:
        for number in range(2):
            self._in(self.draw.uniform(0, 20), lambda n=number: self._produce(f"p{n + 1}"))
        for number in range(self.trouble.consumers):
            self._in(self.draw.uniform(0, 10), lambda n=number: self._consume(f"c{n + 1}"))
        for _ in range(self.trouble.purges):
            self._in(self.draw.uniform(20, 200), self._ask_for_purge)
        for _ in range(self.trouble.outages):
            self._in(self.draw.uniform(20, 200), self._outage)
        for _ in range(self.trouble.unwritable):
            self._in(self.draw.uniform(20, 200), self._write_outage)
        self._again_and_again(self.trouble.partition_every, self._partition)
        self._again_and_again(self.trouble.stranger_every, self.strangers.act)
        self._again_and_again(self.trouble.refuse_every, self._refuse)
        self.loop.advance(STORM)

    def _calm(self) -> None:
        self.stormy = False
        self.note("world", "calm begins")
        self.storage.heal()
        for owner, connection in self.connections.items():
            connection.cut_until = 0.0
            connection.suffer(None)
            self.loop.wake(owner)
        begin = self.loop.now
        while self.producing or self.known.pushed - self.known.ended:
            self.loop.advance(self.loop.now + 10)
            if self.loop.now - begin > BOUND:
                left = sorted(self.known.pushed - self.known.ended)
                raise Broken("every pushed item is done in the end", f"{left} are not", *left)
        self.figures.calm_seconds = self.loop.now - begin
        rest = self.draw.choice([REST, REST, SWEPT])
        self.loop.advance(self.loop.now + rest)
        if rest == SWEPT and (old := list(self.storage.contents.keys(NAMES.receipts, None))):
            raise Broken("what is finished is collected", f"{old} are left", old[0])
        if left := [key for key in self.storage.contents.keys(NAMES.segments, None) if not self.is_odd(key)]:
            raise Broken("what is finished is collected", f"{left[:5]} and {len(left) - 5} more are left", left[0])
        for key, body in self.strangers.odd.items() if not self.trouble.purges else ():
            found = self.storage.contents.objects.get(key)
            if found is None or found.data != body:
                raise Broken("what is odd stays", f"{key} was deleted or changed", key)
        self._check_letters()
        self._check_idle()

    def _check_idle(self) -> None:
        before = {owner: connection.sent.copy() for owner, connection in self.connections.items()}
        self.loop.advance(self.loop.now + IDLE)
        for owner, connection in self.connections.items():
            sent: Counter[str] = Counter()
            for (verb, _), times in (connection.sent - before[owner]).items():
                sent[verb] += times
            looks, odd = IDLE / 60 + 1, len(self.strangers.odd)  # each look reads the leases of segments set aside
            most = self.trouble.threads * IDLE / 3 + looks * odd
            if sent["list"] > 2 * looks + min(odd, looks) or sent["put"] or sent["get"] > most:
                raise Broken("an empty queue is polled by conditional reads", f"{owner} sent {dict(sent)}", owner.name)

    def _check_letters(self) -> None:
        for payload in self.known.dead - self.trouble.poison - self.known.excused:
            raise Broken("no harmless item is condemned", f"{payload} is a dead letter", payload)
        cancelled = {self.known.places[place] for place in self.known.noted if place in self.known.places}
        for payload in self.trouble.poison & self.known.pushed - cancelled if not self.trouble.purges else ():
            if payload not in self.known.dead:
                raise Broken("what kills its consumers is a dead letter", f"{payload} is none", payload)

    # --- participants

    def _produce(self, name: str) -> None:
        owner = Participant(name)
        self.producing.add(owner)
        draw = random.Random(f"producer {self.seed_number} {name}")

        async def live() -> None:
            queue = await self._open(owner, self.drawn_clock(draw))
            producer = Producer(queue, QueueDoorbell(queue))
            number = 0
            while number < 12:
                payloads = [f"{name}-{number + n}" for n in range(draw.choice([1, 1, 2, 4]))]
                number += len(payloads)
                self.known.maybe.update(payloads)
                with self.troubled():
                    items = [self._encoded(payload, draw.random() < self.trouble.large) for payload in payloads]
                    names = await producer.push(items, draw.choice([1, 2, 4]))
                    places = [place for name in names for place in name.places()]
                    self.known.places.update(zip(places, payloads, strict=True))
                    self.known.pushed.update(payloads)
                    self.note(name, "pushed", " ".join(payloads))
                with self.troubled():
                    await queue.core.clock.sleep(draw.expovariate(1 / 6))
            self.producing.discard(owner)

        owner.on_crash.append(lambda: self.producing.discard(owner))
        self._spawn(owner, live())

    @staticmethod
    def _encoded(payload: str, large: bool) -> EncodedItem:
        return EncodedItem(payload.encode().ljust(LARGE_ITEM_BYTES if large else 0))

    def _consume(self, name: str) -> None:
        owner = Participant(f"{name}.{self._next()}")
        draw = random.Random(f"consumer {self.seed_number} {owner.name}")

        async def live() -> None:
            queue = await self._open(owner, self.drawn_clock(draw))
            gate = PoisonIsolation()
            while True:
                engine = FileEngine(queue)
                engine._handout._isolation = gate  # that of all simulated processes would be the same
                self.consumers[owner] = engine._consumer
                user = QueueUser(self, owner, engine, draw)
                await asyncio.gather(*(user.work(number) for number in range(self.trouble.threads)))
                with self.troubled():
                    self.note(owner.name, "closes", "")
                    await engine._handout.close()
                with self.troubled():
                    await engine._consumer.close()

        owner.on_crash.append(lambda: self._in(draw.uniform(1, 20), lambda: self._consume(name)))
        self._spawn(owner, live())

    def _ask_for_purge(self) -> None:
        self.known.purges += 1

    async def _open(self, owner: Participant, clock: HostClock) -> OpenQueue:
        connection = StoreConnection(self.storage, owner, clock, self.trouble.rates if self.stormy else None)
        connection.fate = lambda kind: self._meet(owner, kind)
        connection.mishap = self.mishap
        self.connections[owner] = connection
        rng = RandomSource(f"chance {self.seed_number} {self._next()}")
        store = HonestStore(connection, clock, rng, patience=45.0)
        store.broken = self.is_broken
        while True:
            with self.troubled():
                await store.learn_clock()
                return await open_queue(standalone_core(store, clock, rng), NAMES, QueueRecord(quarantine=QUARANTINE))

    def _spawn(self, owner: Participant, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work, context=owner.context())
        task.add_done_callback(lambda ended: self._over(owner, ended), context=self.owner.context())

    @contextmanager
    def troubled(self) -> Iterator[None]:
        """Let a user continue after a call failed because of the store or an unexpected exception."""
        try:
            yield
        except StoreError:
            return
        except Exception as error:
            if not is_mishap(error):
                raise

    # --- faults

    def mishap(self, place: str) -> None:
        if not self.stormy or not self.trouble.mishaps or self._mishaps.random() >= self.trouble.mishaps:
            return
        error = self._mishaps.choice([MemoryError(), OSError(5, "Input/output error"), ValueError("a fault")])
        error.is_mishap = True  # type: ignore[attr-defined]
        self._excuse(OWNER.get())
        self.storage.faults[f"exception at a {place}"] += 1
        self.note(OWNER.get().name, "exception", repr(error))
        raise error

    def _refuse(self) -> None:
        verbs = self.draw.choice([("get",), ("put", "delete"), ("list",), ("get", "put", "delete", "list")])
        area = self.draw.choice(["", NAMES.segments, NAMES.doorbell, NAMES.finished, DEAD.prefix])
        whom = self.draw.choice([None, *self.consumers])
        until = self.loop.now + self.draw.choice([1.0, 10.0, 60.0])
        self.storage.refusals.append(Refusal(verbs, area, whom, "403", until))
        self.note("storage", "refuses", f"{' '.join(verbs)} of {area or 'all'} until {until:.1f}")

    def _outage(self) -> None:
        self.storage.down_until = self._outage_ends()
        self.note("storage", "is down", f"until {self.storage.down_until:.1f}")

    def _write_outage(self) -> None:
        self.storage.unwritable[""] = until = self._outage_ends()
        self.note("storage", "takes no writes", f"until {until:.1f}")

    def _outage_ends(self) -> float:
        return self.loop.now + self.trouble.outage_length * self.draw.uniform(0.3, 1)

    def _meet(self, owner: Participant, kind: str) -> None:
        if not self.stormy or owner.mode != "up":
            return
        self.note(owner.name, "meets", kind)
        self._excuse(owner)
        if kind == "crash":
            self.loop.crash(owner)
        else:
            self.loop.freeze(owner)
            self._in(self.draw.choice([3.0, 8.0, 12.0, 40.0]), lambda: self.loop.wake(owner))

    def _excuse(self, owner: Participant) -> None:
        """Excuse the items of a consumer, which may come back as if they had killed it."""
        if (consumer := self.consumers.get(owner)) is not None:
            self.known.excused.update(*(self.known.content[held.name] for held in consumer.held.values()))

    def _over(self, owner: Participant, ended: asyncio.Task[None]) -> None:
        if not ended.cancelled() and (error := ended.exception()) is not None and owner.mode != "gone":
            self.is_broken(Broken("nobody fails", f"{owner} ended with {error!r}", owner.name))

    def _loop_error(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        # An attempt may fail after its caller was cancelled, when a queue is closed.
        if not isinstance(error, UnknownLease | StoreError | AttemptFailed | None) and not is_mishap(error):
            self.is_broken(Broken("nobody fails", f"{context.get('message')}: {error!r}"))


if __name__ == "__main__":
    sys.exit(main(QueueWorld))
