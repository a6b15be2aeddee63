"""The assignment of a host's GPUs to jobs.

**Invariant.** The parts of a GPU that jobs have are never more than one GPU, and who asked for a whole one shares it
with nobody.

**Unsafe sequence.** Free GPUs are a number. Two jobs with half of one each end up on two, half a GPU is left on either,
which makes one; a job that wants a whole GPU is claimed, and shares.

**Why this cannot happen.** What is left is told GPU by GPU; a job gets its GPUs before its claim is sent, and without
them it is not started.
"""

from collections.abc import Sequence

from fray_layouts.index_keys import Shape

WHOLE = 1000
"""A whole GPU, in the unit in which parts of one are counted."""


def gpus_for(shape: Shape, left: Sequence[int]) -> tuple[int, ...]:
    """The places of the GPUs for a job of this shape; none if it needs none, or there are too few.

    Args:
        left: thousandths of each of the host's GPUs that are to be had.
    """
    whole = [place for place, rest in enumerate(left) if rest == WHOLE]
    if not shape.device_share:
        return tuple(whole[: shape.device_count]) if len(whole) >= shape.device_count else ()
    shared = [place for place, rest in enumerate(left) if shape.device_share <= rest < WHOLE]
    fullest = sorted(shared, key=lambda place: left[place])
    return tuple([*fullest, *whole][:1])


def part_of_each(shape: Shape) -> int:
    """Thousandths of each of its GPUs that a job of this shape has."""
    return shape.device_share or WHOLE
