"""Assignment of a host's GPUs to jobs.

**Invariant.** The jobs on a GPU never have more than one GPU together, and a job that asked for a whole GPU shares it
with nobody.

**Unsafe sequence.**

1. The agent counts its free GPUs as one number.
2. Jobs A and B, with half a GPU each, are started on two different GPUs. Half of each is left, which adds up to one.
3. Job C wants a whole GPU, is claimed, and shares.

**Why this cannot happen.** The agent counts what is left of each GPU separately. A job gets its GPUs before its claim
is sent, and is not started without them.
"""

from collections.abc import Sequence

from fray_layouts.index_keys import Shape

WHOLE = 1000
"""A whole GPU, in the unit in which parts of one are counted."""


def gpus_for(shape: Shape, left: Sequence[int]) -> tuple[int, ...]:
    """The indices of the GPUs for a job of this shape; none if it needs none, or if there are too few.

    left: thousandths of each of the host's GPUs that are free.
    """
    whole = [place for place, rest in enumerate(left) if rest == WHOLE]
    if not shape.device_share:
        return tuple(whole[: shape.device_count]) if len(whole) >= shape.device_count else ()
    shared = [place for place, rest in enumerate(left) if shape.device_share <= rest < WHOLE]
    fullest = sorted(shared, key=lambda place: left[place])
    return tuple([*fullest, *whole][:1])


def part_of_each(shape: Shape) -> int:
    """The share of each of its GPUs that a job of this shape has, in thousandths."""
    return shape.device_share or WHOLE
