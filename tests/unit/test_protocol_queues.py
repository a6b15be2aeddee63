"""Decisions of consumers: how long another's lease counts, what a receipt may contain, how far a scan looks."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from fray_coordinator.protocol import queue_lease, queue_segments
from fray_layouts.queue_keys import QueueKeys
from fray_layouts.queue_records import QueueLease

HELD = QueueLease(owner="mine", holder="me", timeout=30.0)
SECONDS = st.integers(0, 100).map(float)


@given(unchanged_for=SECONDS, since_update=SECONDS)
def test_a_lease_has_expired_when_it_was_said_to_and_no_sooner(unchanged_for: float, since_update: float) -> None:
    updated, now = 1000.0, 1000.0 + since_update
    left = queue_lease.expires_in(HELD, unchanged_for, updated, now)
    assert queue_lease.has_expired(HELD, unchanged_for + left + 0.1, updated, now + left + 0.1)
    assert not queue_lease.has_expired(HELD, unchanged_for + left - 0.1, updated, now + left - 0.1)


@pytest.mark.parametrize(
    ("lease", "ending", "trusted", "allowed"),
    [
        (HELD, 3, True, True),
        (HELD, 3, False, False),
        (HELD, 2, True, False),
        (queue_lease.completed(HELD, 0b1), 3, True, False),
    ],
    ids=["whole and trusted", "not trusted", "in part", "done in part before"],
)
def test_a_receipt_is_of_whole_segments_whose_leases_are_trusted(
    lease: QueueLease, ending: int, trusted: bool, allowed: bool
) -> None:
    assert queue_lease.allows_receipt(lease, 3, ending, trusted) is allowed


def test_a_lease_that_is_renewed_is_never_shortened() -> None:
    assert queue_lease.renewed(HELD, 5.0).timeout == 30.0
    assert queue_lease.renewed(HELD, 60.0).timeout == 60.0


def test_segments_are_scarce_if_there_are_no_more_than_two_for_each_other_consumer() -> None:
    assert [queue_segments.is_scarce(free, others=2) for free in (3, 4, 5)] == [True, True, False]


def test_a_consumer_that_always_wins_chooses_the_oldest_segment() -> None:
    spread = 8.0
    for _ in range(100):
        spread = queue_segments.narrowed(spread)
    assert spread == 1.0


def test_names_whose_creates_may_still_be_landing_are_listed_again() -> None:
    names, now = QueueKeys(), 1000.0
    key = {ago: names.segment(f"{queue_segments.encode_time(now - ago)}{'1' * 9}") for ago in (1.0, 4.9, 5.1)}
    after = queue_segments.rescan_from(names, key[1.0], now)
    assert key[5.1] < after < key[4.9]
    assert queue_segments.rescan_from(names, key[5.1], now) == key[5.1], "nothing is skipped"


def test_a_lease_that_is_taken_over_names_its_new_holder() -> None:
    lease = queue_lease.taken_over(HELD, "theirs", "you", 5.0)
    assert (lease.owner, lease.holder, lease.timeout, lease.claims) == ("theirs", "you", 5.0, HELD.claims + 1)


def test_a_consumer_leaves_a_segment_to_the_one_that_ranks_first_for_it() -> None:
    names = [f"segment-{number}" for number in range(40)]
    mine = queue_segments.own_segments(names, "host 1 me", {"host 2 you"})
    free = [name for name in names if name not in mine][:3] + mine
    assert queue_segments.pick_segment(free, "host 1 me", {"host 2 you"}, len(free)) == 3
    assert queue_segments.pick_segment(free, "host 1 me", {"host 2 you"}, 3) == 0, "it looks no further than that"


def test_a_lost_claim_widens_the_choice_up_to_a_bound_for_each_consumer() -> None:
    assert queue_segments.widened(3.0, 3) == 6.0
    assert queue_segments.widened(100.0, 3) == 4 * queue_segments.MAX_SPREAD_PER_CONSUMER


def test_a_lease_whose_segment_has_a_false_time_stays_until_all_creates_have_landed() -> None:
    finished, quarantine = 50.0, 1000.0
    for now in range(0, 80_000, 100):
        if queue_segments.is_collectable(queue_segments.last_create(finished, quarantine), now, quarantine):
            assert queue_segments.all_creates_landed(finished, now, quarantine)
