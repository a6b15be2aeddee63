"""Children end with the attempt of their parent that launched them.

**Invariant.** No child runs for long without its parent running at the attempt that the child names, unless it is
detached.

**Unsafe sequence.** A frozen parent process submits a child after the pass has listed and stopped the parent's
children.

**Why this cannot happen.** The `children/` entry is created before the child, so a later listing shows it, and entries
are listed again until none is left; and a claimer reads the child, then its parent, then claims from that version of
the child.
"""

from enum import Enum

from msgspec.structs import replace

from fray_coordinator.protocol.transitions import Status, is_terminal
from fray_layouts.records import JobRecord


class ChildVerdict(Enum):
    """The decision about a child."""

    KEEP = "keep"
    WAIT = "wait"
    STOP = "stop"


def judge_child(child: JobRecord, parent: JobRecord | None, now: float, adoption_time: float) -> ChildVerdict:
    """Whether the child may run.

    A child that was submitted with an id of its own can be adopted by its parent's next attempt, which submits it
    again; it waits for `adoption_time` seconds from that attempt's start before it is stopped.

    Args:
        parent: the parent's record, read after the child's; None if it is gone.
        now: the storage's clock.
    """
    link = child.parent
    if link is None or link.detached:
        return ChildVerdict.KEEP
    if parent is None or is_terminal(parent):
        return ChildVerdict.STOP
    if parent.status == Status.RUNNING and parent.attempt == link.attempt:
        return ChildVerdict.KEEP
    if child.spec.id and (parent.status != Status.RUNNING or now < (parent.started_at or now) + adoption_time):
        return ChildVerdict.WAIT
    return ChildVerdict.STOP


def cascade_reason(child: JobRecord) -> str:
    """Why a child is stopped, for people: its parent may be a driver."""
    return f"its parent {child.parent.job if child.parent else ''} no longer runs"


def adopted(child: JobRecord, parent: str, attempt: int) -> JobRecord | None:
    """The child as a child of a later attempt of the same parent; None if there is nothing to change."""
    link = child.parent
    if link is None or link.detached or is_terminal(child) or child.stop is not None:
        return None
    if link.job != parent or link.attempt >= attempt:
        return None
    return replace(child, parent=replace(link, attempt=attempt))
