"""The counts and costs of requests, and the parts of the bucket stores that need no server."""

from __future__ import annotations

import random
from email.utils import formatdate

import pytest

from fray_coordinator.clock import RandomSource
from fray_coordinator.errors import StoreUnavailable
from fray_coordinator.store.buckets import ServerClock, classify_status
from fray_coordinator.store.interface import ABSENT, ANY, NotApplied, PreconditionFailed, Refused, Unknown
from fray_coordinator.store.memory import MemoryBackend, MemoryContents
from fray_coordinator.store.metering import GCS_PRICES, S3_PRICES, RequestCounts
from fray_coordinator.store.store import Store
from tests.support.name_limit import LimitedMemory, NameLimit
from tests.unit.test_store_outcomes import FakeClock


async def test_each_verb_has_its_price() -> None:
    clock = FakeClock()
    store = Store(MemoryBackend("memory://m", MemoryContents(), clock), clock, RandomSource(1))

    await store.put("a", b"", ABSENT)
    await store.put("a", b"other", ABSENT)
    found = await store.get("a")
    assert found is not None
    await store.get_if_changed("a", found.version)
    await store.list("")
    await store.delete("a", found.version)
    await store.withdraw("a", found.version, "aside")
    assert store.usage == RequestCounts(writes=2, lists=1, reads=3, deletes=2)


def test_prices_are_the_list_prices() -> None:
    usage = RequestCounts(writes=1500, lists=500, reads=10_000, deletes=1_000_000)
    assert usage.cost(GCS_PRICES) == usage.cost(S3_PRICES) == pytest.approx(2 * 0.005 + 10 * 0.0004)


def test_usage_adds_up() -> None:
    assert RequestCounts(4, 3, 2, 1) - RequestCounts(1, 1, 1, 1) == RequestCounts(3, 2, 1, 0)
    assert RequestCounts(4, 3, 2, 1) + RequestCounts(1, 1, 1, 1) == RequestCounts(5, 4, 3, 2)
    usage = RequestCounts(1)
    before = usage.snapshot()
    usage.writes += 1
    assert usage - before == RequestCounts(1)


async def test_a_long_listing_is_several_requests() -> None:
    clock = FakeClock()
    store = Store(MemoryBackend("memory://m", MemoryContents(), clock), clock, RandomSource(1))

    for number in range(2001):
        await store.put(f"{number:04}", b"", ABSENT)
    await store.list("", limit=1000)
    assert store.usage.lists == 1
    await store.list("")
    assert store.usage.lists == 4


def test_a_name_is_written_three_times_and_then_once_a_second() -> None:
    clock = FakeClock()
    limit = NameLimit(clock)
    for _ in range(3):
        limit.spend("hot")
    with pytest.raises(NotApplied) as refused:
        limit.spend("hot")
    assert refused.value.after == pytest.approx(1)
    limit.spend("another")
    clock.time += 1
    limit.spend("hot")
    with pytest.raises(NotApplied):
        limit.spend("hot")
    clock.time += 60
    for _ in range(3):
        limit.spend("hot")
    with pytest.raises(NotApplied):
        limit.spend("hot")


async def test_a_hot_name_slows_its_writers_down() -> None:
    clock = FakeClock()
    backend = LimitedMemory("memory://m", MemoryContents(), clock)
    store = Store(backend, clock, RandomSource(1))

    started = clock.time
    for number in range(13):
        await store.put("hot", b"%d" % number, ANY)
    assert clock.time - started == pytest.approx(10, abs=2)
    assert store.usage.writes > 13, "what was refused is counted too"
    impatient = Store(backend, clock, RandomSource(1), patience=0.5)
    with pytest.raises(StoreUnavailable, match="faster than once a second"):
        await impatient.put("hot", b"once more", ANY)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, Refused), (401, Refused), (403, Refused), (405, Refused), (408, Unknown), (409, NotApplied),
        (412, PreconditionFailed), (429, NotApplied), (500, Unknown), (502, Unknown), (503, Unknown), (504, Unknown),
    ],
)  # fmt: skip
def test_statuses(status: int, kind: type[Exception]) -> None:
    error = classify_status(status, "some\n  words", "to do it", "7")
    assert type(error) is kind
    assert f"HTTP {status}: some words" in str(error)
    if isinstance(error, NotApplied):
        assert error.after == 7
    if status == 403:
        assert "need the right to do it" in str(error)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (307, "TemporaryRedirect", NotApplied),
        (400, "RequestTimeout", Unknown),
        (400, "IncompleteBody", Unknown),
        (400, "BadDigest", Unknown),
        (400, "SlowDown", NotApplied),
        (403, "SlowDown", NotApplied),
        (403, '"reason": "quotaExceeded"', NotApplied),
        (403, '"reason": "userRateLimitExceeded"', NotApplied),
        (409, "OperationAborted", NotApplied),
        (503, "SlowDown", Unknown),
        (301, "PermanentRedirect", Refused),
        (501, "NotImplemented", Refused),
    ],
)
def test_codes_that_say_more_than_their_status(status: int, code: str, kind: type[Exception]) -> None:
    assert type(classify_status(status, f"{code} and words", "to do it")) is kind


@pytest.mark.parametrize(
    ("status", "code", "may_pass"),
    [
        (400, "ExpiredToken", True),
        (400, "TokenRefreshRequired", True),
        (401, "Unauthorized", True),
        (403, "RequestTimeTooSkewed", True),
        (403, "ExpiredToken", True),
        (400, "InvalidRequest", False),
        (403, "AccessDenied", False),
        (403, "SignatureDoesNotMatch", False),
    ],
)
def test_refusals_that_pass_by_themselves_are_asked_again(status: int, code: str, may_pass: bool) -> None:
    refused = classify_status(status, f"{code} and words", "to do it")
    assert isinstance(refused, Refused)
    assert refused.may_pass == may_pass


@pytest.mark.parametrize("after", ["1e99", "-1", "soon", "\u0663", "99999999999999999999"])
def test_no_server_makes_anybody_wait_for_long(after: str) -> None:
    refused = classify_status(429, "words", "to do it", after)
    assert isinstance(refused, NotApplied)
    assert (refused.after or 0) <= 60


def test_the_server_clock_is_learnt_more_exactly_with_every_answer() -> None:
    clock = FakeClock()
    clock.time = 0.0
    server = ServerClock(clock)
    assert server.offset() is None
    for nothing in (None, "", "soon", "Sun, 99 Nov 99999 99:99:99 GMT"):
        server.learn(nothing, clock.wall())
    assert server.offset() is None
    errors = []
    for _ in range(40):
        clock.time += 0.37
        sent = clock.wall()
        clock.time += 0.05
        told = int(sent + 0.02 + 123.4)
        server.learn(_date(told), sent)
        errors.append(abs((server.offset() or 0) - 123.4))
    assert errors[0] < 0.55
    assert errors[-1] < 0.05


def test_a_clock_that_was_set_is_learnt_anew() -> None:
    clock = FakeClock()
    server = ServerClock(clock)
    server.learn(_date(int(clock.wall())), clock.wall())
    clock.time += 3600
    for _ in range(2):
        server.learn(_date(int(clock.wall()) - 3600), clock.wall())
    assert server.offset() == pytest.approx(-3600, abs=1)


def test_answers_of_a_server_whose_clock_is_wrong_by_an_hour_change_nothing() -> None:
    clock = FakeClock()
    server, draw = ServerClock(clock), random.Random(0)
    for _ in range(1000):
        server.learn(_date(int(clock.wall()) + draw.choice([-3600, 0, 0, 0, 3600])), clock.wall())
        clock.time += 0.3
        if len(server._last) > 10:
            assert server.offset() == pytest.approx(0, abs=1)


def _date(seconds: int) -> str:
    return formatdate(seconds, usegmt=True)
