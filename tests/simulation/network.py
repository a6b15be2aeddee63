"""The storage of a simulation, and each participant's faulty connection to it.

A request takes time to the storage and back. Once it is sent, it lands whatever becomes of the sender. It may land
twice, or long after the sender gave up, at most `Storage.latest` seconds later.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from email.utils import formatdate
from functools import lru_cache, partial
from typing import Any, TypeVar

import msgspec

from fray_coordinator.store.buckets import ServerClock
from fray_coordinator.store.interface import (
    Applied,
    AttemptFailed,
    Expectation,
    Listed,
    NotApplied,
    NotModified,
    Object,
    Refused,
    Unknown,
    Version,
)
from fray_coordinator.store.memory import MemoryContents
from fray_layouts.object_keys import CLUSTER_KEY
from tests.simulation.clocks import HostClock
from tests.simulation.loop import Participant, SimLoop
from tests.simulation.weather import Rates
from tests.support.name_limit import LimitedMemory

T = TypeVar("T")

CLIENT_TIMEOUT = 20.0
Written = Callable[[str, Object | None, Object | None, Participant], None]
Answered = Callable[[], Any]
"""Lets a request land: what it returns or raises is the storage's answer."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A burst of refusals of these verbs, for names that begin with `area`, for one participant (None: for all)."""

    verbs: tuple[str, ...]
    area: str
    whom: Participant | None
    why: str
    until: float

    def befalls(self, verb: str, key: str, sender: Participant, now: float) -> bool:
        return now < self.until and verb in self.verbs and key.startswith(self.area) and self.whom in (None, sender)


class Storage:
    """The content, and its observers.

    Attributes:
        on_write: called at every change with the key, the object before and after, and the sender.
        strange: what is at the root instead of the contents for now: another cluster, or nothing. None: the contents.
        strange_since: when that began. on_strange_write: called at every change of it, also with the time of sending.
        down_until: end of an outage for everybody.
        unwritable: areas that can only be read, and until when; "" is all of them.
        refusals: bursts of refusals, some of which may be over.
        latest: most seconds after which a write lands that its sender gave up; the quarantine bounds it.
        found_absent: when a participant last found a name absent. listed: when it last began to list.
        operations, faults: counters; the faults by kind.
    """

    def __init__(self, loop: SimLoop, draw: random.Random, on_write: Written) -> None:
        self.loop = loop
        self.draw = draw
        self.owner = Participant("storage")
        self.contents = MemoryContents()
        self.clock = HostClock(loop)
        self.backend = self._own = LimitedMemory("memory://sim", self.contents, self.clock)
        self.on_write = on_write
        self.strange: MemoryContents | None = None
        self.strange_since = 0.0
        self.on_strange_write: Callable[[str, Participant, float], None] = lambda key, sender, sent: None
        self._written_elsewhere: dict[str, MemoryContents] = {}
        self.down_until = 0.0
        self.unwritable: dict[str, float] = {}
        self.refusals: list[Refusal] = []
        self.latest = 120.0
        self.found_absent: dict[tuple[Participant, str], float] = {}
        self.listed: dict[tuple[Participant, str], float] = {}
        self.operations = 0
        self.faults: Counter[str] = Counter()

    def turn_to(self, strange: MemoryContents | None) -> None:
        """Put something else in the place of the contents, or put these back."""
        self.strange, self.strange_since = strange, self.loop.now
        self.backend = self._own if strange is None else LimitedMemory(self._own.root, strange, self.clock)

    def went_with_another_root(self, key: str) -> bool:
        """Whether it was written in another root that is gone: to confirm the root afterwards does not show that."""
        return self._written_elsewhere.get(key, self.strange) is not self.strange

    def written_elsewhere(self, key: str) -> Object | None:
        """The object as it is, or was last, in the other root in which it was last written."""
        there = self._written_elsewhere.get(key)
        return None if there is None else there.objects.get(key)

    def was_written_elsewhere(self, key: str) -> bool:
        """Whether it was ever written in another root, where some may have read it before they confirmed the root."""
        return key in self._written_elsewhere

    def perform(self, key: str, act: Callable[[], Coroutine[Any, Any, T]], sender: Participant, sent: float) -> T:
        """Perform a request of that time now; raises `AttemptFailed` with the storage's answer."""
        self.operations += 1
        there = self.contents if self.strange is None else self.strange
        before = there.objects.get(key)
        answer = at_once(act())
        after = there.objects.get(key)
        if after is not before and there is self.contents:
            self.on_write(key, before, after, sender)
        elif after is not before:
            self._written_elsewhere[key] = there
            self.on_strange_write(key, sender, sent)
        return answer

    def heal(self) -> None:
        """End all outages, but remember them, because their effects may come later."""
        now = self.loop.now
        self.turn_to(None)
        self.down_until = min(self.down_until, now)
        self.unwritable = {area: min(until, now) for area, until in self.unwritable.items()}
        self.refusals = [replace(one, until=min(one.until, now)) for one in self.refusals]

    def is_writable(self, area: str) -> bool:
        """Whether writes to names that begin with `area` can succeed now."""
        return self.loop.now >= max(self.unwritable.get("", 0.0), self.unwritable.get(area, 0.0))

    def takes_nothing(self, area: str, sender: Participant, since: float) -> bool:
        """Whether a write of the sender below `area` failed at that time, or may have failed later."""
        refused = any(one.befalls("put", area, sender, since) for one in self.refusals)
        return refused or self.unwritable.get(area.rstrip("/"), 0.0) > since

    def refusal(self, verb: str, key: str, sender: Participant) -> str:
        """Why the request is refused now; "" if it is not."""
        now = self.loop.now
        return next((one.why for one in self.refusals if one.befalls(verb, key, sender, now)), "")

    def later(self, delay: float, act: Callable[..., object], *args: Any) -> None:
        self.loop.call_later(delay, act, *args, context=self.owner.context())


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("the memory store waited")


@lru_cache(maxsize=4)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)


class StoreConnection:
    """One participant's connection to the storage.

    Attributes:
        rates: its faults; None in a calm.
        cut_until: a partition between this participant and the storage lasts until then.
        mishap: may raise an exception at a request or its reply.
        fate: called with "crash" or "freeze" when that must happen to the sender now.
        newer: whether it writes a field that other versions do not know.
        sent: its requests, by verb class and area (the first part of their names).
        asked: when it last sent a request about a name.
    """

    scheme = "sim"
    local = False

    def __init__(
        self, storage: Storage, owner: Participant, clock: HostClock, rates: Rates | None, newer: bool = False
    ) -> None:
        self.root = self.address = storage.backend.root
        self.cut_until = 0.0
        self.newer = newer
        self.fate: Callable[[str], None] = lambda kind: None
        self.mishap: Callable[[str], None] = lambda place: None
        self.sent: Counter[tuple[str, str]] = Counter()
        self.asked: dict[str, float] = {}
        self._storage = storage
        self._owner = owner
        self._has_met_the_cluster = False
        self._told = ServerClock(clock)
        self._draw = random.Random(storage.draw.getrandbits(64))
        self.suffer(rates)

    def suffer(self, rates: Rates | None) -> None:
        """Give requests these faults from now on."""
        self.rates = rates
        self._table = rates.table() if rates else []

    @property
    def _backend(self) -> LimitedMemory:
        return self._storage.backend

    @property
    def _is_a_newcomer(self) -> bool:
        """Whether it knows only the other cluster that is at the root: people let it wait, instead of joining that."""
        return self._storage.strange is not None and not self._has_met_the_cluster

    # --- the verbs of a backend

    async def get(self, key: str) -> Object | None:
        found = await self._ask("get", key, lambda: self._backend.get(key))
        if found is None:
            self._storage.found_absent[self._owner, key] = self._storage.loop.now
        return found

    async def get_if_changed(self, key: str, version: Version | None) -> Object | NotModified | None:
        if version == "":  # some servers answer 500 to an empty condition
            return await self._ask("get", key, _fails)
        return await self._ask("get", key, lambda: self._backend.get_if_changed(key, version))

    async def put(self, key: str, data: bytes, expect: Expectation) -> Applied:
        body = self._from_the_future(data) if self.newer and key.startswith(("jobs/", "agents/")) else data
        return await self._ask("put", key, lambda: self._backend.put(key, body, expect), True)

    async def delete(self, key: str, expect: Expectation) -> None:
        await self._ask("delete", key, lambda: self._backend.delete(key, expect), True)

    async def withdraw(self, key: str, expect: Version, aside: str) -> None:
        await self._ask("delete", key, lambda: self._backend.withdraw(key, expect, aside), True)

    async def list(self, prefix: str, after: str | None, limit: int | None, versions: bool) -> list[Listed]:
        self._storage.listed[self._owner, prefix] = self._storage.loop.now
        return await self._ask("list", prefix, lambda: self._backend.list(prefix, after, limit, versions))

    def server_offset(self) -> float | None:
        return self._told.offset()

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""

    # --- a request's journey

    async def _ask(self, verb: str, key: str, act: Callable[[], Coroutine[Any, Any, T]], writes: bool = False) -> T:
        storage, draw = self._storage, self._draw.random
        answer: asyncio.Future[tuple[T, float]] = storage.loop.create_future()
        area = key.partition("/")[0]
        self.sent[verb, area] += 1
        self.asked[key] = storage.loop.now
        sent = self._told.wall()
        act = partial(self._opens, act) if key == CLUSTER_KEY and not self._has_met_the_cluster else act
        out, back = 0.002 + 0.05 * draw() * draw(), 0.002 + 0.05 * draw() * draw()
        land = partial(storage.perform, key, act, self._owner, storage.loop.now)
        if storage.loop.now < max(storage.down_until, self.cut_until) or self._is_a_newcomer:
            self._unreachable(land, answer, writes)
        elif why := storage.refusal(verb, key, self._owner):
            storage.faults[f"refused: {why}"] += 1
            storage.later(out + back, _fail, answer, Refused(why))
        elif writes and not storage.is_writable(area):
            storage.faults["unwritable"] += 1
            self._draw.choice([self._fail_before, self._too_many])(land, answer, out, back, writes)
        else:
            fault = self._fault()
            if self.rates and (writes or self._draw.random() < 0.2):
                self._meet_fate(self.rates, out, back)
            if fault is None:
                storage.later(out, self._land, land, answer, back)
            else:
                storage.faults[fault] += 1
                getattr(self, f"_{fault}")(land, answer, out, back, writes)
        about = " about a job" if area in ("jobs", "work", "blobs") else ""
        self.mishap(f"request{about}")
        result, told = await answer
        self.mishap(f"reply{about}")
        self._told.learn(_date(int(told)), sent)
        return result

    async def _opens(self, act: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._is_a_newcomer:
            raise NotApplied("another cluster has just come to the root, which nobody joins")
        self._has_met_the_cluster = True
        return await act()

    def _fault(self) -> str | None:
        drawn = self._draw.random()
        for bound, name in self._table:
            if drawn < bound:
                return name
        return None

    def _meet_fate(self, rates: Rates, out: float, back: float) -> None:
        """Crash or freeze the sender: before its request lands, before it gets the reply, or just afterwards."""
        drawn = self._draw.random()
        if drawn < rates.crash + rates.freeze:
            moment = self._draw.choice([out * 0.5, out + back * 0.5, out + back + 1e-6, out + back + 0.02])
            self._storage.later(moment, self.fate, "crash" if drawn < rates.crash else "freeze")

    def _land(self, land: Answered, answer: Any, back: float) -> None:
        """Perform the request and answer it."""
        try:
            result = land()
        except AttemptFailed as failed:
            self._storage.later(back, _fail, answer, failed)
        else:
            self._storage.later(back, _tell, answer, (result, self._storage.clock.wall()))

    def _silently(self, land: Answered) -> None:
        """Perform the request without an answer."""
        try:
            land()
        except AttemptFailed:
            return

    def _late(self, land: Answered, after: float, writes: bool) -> None:
        if writes:
            self._storage.later(after + self._how_late(), self._silently, land)

    def _how_late(self) -> float:
        """A delay that is mostly short, but now and then as long as possible."""
        latest, draw = self._storage.latest, self._draw
        return draw.uniform(0, latest) if draw.random() < 0.3 else min(latest, draw.expovariate(1 / 15))

    def _unreachable(self, land: Answered, answer: Any, writes: bool) -> None:
        """Refuse the request at once, or let it time out; a few of these land when the connection is back."""
        self._storage.faults["unreachable"] += 1
        wait = self._draw.choice([0.01, 0.5, 5.0, CLIENT_TIMEOUT])
        self._storage.later(wait, _fail, answer, Unknown("no connection to the storage"))
        if wait == CLIENT_TIMEOUT and self._draw.random() < 0.2:
            self._late(land, wait, writes)

    def _fail_before(self, land: Answered, answer: Any, out: float, back: float, writes: bool) -> None:
        self._storage.later(out + back, _fail, answer, Unknown("503, not applied"))

    def _applied_then_error(self, land: Answered, answer: Any, out: float, back: float, writes: bool) -> None:
        self._storage.later(out, self._silently, land)
        self._storage.later(out + back, _fail, answer, Unknown("503, applied"))

    def _applied_then_dropped(self, land: Answered, answer: Any, out: float, back: float, writes: bool) -> None:
        self._storage.later(out, self._silently, land)
        wait = self._draw.choice([0.0, 1.0, CLIENT_TIMEOUT])
        self._storage.later(out + back + wait, _fail, answer, Unknown("the connection broke"))

    def _applied_late(self, land: Answered, answer: Any, out: float, back: float, writes: bool) -> None:
        wait = out + back + self._draw.choice([0.0, 1.0, CLIENT_TIMEOUT])
        self._storage.later(wait, _fail, answer, Unknown("504"))
        self._late(land, wait, writes)

    def _twice(self, land: Answered, answer: Any, out: float, back: float, writes: bool) -> None:
        """Perform the request twice; the sender gets the first or the second answer."""
        again = out + (self._how_late() if self._draw.random() < 0.3 else self._draw.uniform(0, 0.2))
        hears_first = self._draw.random() < 0.5 or again > CLIENT_TIMEOUT
        if hears_first:
            self._storage.later(out, self._land, land, answer, back)
            if writes:
                self._storage.later(again, self._silently, land)
        else:
            self._storage.later(out, self._silently, land)
            self._storage.later(again, self._land, land, answer, back)

    def _conflict(self, land: Answered, answer: Any, out: float, back: float, writes: bool) -> None:
        self._storage.later(out + back, _fail, answer, NotApplied("409"))

    def _too_many(self, land: Answered, answer: Any, out: float, back: float, writes: bool) -> None:
        self._storage.later(out + back, _fail, answer, NotApplied("429", after=self._draw.uniform(0.1, 2.0)))

    def _slow(self, land: Answered, answer: Any, out: float, back: float, writes: bool) -> None:
        """Answer late: some answers come after the sender gave up."""
        delay = min(0.2 * self._draw.paretovariate(0.9), self._storage.latest)
        self._storage.later(delay, self._land, land, answer, back)
        self._storage.later(CLIENT_TIMEOUT, _fail, answer, Unknown("no answer in time"))

    def _from_the_future(self, data: bytes) -> bytes:
        raw = msgspec.json.decode(data)
        raw.setdefault("since_v2", {"seen_by": self._owner.name})
        return msgspec.json.encode(raw)


async def _fails() -> Any:
    raise Unknown("500")


def _tell(answer: asyncio.Future[Any], result: Any) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
