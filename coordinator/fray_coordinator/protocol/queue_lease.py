"""The lease of a segment: who may hand out its items, and which of them are done.

**Invariant.** An item whose acknowledgement returned is never handed out again. Only the owner of a lease completes
items, releases the lease or extends it.

**Unsafe sequence.**

1. Consumer A holds a segment and freezes.
2. Consumer B takes the segment over, and finishes its items.
3. A wakes and hands the same items out.

Or: a late write of A changes B's lease. Or: B forgets which items A had finished. Exploration by the models found each
of these.

**Why this cannot happen.** A holder hands items out only while it trusts its lease: for less than the time-out, counted
from before it sent the last write that was applied. An observer waits for the whole time-out, counted from when it saw
the lease, or from when the storage wrote it. Every change is a compare-and-swap that keeps the bitmap of finished
items. The owner is a nonce of the claim, so a former claim of the same process is not the owner.

**Receipts.** One write for each segment is expensive if each segment holds one item. So a holder that has finished all
items of many segments may write one object, a receipt, that names these segments by their claims. The receipt
acknowledges a segment if, when the holder learns that it was written, the holder still trusts the segment's lease and
no write of that lease is unresolved. Otherwise that segment was not acknowledged, and the holder changes its lease
instead.

*Unsafe sequence*: the receipt is written after B has taken a segment over, and A's `done` returns. Or: A dies, and B
hands out items that the receipt calls done. Or: a release by A, to which A got no reply, is applied, and B takes the
lease that has no owner without reading receipts.

*Why this cannot happen*: nobody takes over a lease that its holder trusts, and whoever takes over from an owner that
did not release its lease reads the receipts first. A segment whose very claim a receipt names is done. A receipt that
names a former claim was written too late, and means nothing.

**Cancelled items.** An item that nobody has can be taken back, so that nobody ever gets it.

*Unsafe sequence*: a driver notes that a task is cancelled, and meanwhile a worker takes its item and runs it. Or: it
completes the item, and dies before it notes that; then all others wait for the task for ever.

*Why this cannot happen*: a canceller claims the segment as a consumer does. While it holds the lease, it first notes
the end of the item, and then completes it. If it dies in between, the item comes back. Only if it freezes there for
longer than the lease lasts, an item whose end is noted may be handed out, and the canceller learns that.

**Poison items.** An item may kill its process, or hang in it until the lease runs out. If a claim ended without a
release, nobody knows which of the items that were handed out did it. So from then on each item of the segment is a
suspect: its start is counted as a failure before it is handed out, and it is alone in its process. Only such starts,
and failures that a live process reported, count towards the maximum of deliveries.
"""

import sys

from msgspec.structs import replace

from fray_coordinator.protocol.queue_segments import CLOCK_MARGIN
from fray_layouts.errors import InvalidInput
from fray_layouts.queue_records import QueueLease

TRUSTED_SHARE = 0.6
"""The part of a lease's time-out for which its holder hands out items without writing the lease again. An item that is
handed out at the last moment still has the rest."""


def checked_timeout(field: str, seconds: float) -> float:
    """`seconds` as a lease's time-out. Raises InvalidInput if it is not a positive, finite number."""
    if not isinstance(seconds, int | float) or not 0 < seconds <= sys.float_info.max:
        raise InvalidInput(field, seconds, "use a number of seconds above 0")
    return float(seconds)


def checked_maximum(deliveries: int) -> int:
    """`deliveries` as the maximum of a queue. Raises InvalidInput if it is not a whole number of at least 0."""
    if not isinstance(deliveries, int) or deliveries < 0:
        raise InvalidInput("max_deliveries", deliveries, "use a number of deliveries, or 0 for no limit")
    return deliveries


def claimed(owner: str, holder: str, timeout: float) -> QueueLease:
    """The lease of a segment that nobody claimed before. owner: the nonce of this claim."""
    return QueueLease(owner=owner, holder=holder, timeout=timeout)


def taken_over(lease: QueueLease, owner: str, holder: str, timeout: float, own_idle_claim: bool = False) -> QueueLease:
    """The lease under a new owner, after it was released or has expired.

    own_idle_claim: the former claim was this process's own, and none of its items was handed out.
    """
    unreleased = bool(lease.owner) and not own_idle_claim
    return replace(
        lease, owner=owner, holder=holder, timeout=timeout, claims=lease.claims + 1, suspect=lease.suspect or unreleased
    )


def has_expired(lease: QueueLease, unchanged_for: float, updated: float, now: float) -> bool:
    """Whether anyone may take the lease over.

    Args:
        unchanged_for: seconds, on the observer's own clock, for which it has seen this version of the lease.
        updated, now: when the storage wrote the lease and what time it is, both on the storage's clock.
    """
    return unchanged_for >= lease.timeout or now - updated > lease.timeout + CLOCK_MARGIN


def expires_in(lease: QueueLease, unchanged_for: float, updated: float, now: float) -> float:
    """Seconds until `has_expired` is true if nobody writes the lease; the arguments are the same."""
    return min(lease.timeout - unchanged_for, updated + lease.timeout + CLOCK_MARGIN - now)


def trusted_until(sent: float, timeout: float) -> float:
    """The time until which a holder hands items out, if its last applied write was sent at `sent`."""
    return sent + TRUSTED_SHARE * timeout


def is_free(lease: QueueLease, updated: float, now: float) -> bool:
    """Whether nobody has the segment, as far as the storage's clock tells, so that its items can be cancelled.

    updated, now: as for `has_expired`.
    """
    return not lease.problem and (not lease.owner or has_expired(lease, 0.0, updated, now))


def leaves_enough(remaining: float, timeout: float) -> bool:
    """Whether the rest of a lease is long enough for an item that is handed out for `timeout` seconds."""
    return remaining >= shortest_remaining(timeout)


def shortest_remaining(timeout: float) -> float:
    """Seconds that a lease has left at least when an item is handed out for `timeout` seconds."""
    return (1 - TRUSTED_SHARE) * timeout


def undone_items(lease: QueueLease, items: int) -> list[int]:
    """The numbers of the items that are not done."""
    if lease.done == "0":
        return list(range(items))
    done = int(lease.done, 16)
    return [item for item in range(items) if not done >> item & 1]


def allows_receipt(lease: QueueLease, items: int, ending: int, trusted: bool) -> bool:
    """Whether the owner may acknowledge `ending` items by a receipt.

    It may if they are the whole segment, and if it trusts the lease. If a part of the segment is done, the lease says
    which, and later acknowledgements go into the lease, too.
    """
    return trusted and lease.done == "0" and ending == items


def is_complete(lease: QueueLease, items: int) -> bool:
    """Whether all items are done."""
    every = (1 << items) - 1
    return int(lease.done, 16) & every == every


def is_exhausted(lease: QueueLease, item: int, max_deliveries: int) -> bool:
    """Whether the item has failed as often as it may, so that it becomes a dead letter."""
    return 0 < max_deliveries <= lease.failures.get(str(item), 0)


def delivery_number(lease: QueueLease, item: int) -> int:
    """The number of the item's next delivery, counted from 1. It may count deliveries that did not happen."""
    return max(lease.claims, lease.failures.get(str(item), 0) + 1)


# --- changes by the owner; the caller makes sure that the owner is still the same


def completed(lease: QueueLease, items: int) -> QueueLease:
    """The lease with more items done. items: the bitmap of these."""
    return replace(lease, done=f"{int(lease.done, 16) | items:x}")


def counted(lease: QueueLease, item: int, by: int = 1) -> QueueLease:
    """The lease with one more failure of the item, or one fewer if `by` is -1."""
    count = max(0, lease.failures.get(str(item), 0) + by)
    others = {name: failures for name, failures in lease.failures.items() if name != str(item)}
    return replace(lease, failures={**others, str(item): count} if count else others)


def renewed(lease: QueueLease, timeout: float) -> QueueLease:
    """The renewed lease, with the longest time-out that was asked for."""
    return replace(lease, timeout=max(lease.timeout, timeout))


def cancelled(lease: QueueLease, items: int) -> QueueLease:
    """The lease after a claim that was made only to cancel items. items: the bitmap of these."""
    return released(completed(lease, items))


def released(lease: QueueLease) -> QueueLease:
    """The lease without an owner; it keeps what it says of its items."""
    return replace(lease, owner="", holder="")


def dead_lettered(lease: QueueLease, item: int, time: float) -> QueueLease:
    """The lease with an item that becomes a dead letter. time: the time in the dead letter's name."""
    return replace(lease, dead_lettered_at={**lease.dead_lettered_at, str(item): time})


def purged(lease: QueueLease, items: int, owner: str) -> QueueLease:
    """The lease with all items done, whoever holds it."""
    return replace(lease, owner=owner, done=f"{(1 << items) - 1:x}", problem="")


def receipted(lease: QueueLease, items: int, owner: str) -> QueueLease:
    """The lease of a segment that is done by a receipt of its owner.

    owner: the nonce of the process that found the receipt.
    """
    return purged(lease, items, owner)


def set_aside(lease: QueueLease, problem: str) -> QueueLease:
    """The lease of a segment that cannot be read. Nobody takes the segment until it is restored."""
    return replace(lease, owner="", holder="", problem=problem)


def restored(lease: QueueLease) -> QueueLease:
    """The lease of a segment that was set aside, and that everybody may take again."""
    return replace(lease, problem="")
