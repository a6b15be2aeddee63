"""What is decided about the segments of a queue."""

from __future__ import annotations

from typing import Any

from fray_coordinator.protocol import queue_lease, queue_segments
from fray_layouts.queue_records import QueueLease
from tests.vectors.form import NOW, File, plain

HELD = QueueLease(owner="first", holder="h/1", timeout=10.0)


def _leases() -> File:
    counted = queue_lease.counted(HELD, 2, 4)
    made: dict[str, tuple[dict[str, Any], QueueLease]] = {
        "claimed": ({"do": "claim"}, queue_lease.claimed("second", "h/2", 10.0)),
        "taken over": ({"do": "take"}, queue_lease.taken_over(HELD, "second", "h/2", 10.0)),
        "taken after a release": (
            {"do": "take", "lease": plain(queue_lease.released(HELD))},
            queue_lease.taken_over(queue_lease.released(HELD), "second", "h/2", 10.0),
        ),
        "items 0 and 5 are done": ({"do": "complete", "items": [0, 5]}, queue_lease.completed(HELD, 0b100001)),
        "item 4 is done too": (
            {"do": "complete", "items": [4], "lease": plain(queue_lease.completed(HELD, 0b100001))},
            queue_lease.completed(queue_lease.completed(HELD, 0b100001), 1 << 4),
        ),
        "a failure": ({"do": "count", "item": 2}, queue_lease.counted(HELD, 2)),
        "a fifth failure": ({"do": "count", "item": 2, "lease": plain(counted)}, queue_lease.counted(counted, 2)),
        "released": ({"do": "release"}, queue_lease.released(HELD)),
        "items 0 and 5 are cancelled": ({"do": "cancel", "items": [0, 5]}, queue_lease.cancelled(HELD, 0b100001)),
        "a dead letter": ({"do": "dead letter", "item": 2, "time": NOW}, queue_lease.dead_lettered(HELD, 2, NOW)),
        "set aside": ({"do": "set aside", "problem": "no segment"}, queue_lease.set_aside(HELD, "no segment")),
    }
    return File(
        "input: a segment's lease (by default owned by `first`), and what the claim `second` of h/2 with "
        "a time-out of 10 s, or the owner, does to it. expected: the new body without its ids",
        {
            case: ({"lease": None if given["do"] == "claim" else plain(HELD), **given}, plain(lease))
            for case, (given, lease) in made.items()
        },
    )


def _chances() -> File:
    cases = {}
    for seen, updated in ((9.9, 0.0), (10.0, 0.0), (0.0, 11.9), (0.0, 12.1)):
        expired = queue_lease.has_expired(HELD, seen, NOW - updated, NOW)
        cases[f"seen unchanged for {seen:g} s, written {updated:g} s ago"] = (
            {"timeout": 10.0, "unchanged_for": seen, "updated": NOW - updated, "now": NOW},
            expired,
        )
    return File(
        "input: what an observer knows of a lease with an owner. expected: whether the observer may take the lease",
        cases,
    )


def _spent() -> File:
    cases = {}
    for failures, most in ((4, 5), (5, 5), (9, 0)):
        lease = queue_lease.counted(HELD, 2, failures)
        cases[f"{failures} of {most}"] = (
            {"failures": failures, "max_deliveries": most},
            queue_lease.is_exhausted(lease, 2, most),
        )
    return File(
        "input: an item's failures and the queue's `max_deliveries`. expected: whether the item becomes a dead letter",
        cases,
    )


def _times() -> File:
    cases = {}
    for age in (29.0, 31.0, 33.0, 121.0, 123.0, 3601.0):
        now = NOW + age
        cases[f"{age:g} s"] = (
            {"named": NOW, "now": now, "quarantine": 60.0},
            {
                "landed_now_looks_late": queue_segments.looks_late(NOW, now, 60.0),
                "whoever_finished_it_may_collect_its_lease": queue_segments.is_collectable(NOW, now, 60.0),
                "anybody_may": queue_segments.is_collection_overdue(NOW, now, 60.0),
                "what_was_noted_then_may_go": queue_segments.all_creates_landed(NOW, now, 60.0),
            },
        )
    return File(
        "input: the time in a segment's name (or in that of an object under finished/). expected: what may be done now",
        cases,
    )


FILES = {"queue-leases": _leases, "queue-expiry": _chances, "queue-deliveries": _spent, "queue-collecting": _times}
