"""The lease of a segment: who may hand out its items, and which are done.

Invariants: an item whose acknowledgement returned is never handed out again; only the owner completes, releases or
extends.

Unsafe sequences, each found by exploration: a holder that was frozen hands out what another has done meanwhile; a late
write of a former owner changes the lease; a successor forgets what was done.

Why they cannot happen: a holder hands out only while it trusts its lease, for less than its time-out, counted from
before the write last found applied was sent, whereas an observer counts the whole time-out from when it saw the lease
(or the storage wrote it). Every change is a CAS and keeps the bitmap; the owner is a nonce of the claim, so a former
claim of the same process is a stranger.

Poison: an item may kill its process, or hang in it until its lease runs out. Which of those that were out did it,
nobody knows after a claim that ended without a word; so from then on each item is marked before it is handed out and is
alone in its process, and only such marks (and failures that a live process told) count towards the maximum.
"""

from __future__ import annotations

import sys

from msgspec.structs import replace

from fray_coordinator.protocol.queue_segments import CLOCK_MARGIN
from fray_layouts.errors import InvalidInput
from fray_layouts.queue_records import QueueLease

TRUSTED_SHARE = 0.6
"""Of the time-out: how long a holder hands out without writing its lease again."""


def checked_timeout(field: str, seconds: float) -> float:
    """`seconds`, if a lease can last so long and a record can say it; else InvalidInput."""
    if not isinstance(seconds, int | float) or not 0 < seconds <= sys.float_info.max:
        raise InvalidInput(field, seconds, "use a number of seconds above 0")
    return float(seconds)


def checked_maximum(deliveries: int) -> int:
    """`deliveries`, if it can be the maximum; else InvalidInput."""
    if not isinstance(deliveries, int) or deliveries < 0:
        raise InvalidInput("max_deliveries", deliveries, "use 0 for never, or how many")
    return deliveries


def claimed(owner: str, holder: str, timeout: float) -> QueueLease:
    """The lease of a segment that nobody claimed before. owner: nonce of this claim."""
    return QueueLease(owner=owner, holder=holder, timeout=timeout)


def taken_over(lease: QueueLease, owner: str, holder: str, timeout: float, with_word: bool = False) -> QueueLease:
    """The lease in new hands, released or expired.

    Args:
        with_word: the former claim was this very process's, and nothing of it was out.
    """
    silent = bool(lease.owner) and not with_word
    return replace(
        lease,
        owner=owner,
        holder=holder,
        timeout=timeout,
        claims=lease.claims + 1,
        suspect=lease.suspect or silent,
    )


def has_expired(lease: QueueLease, unchanged_for: float, updated: float, now: float) -> bool:
    """Whether anyone may take the lease over.

    Args:
        unchanged_for: seconds, on the observer's own clock, for which it has seen this very version.
        updated, now: when the storage wrote it and what time it is, both on the storage's clock.
    """
    return unchanged_for >= lease.timeout or now - updated > lease.timeout + CLOCK_MARGIN


def expires_in(lease: QueueLease, unchanged_for: float, updated: float, now: float) -> float:
    """Seconds until `has_expired` if nobody writes it; arguments as there."""
    return min(lease.timeout - unchanged_for, updated + lease.timeout + CLOCK_MARGIN - now)


def trusted_until(sent: float, timeout: float) -> float:
    """Until when a holder hands out, if its last write that was applied was first sent at `sent`."""
    return sent + TRUSTED_SHARE * timeout


def leaves_enough(remaining: float, timeout: float) -> bool:
    """Whether what remains of a lease is enough for an item that is handed out for `timeout` seconds."""
    return remaining >= (1 - TRUSTED_SHARE) * timeout


def is_done(lease: QueueLease, item: int) -> bool:
    return bool(int(lease.done, 16) >> item & 1)


def undone_items(lease: QueueLease, items: int) -> list[int]:
    """Items that are not done, in order."""
    done = int(lease.done, 16)
    return [item for item in range(items) if not done >> item & 1]


def is_complete(lease: QueueLease, items: int) -> bool:
    every = (1 << items) - 1
    return int(lease.done, 16) & every == every


def is_exhausted(lease: QueueLease, item: int, max_deliveries: int) -> bool:
    """Whether the item has had all its chances and is to be a dead letter."""
    return 0 < max_deliveries <= lease.failures.get(str(item), 0)


def delivery_number(lease: QueueLease, item: int) -> int:
    """Which delivery of the item the next hand-out is, counted from 1; at least as many as there were."""
    return max(lease.claims, lease.failures.get(str(item), 0) + 1)


# --- what an owner changes; it is for the caller to see that the owner is still the same


def completed(lease: QueueLease, items: int) -> QueueLease:
    """items: bitmap of what is done."""
    return replace(lease, done=f"{int(lease.done, 16) | items:x}")


def counted(lease: QueueLease, item: int, by: int = 1) -> QueueLease:
    """A start or a failure that counts; `by` -1 takes it back."""
    count = max(0, lease.failures.get(str(item), 0) + by)
    others = {name: failures for name, failures in lease.failures.items() if name != str(item)}
    return replace(lease, failures={**others, str(item): count} if count else others)


def renewed(lease: QueueLease, timeout: float) -> QueueLease:
    """The lease renewed; the longest time-out that was asked for counts."""
    return replace(lease, timeout=max(lease.timeout, timeout))


def released(lease: QueueLease) -> QueueLease:
    """Nobody's, with all that is known of its items."""
    return replace(lease, owner="", holder="")


def dead_lettered(lease: QueueLease, item: int, time: float) -> QueueLease:
    """The item is to be a dead letter under a name of this time."""
    return replace(lease, dead_lettered_at={**lease.dead_lettered_at, str(item): time})


def purged(lease: QueueLease, items: int, owner: str) -> QueueLease:
    """All items done by decree, whoever holds them (a purge)."""
    return replace(lease, owner=owner, done=f"{(1 << items) - 1:x}", problem="")


def set_aside(lease: QueueLease, problem: str) -> QueueLease:
    """Nobody's, and nobody takes it until it is given back."""
    return replace(lease, owner="", holder="", problem=problem)


def restored(lease: QueueLease) -> QueueLease:
    """What was set aside is there for everybody."""
    return replace(lease, problem="")
