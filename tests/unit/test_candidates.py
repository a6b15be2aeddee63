"""Which entry of a long, shared index an agent tries next."""

from __future__ import annotations

from collections import Counter
from unittest import mock

from hypothesis import given, strategies as st

from fray_agents.agent.candidates import STALE, Candidates
from fray_coordinator.protocol.scheduling import HostKind, listing_start
from fray_layouts.bounds import MAX_SAFE_INTEGER, MAX_TIME
from fray_layouts.index_keys import PendingKey, Shape
from fray_layouts.records import Resources

GIB = 2**30
SMALL = Shape(1000, GIB, GIB, "", 0, False)
LARGE = Shape(8000, GIB, GIB, "", 0, False)
HOST = Resources(cpu=4000, memory=8 * GIB, disk=8 * GIB)
NOW = 1_800_000_000.0


def entries(*priorities: int, shape: Shape = SMALL, begin: int = 0) -> list[str]:
    """Keys in list order."""
    return sorted(
        PendingKey("p", p, NOW + begin + n, f"j-{begin + n}", 1, shape).key() for n, p in enumerate(priorities)
    )


def candidates(keys: list[str]) -> Candidates:
    made = Candidates(HostKind(), Resources(cpu=9000, memory=8 * GIB, disk=8 * GIB))
    made.replace(keys)
    return made


def tried(known: Candidates, width: int = 1, draw: float = 0.0, free: Resources = HOST, now: float = NOW) -> list[str]:
    """All entries in the order in which they are tried."""
    order = []
    while (entry := known.next(free, now, width, draw)) is not None:
        order.append(entry.key())
    return order


@given(
    st.lists(st.integers(-2, 2), max_size=12),
    st.integers(0, 20),
    st.floats(0, 1, exclude_max=True, allow_nan=False),
)
def test_every_entry_is_tried_once_and_the_head_is_among_the_first_slots(
    priorities: list[int], width: int, draw: float
) -> None:
    listed = entries(*priorities)
    order = tried(candidates(listed), width, draw)
    assert Counter(order) == Counter(listed)
    levels = [entry.priority for key in order if (entry := PendingKey.parse(key))]
    assert levels == sorted(levels, reverse=True)
    if order:
        assert order[0] in listed[: max(width, 1)]


def test_claimers_spread_over_the_slots_of_the_head_and_no_further() -> None:
    listed = entries(5, 5, 5, 0, 0)
    firsts = {tried(candidates(listed), 10, draw / 30)[0] for draw in range(30)}
    assert firsts == set(listed[:3])
    assert {tried(candidates(listed), 1, draw / 30)[0] for draw in range(30)} == {listed[0]}


def test_an_entry_that_does_not_fit_hides_nothing_and_comes_first_once_it_fits() -> None:
    large, small = entries(0, 0, shape=LARGE), entries(0, 0, begin=2)
    known = candidates(large + small)
    assert tried(known) == small
    known.replace(large + small)
    assert tried(known, free=Resources(cpu=9000, memory=8 * GIB, disk=8 * GIB)) == large + small


def test_entries_before_a_stale_one_are_tried_last() -> None:
    listed = entries(0, 0, 0, 0, 0)
    known = candidates(listed)
    stale = known.next(HOST, NOW, 5, 0.5)
    assert stale is not None
    assert stale.key() == listed[2]
    known.put_off(stale, STALE)
    assert tried(known) == [*listed[3:], *listed[:2]]


def test_entries_of_other_shapes_come_first_after_the_last_entry_of_a_shape_is_stale() -> None:
    listed, wide = entries(0, 0, 0), entries(0, begin=3, shape=Shape(2000, GIB, GIB, "", 0, False))
    known = candidates(listed + wide)
    stale = known.next(HOST, NOW, 3, 0.9)
    assert stale is not None
    assert stale.key() == listed[2]
    known.put_off(stale, STALE)
    assert tried(known) == [*wide, *listed[:2]]


def test_a_stale_entry_stays_out_of_the_next_listing_until_everything_is_tried_again() -> None:
    listed = entries(0, 0)
    known = candidates(listed)
    first = known.next(HOST, NOW, 1, 0.0)
    assert first is not None
    known.put_off(first, STALE)
    known.replace(listed)
    assert tried(known) == listed[1:]
    known.forget_put_off()
    known.replace(listed)
    assert tried(known) == listed


def test_an_entry_that_is_too_early_comes_when_its_time_has_come_and_only_once() -> None:
    listed = entries(0, 0)
    known = candidates(listed)
    first = known.next(HOST, NOW, 1, 0.0)
    assert first is not None
    known.put_off(first, NOW + 10.0)
    assert tried(known, now=NOW + 9.0) == listed[1:]
    known.replace(listed[:1])
    assert tried(known, now=NOW + 9.0) == []
    assert tried(known, now=NOW + 11.0) == listed[:1]
    assert tried(known, now=NOW + 12.0) == []


def test_keys_that_are_no_entries_are_skipped() -> None:
    listed = entries(0)
    assert tried(candidates(["pending/p/what is this", "pending/p/000~1~c1m1d1", *listed])) == listed


def test_a_try_reads_one_name_however_long_the_index_is() -> None:
    listed = entries(*[0] * 5000)
    with mock.patch.object(PendingKey, "parse", side_effect=PendingKey.parse) as parse:
        known = candidates(listed)
        for _ in range(10):
            assert known.next(HOST, NOW, 5000, 0.5) is not None
    assert parse.call_count == 11  # one request for the shape


def test_claimers_of_a_large_pool_begin_all_over_its_slots() -> None:
    listed = entries(*[0] * 1000)
    assert listing_start(listed[0], listed[-1], 1000, 10_000, 0.05) is None, "the head shows these"
    behind = listing_start(listed[0], listed[-1], 1000, 10_000, 0.5)
    assert behind is not None
    all_there_are = entries(*[0] * 10_000)
    assert abs(sum(key <= behind for key in all_there_are) - 5000) < 50


def test_a_pool_with_few_slots_or_two_priorities_at_its_head_lists_the_head() -> None:
    listed = entries(*[0] * 1000)
    assert listing_start(listed[0], listed[-1], 1000, 1000, 0.99) is None
    last = listing_start(listed[0], listed[-1], 1000, MAX_SAFE_INTEGER, 0.99)
    assert last == PendingKey.before("p", 0, MAX_TIME), "however many slots a stranger's record tells of"
    mixed = entries(1, *[0] * 999)
    assert listing_start(mixed[0], mixed[-1], 1000, 10_000, 0.99) is None
