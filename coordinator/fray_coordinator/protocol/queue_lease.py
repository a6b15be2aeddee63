"""The lease of a segment: who may hand out its items, and which of them are done.

**Invariant.** An item whose acknowledgement returned is never handed out again. Only the owner of a lease completes,
releases or extends.

**Unsafe sequence.** A holder that was frozen hands out what another has done meanwhile. Or: a late write of a former
owner changes the lease. Or: a successor forgets what was done. Each was found by exploration.

**Why this cannot happen.** A holder hands out only while it trusts its lease: for less than its time-out, counted from
before it sent the last write that was found applied. An observer counts the whole time-out from when it saw the lease,
or from when the storage wrote it. Every change is a compare-and-swap and keeps the bitmap. The owner is a nonce of the
claim, so a former claim of the same process is a stranger.

**Receipts.** A write for each segment is dear where each holds one item. So a holder that has done all items of many
segments may write one object, a receipt, that names them by their claims. It counts as an acknowledgement if the holder
still trusts each of these leases when it learns that the receipt was written, and no write of them is unresolved; else
nothing was acknowledged, and it changes the lease. *Unsafe sequence*: the receipt lands when another has taken the
segment over, and `done` returns. Or: the holder dies, and a successor hands out what the receipt says is done. Or: a
release of which the holder heard nothing lands, and somebody takes the lease that is nobody's, without a look at
receipts. *Why this cannot happen*: nobody takes over
what its holder trusts, and whoever takes over from an owner that left without a word reads the receipts first. What
names that very claim is done; a receipt of a former claim, which landed late, says nothing.

**Poison items.** An item may kill its process, or hang in it until its lease runs out. After a claim that ended without
a word nobody knows which of the items that were out did it. So from then on each item of the segment is a suspect: its
start is counted as a failure before it is handed out, and it is alone in its process. Only such starts, and failures
that a live process reported, count towards the maximum of deliveries.
"""

import sys

from msgspec.structs import replace

from fray_coordinator.protocol.queue_segments import CLOCK_MARGIN
from fray_layouts.errors import InvalidInput
from fray_layouts.queue_records import QueueLease

TRUSTED_SHARE = 0.6
"""The part of a lease's time-out for which its holder hands out without writing it again. The rest is what an item that
is handed out at the last moment has left."""


def checked_timeout(field: str, seconds: float) -> float:
    """`seconds` as a lease's time-out. Raises InvalidInput for what no lease can last."""
    if not isinstance(seconds, int | float) or not 0 < seconds <= sys.float_info.max:
        raise InvalidInput(field, seconds, "use a number of seconds above 0")
    return float(seconds)


def checked_maximum(deliveries: int) -> int:
    """`deliveries` as the maximum of a queue. Raises InvalidInput for what is none."""
    if not isinstance(deliveries, int) or deliveries < 0:
        raise InvalidInput("max_deliveries", deliveries, "use 0 for never, or how many")
    return deliveries


def claimed(owner: str, holder: str, timeout: float) -> QueueLease:
    """The lease of a segment that nobody claimed before. owner: nonce of this claim."""
    return QueueLease(owner=owner, holder=holder, timeout=timeout)


def taken_over(lease: QueueLease, owner: str, holder: str, timeout: float, with_word: bool = False) -> QueueLease:
    """The lease under a new owner; it was released, or has expired.

    with_word: the former claim was this very process's, and nothing of it was out.
    """
    silent = bool(lease.owner) and not with_word
    return replace(
        lease, owner=owner, holder=holder, timeout=timeout, claims=lease.claims + 1, suspect=lease.suspect or silent
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
    """When a holder stops handing out, if its last applied write was sent at `sent`."""
    return sent + TRUSTED_SHARE * timeout


def leaves_enough(remaining: float, timeout: float) -> bool:
    """Whether what remains of a lease is enough for an item that is handed out for `timeout` seconds."""
    return remaining >= shortest_remaining(timeout)


def shortest_remaining(timeout: float) -> float:
    """Seconds that a lease has at least when an item is handed out for `timeout` seconds."""
    return (1 - TRUSTED_SHARE) * timeout


def undone_items(lease: QueueLease, items: int) -> list[int]:
    if lease.done == "0":
        return list(range(items))
    done = int(lease.done, 16)
    return [item for item in range(items) if not done >> item & 1]


def allows_receipt(lease: QueueLease, items: int, ending: int, trusted: bool) -> bool:
    """Whether the owner may acknowledge so many items by a receipt: the whole segment, whose lease it trusts.

    Of a segment that is done in part the lease says so, and goes on to say it.
    """
    return trusted and lease.done == "0" and ending == items


def is_complete(lease: QueueLease, items: int) -> bool:
    every = (1 << items) - 1
    return int(lease.done, 16) & every == every


def is_exhausted(lease: QueueLease, item: int, max_deliveries: int) -> bool:
    """Whether the item has failed as often as it may, and becomes a dead letter."""
    return 0 < max_deliveries <= lease.failures.get(str(item), 0)


def delivery_number(lease: QueueLease, item: int) -> int:
    """The number of the item's next delivery, counted from 1; it may count some that did not happen."""
    return max(lease.claims, lease.failures.get(str(item), 0) + 1)


# --- changes by the owner; the caller makes sure that the owner is still the same


def completed(lease: QueueLease, items: int) -> QueueLease:
    """The lease with more items done. items: their bitmap."""
    return replace(lease, done=f"{int(lease.done, 16) | items:x}")


def counted(lease: QueueLease, item: int, by: int = 1) -> QueueLease:
    """The lease with one more failure of the item, or with `by` -1 one fewer."""
    count = max(0, lease.failures.get(str(item), 0) + by)
    others = {name: failures for name, failures in lease.failures.items() if name != str(item)}
    return replace(lease, failures={**others, str(item): count} if count else others)


def renewed(lease: QueueLease, timeout: float) -> QueueLease:
    """The lease renewed, for the longest time-out that was asked for."""
    return replace(lease, timeout=max(lease.timeout, timeout))


def released(lease: QueueLease) -> QueueLease:
    """The lease without an owner; what is known of its items stays."""
    return replace(lease, owner="", holder="")


def dead_lettered(lease: QueueLease, item: int, time: float) -> QueueLease:
    """The lease of an item that becomes a dead letter, under a name of this time."""
    return replace(lease, dead_lettered_at={**lease.dead_lettered_at, str(item): time})


def purged(lease: QueueLease, items: int, owner: str) -> QueueLease:
    """The lease with all items done, whoever holds them."""
    return replace(lease, owner=owner, done=f"{(1 << items) - 1:x}", problem="")


def receipted(lease: QueueLease, items: int, owner: str) -> QueueLease:
    """The lease of a segment that a receipt of its owner says is done, under the nonce of whoever found that."""
    return purged(lease, items, owner)


def set_aside(lease: QueueLease, problem: str) -> QueueLease:
    """The lease of a segment that cannot be read: nobody takes it until it is restored."""
    return replace(lease, owner="", holder="", problem=problem)


def restored(lease: QueueLease) -> QueueLease:
    """The lease of a segment that was set aside, open to everybody again."""
    return replace(lease, problem="")
