"""The results of `Store.put` and the other verbs for every sequence of answers from a scripted backend."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fray_coordinator.clock import RandomSource
from fray_coordinator.errors import StoreRefused, StoreUnavailable
from fray_coordinator.store.interface import (
    ABSENT,
    ANY,
    Applied,
    Expectation,
    Listed,
    NameAbsent,
    NotApplied,
    Object,
    Outcome,
    PreconditionFailed,
    Refused,
    Rejected,
    Superseded,
    Unknown,
)
from fray_coordinator.store.memory import MemoryBackend, MemoryContents
from fray_coordinator.store.metering import FAILURE_MEMORY_SECONDS, RequestCounts
from fray_coordinator.store.store import FIRST_RETRY_WAIT, MAX_RETRY_WAIT, REFUSED_PATIENCE, Store
from tests.support.waiting import eventually

LOST = Unknown("no answer")
FULL = PreconditionFailed("412")
BUSY = NotApplied("429", after=3)


class FakeClock:
    """Time passes only in sleeps, which are recorded."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.sleeps: list[float] = []

    def boottime(self) -> float:
        return self.time

    def wall(self) -> float:
        return self.time + 1e9

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.time += seconds


class Script(MemoryBackend):
    """Gives these answers call by call; raises those that are exceptions."""

    def __init__(self, *answers: object, offset: float | None = 0.0) -> None:
        super().__init__("memory://script", MemoryContents(), FakeClock())
        self.answers = list(answers)
        self.calls: list[str] = []
        self.offset = offset

    def _next(self, verb: str) -> Any:
        self.calls.append(verb)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def get(self, key: str) -> Object | None:
        found: Object | None = self._next("get")
        return found

    async def get_if_changed(self, key: str, version: str | None) -> Object | None:
        return await self.get(key)

    async def put(self, key: str, data: bytes, expect: Expectation) -> Applied:
        written: Applied = self._next("put")
        return written

    async def delete(self, key: str, expect: Expectation) -> None:
        self._next("delete")

    async def list(self, prefix: str, after: str | None, limit: int | None, versions: bool) -> list[Listed]:
        rows: list[Listed] = self._next("list")
        return rows

    def server_offset(self) -> float | None:
        return self.offset


def record(op: str, recent_ops: tuple[str, ...] = (), created_op: str = "first") -> bytes:
    return json.dumps({"op": op, "recent_ops": recent_ops, "created_op": created_op}).encode()


def at(version: str, data: bytes) -> Object:
    return Object(data, version, 5.0)


OURS = record("ours", ("before",))
MINE = at("v2", record("ours", ("before",), "first") + b" ")
AFTER = at("v3", record("other", ("before", "ours")))
BEFORE = at("v1", record("before"))
OTHER = at("v2", record("other", ("before",)))
CREATED = at("v9", record("other", (), "ours"))
FOREIGN = at("v2", b"\xff not JSON")
LIST = at("v2", b"[1, 2]")
ODD = at("v2", b'{"op": 7, "recent_ops": null}')


def put(expect: Expectation, op: str | None = "ours", data: bytes = OURS) -> Callable[[Store], Awaitable[Outcome]]:
    return lambda store: store.put("key", data, expect, op)


def outcome_of(backend: Script, act: Callable[[Store], Awaitable[Any]], clock: FakeClock | None = None) -> Any:
    result = asyncio.run(_await(act(Store(backend, clock or FakeClock(), RandomSource(1), patience=60))))
    assert not backend.answers, "every answer is used"
    return result


async def _await(work: Awaitable[Any]) -> Any:
    return await work


@pytest.mark.parametrize(
    ("expect", "answers", "expected"),
    [
        ("v1", [Applied("v2", 1.0)], Applied("v2", 1.0)),
        # Only the object under the name decides, whatever caused the doubt.
        ("v1", [LOST, MINE], Applied("v2", 5.0)),
        ("v1", [FULL, MINE], Applied("v2", 5.0)),
        ("v1", [LOST, AFTER], Superseded(AFTER)),
        ("v1", [FULL, AFTER], Superseded(AFTER)),
        ("v1", [LOST, CREATED], Superseded(CREATED)),
        ("v1", [LOST, OTHER], Rejected(OTHER)),
        ("v1", [FULL, OTHER], Rejected(OTHER)),
        ("v1", [FULL, None], Rejected(None)),
        ("v1", [FULL, FOREIGN], Rejected(FOREIGN)),
        ("v1", [FULL, LIST], Rejected(LIST)),
        ("v1", [FULL, ODD], Rejected(ODD)),
        # The expectation still holds: the same bytes go again, and a late first attempt then changes nothing.
        ("v1", [LOST, BEFORE, Applied("v2")], Applied("v2")),
        ("v1", [LOST, BEFORE, FULL, MINE], Applied("v2", 5.0)),
        ("v1", [LOST, BEFORE, LOST, AFTER], Superseded(AFTER)),
        ("v1", [FULL, BEFORE, BEFORE, Applied("v2")], Applied("v2")),
        (ABSENT, [LOST, None, Applied("v1")], Applied("v1")),
        (ABSENT, [FULL, None, None, Applied("v1")], Applied("v1")),
        (ABSENT, [FULL, OTHER], Rejected(OTHER)),
        (ABSENT, [FULL, CREATED], Superseded(CREATED)),
        (ANY, [LOST, OTHER, Applied("v3")], Applied("v3")),
        (ANY, [LOST, AFTER], Superseded(AFTER)),
        # Certainly not applied: nothing to read back, unless an earlier attempt is in doubt.
        ("v1", [BUSY, Applied("v2")], Applied("v2")),
        ("v1", [LOST, BEFORE, BUSY, AFTER], Superseded(AFTER)),
        # The reading back fails too.
        ("v1", [LOST, LOST, BUSY, MINE], Applied("v2", 5.0)),
        ("v1", [FULL, LOST, AFTER], Superseded(AFTER)),
    ],
)
def test_outcome_of_a_record(expect: Expectation, answers: list[object], expected: Outcome) -> None:
    assert outcome_of(Script(*answers), put(expect)) == expected


@pytest.mark.parametrize(
    ("expect", "answers", "expected"),
    [
        (ABSENT, [FULL, at("v1", b"data")], Applied("v1", 5.0)),
        (ABSENT, [LOST, at("v1", b"data")], Applied("v1", 5.0)),
        (ABSENT, [LOST, at("v1", b"other")], Rejected(at("v1", b"other"))),
        (ABSENT, [LOST, None, Applied("v1")], Applied("v1")),
        (ANY, [LOST, Applied("v1")], Applied("v1")),
    ],
)
def test_outcome_of_an_immutable_object(expect: Expectation, answers: list[object], expected: Outcome) -> None:
    assert outcome_of(Script(*answers), put(expect, op=None, data=b"data")) == expected


def test_a_change_without_an_op_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="needs an op"):
        outcome_of(Script(), put("v1", op=None))


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([None], NameAbsent()),
        ([LOST, None], NameAbsent()),
        ([FULL, None], NameAbsent()),
        ([FULL, OTHER], Rejected(OTHER)),
        ([LOST, FULL, OTHER], Rejected(OTHER)),
        ([FULL, BEFORE, None], NameAbsent()),
        ([BUSY, LOST, None], NameAbsent()),
    ],
)
def test_outcome_of_a_delete(answers: list[object], expected: object) -> None:
    assert outcome_of(Script(*answers), lambda store: store.delete("key", "v1")) == expected


@pytest.mark.parametrize("answers", [[Applied("v1")], [LOST, at("v1", OURS)]])
def test_a_write_after_which_the_version_is_the_old_one_is_never_taken_for_applied(answers: list[object]) -> None:
    backend = Script(*answers, *[at("v1", OURS)] * 30)
    with pytest.raises(StoreUnavailable, match="the object was changed and its version was not"):
        outcome_of(backend, put("v1"))
    assert backend.calls[:6].count("put") == 1, "it is not sent again while others may write"


@pytest.mark.parametrize(
    ("keys", "is_right"),
    [
        (["a", "b", "c"], True),
        (["a-b", "a/b", "a0"], True),
        (["a/b", "a-b", "a0"], True),
        ([], True),
        (["b", "a"], False),
        (["a", "a"], False),
        (["a/b", "c", "a/c"], False),
    ],
)
def test_a_listing_without_order_is_no_answer(keys: list[str], is_right: bool) -> None:
    rows, others = [Listed(key) for key in keys], [Listed("in"), Listed("order")]
    backend = Script(rows, others)
    backend.local = False
    assert asyncio.run(_await(Store(backend, FakeClock(), RandomSource(1)).list(""))) == (rows if is_right else others)


def test_patience_ends_in_unavailable_and_says_why() -> None:
    backend, clock = Script(*[LOST, BEFORE] * 50), FakeClock()
    with pytest.raises(StoreUnavailable, match=r"put memory://script/key: no success within 60 s.*no answer"):
        outcome_of(backend, put("v1"), clock)
    assert 60 - 1.5 * MAX_RETRY_WAIT < sum(clock.sleeps) <= 60
    assert backend.calls[:5] == ["put", "get", "put", "get", "put"]


def test_reads_are_patient_too() -> None:
    assert outcome_of(Script(LOST, BUSY, BEFORE), lambda store: store.get("key")) == BEFORE
    with pytest.raises(StoreUnavailable):
        outcome_of(Script(*[LOST] * 50), lambda store: store.get("key"))


def test_waits_grow_vary_and_respect_the_server() -> None:
    clock = FakeClock()
    outcome_of(Script(LOST, LOST, LOST, LOST, BEFORE), lambda store: store.get("key"), clock)
    assert [
        FIRST_RETRY_WAIT * 2**n * 0.5 <= wait <= FIRST_RETRY_WAIT * 2**n for n, wait in enumerate(clock.sleeps)
    ] == [True] * 4
    assert len({wait / 2**n for n, wait in enumerate(clock.sleeps)}) == 4
    polite = FakeClock()
    outcome_of(Script(BUSY, BEFORE), lambda store: store.get("key"), polite)
    assert polite.sleeps[0] > 3


def test_equal_seeds_wait_equally() -> None:
    one, two = FakeClock(), FakeClock()
    for clock in (one, two):
        outcome_of(Script(LOST, LOST, BEFORE), lambda store: store.get("key"), clock)
    assert one.sleeps == two.sleeps


def test_a_refusal_is_final_and_names_root_verb_and_reason() -> None:
    backend = Script(Refused("HTTP 403; the credentials need the right to write"))
    with pytest.raises(StoreRefused, match=r"put memory://script/key: HTTP 403.*right to write"):
        outcome_of(backend, put("v1"))


def test_a_refusal_that_may_pass_is_asked_again_for_a_few_seconds() -> None:
    stale = Refused("HTTP 401: the token is old", may_pass=True)
    assert outcome_of(Script(stale, stale, BEFORE), lambda store: store.get("key")) == BEFORE
    clock = FakeClock()
    with pytest.raises(StoreRefused, match="the token is old"):
        asyncio.run(_await(Store(Script(*[stale] * 50), clock, RandomSource(1)).get("key")))
    assert 1 < sum(clock.sleeps) <= REFUSED_PATIENCE


@pytest.mark.parametrize("expect", [ABSENT, ANY, "v1"])
def test_a_refusal_says_nothing_of_an_attempt_whose_answer_was_lost(expect: Expectation) -> None:
    refused = Refused("HTTP 403: no")
    with pytest.raises(StoreUnavailable, match="HTTP 403: no"):
        asyncio.run(_await(put(expect)(Store(Script(LOST, *[refused] * 50), FakeClock(), RandomSource(1)))))
    with pytest.raises(StoreRefused):
        asyncio.run(_await(put(expect)(Store(Script(refused), FakeClock(), RandomSource(1)))))


async def test_a_failing_request_is_reported_until_it_works_or_nobody_asks_any_more() -> None:
    clock, refused = FakeClock(), Refused("HTTP 403: no")
    store = Store(Script(refused, BEFORE, refused, BUSY, LOST), clock, RandomSource(1))

    for key in ("jobs/a.json", "jobs/b.json", "pools/default/doorbell"):
        try:
            await store.get(key)
        except StoreRefused:
            assert store.failing.now() == {f"get {key.partition('/')[0]}": f"get memory://script/{key}: {refused}"}
        else:
            assert store.failing.now() == {}
    for answer in ("429", "no answer"):
        with pytest.raises(StoreUnavailable, match=answer):
            await store.get_if_changed("pools/default/doorbell", None, patience=0.0)
    assert list(store.failing.now()) == ["get pools"]
    clock.time += FAILURE_MEMORY_SECONDS + 1
    assert store.failing.now() == {}


async def test_an_outage_is_said_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    backend = Script(*[LOST] * 100)
    store = Store(backend, FakeClock(), RandomSource(1), patience=20.0)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await store.get("key")
    backend.answers = [Applied("v2"), BEFORE, BEFORE]
    await store.put("key", OURS, ABSENT, "ours")
    (said,) = caplog.messages
    answer = "the last answer was: no answer"
    assert re.fullmatch(rf"get memory://script/key: no success for [3-6] s, {answer}; it is tried for 20 s", said)
    for _ in range(2):
        await store.get("key")
    (_, over) = caplog.messages
    assert re.fullmatch(r"memory://script: reachable again after \d\d s", over)


class Hung(Script):
    """Storage in a network, which answers no read until it is released."""

    local = False

    def __init__(self) -> None:
        super().__init__()
        self.released = asyncio.Event()

    async def get(self, key: str) -> Object | None:
        await self.released.wait()
        return BEFORE

    async def list(self, prefix: str, after: str | None, limit: int | None, versions: bool) -> list[Listed]:
        await self.released.wait()
        return []


async def test_a_record_for_which_no_answer_comes_at_all_is_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fray_coordinator.store.store.LATE_SECONDS", 0.01)
    backend = Hung()
    store = Store(backend, FakeClock(), RandomSource(1))
    long_answers = [asyncio.create_task(store.get("results/large")), asyncio.create_task(store.list("jobs/"))]
    await asyncio.sleep(0.1)  # what must not be said has the time to be said
    assert caplog.messages == []
    reading = asyncio.create_task(store.get("cluster.json"))
    await eventually(lambda: caplog.messages)
    backend.released.set()
    await asyncio.gather(reading, *long_answers)
    assert caplog.messages == [
        "get memory://script/cluster.json: no success for 0 s, there was no answer; it is tried for 60 s",
        "memory://script: reachable again after 0 s",
    ]


async def test_one_object_that_fails_while_others_are_answered_is_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    class OneFails(Script):
        async def get(self, key: str) -> Object | None:
            if key == "bad":
                raise LOST
            return BEFORE

    class Clock(FakeClock):
        async def sleep(self, seconds: float) -> None:
            await super().sleep(seconds)
            await store.get("good")

    store = Store(OneFails(), Clock(), RandomSource(1))
    with pytest.raises(StoreUnavailable):
        await store.get("bad")
    assert caplog.messages == []


async def test_every_attempt_is_counted() -> None:
    backend = Script(LOST, BEFORE, BUSY, FULL)
    store = Store(backend, FakeClock(), RandomSource(1))
    backend.answers = [LOST, BEFORE, BUSY, BEFORE, Applied("v2"), None, LOST, None]

    await store.put("key", OURS, "v1", "ours")
    before = store.usage.snapshot()
    await store.get("key")
    await store.delete("key")
    assert store.usage - before == RequestCounts(reads=1, deletes=2)
    assert store.usage == RequestCounts(writes=3, reads=3, deletes=2)


def test_the_clock_of_the_storage() -> None:
    clock = FakeClock()
    assert Store(Script(offset=-120.0), clock, RandomSource(1)).now() == clock.wall() - 120
    unknown = Store(Script(offset=None), clock, RandomSource(1))
    with pytest.raises(RuntimeError, match="learn_clock"):
        unknown.now()


def test_learning_the_clock_costs_one_read_once() -> None:
    backend = Script(None, offset=None)
    outcome_of(backend, lambda store: store.learn_clock())
    assert backend.calls == ["get"]
    known = Script(offset=1.0)
    outcome_of(known, lambda store: store.learn_clock())
    assert known.calls == []
