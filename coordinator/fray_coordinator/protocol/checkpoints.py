"""Checkpoints of a durable actor: one sequence of create-only numbers for all attempts of its job.

**Invariant.** The checkpoint with the highest number holds every call that was acknowledged.

**Unsafe sequence.**

1. Attempt 1 freezes before it writes a checkpoint.
2. Attempt 2 restores an older checkpoint and answers calls.
3. Attempt 1 wakes, writes the next number, and answers calls too.
4. There are two histories, and the next restore loses one of them.

**Why this cannot happen.** An attempt first creates the next number as a fence that holds the state it restored, so the
number that an earlier attempt would write next is taken. After every applied create the writer lists the numbers. A
fence that is not the highest is made again from the highest; a checkpoint that is not the highest is not acknowledged.
A writer deletes lower numbers only after its own exists. A reader that lists a number and then does not find it lists
again.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint in the sequence.

    Attributes:
        attempt: of the job whose process wrote it.
        writer: a unique id of that process.
        fence: it was written to shut earlier attempts out, not to acknowledge calls.
        state: None if the actor never wrote one.
    """

    number: int
    attempt: int
    writer: str
    fence: bool
    state: bytes | None


def fence(highest: Checkpoint | None, attempt: int, writer: str) -> Checkpoint | None:
    """The first checkpoint that a process writes, after it has read the highest one.

    None: a later attempt has already written, so the process must neither write nor answer any more.
    """
    if highest is None:
        return Checkpoint(1, attempt, writer, True, None)
    if highest.attempt > attempt:
        return None
    return Checkpoint(highest.number + 1, attempt, writer, True, highest.state)


def checkpoint(last: Checkpoint, state: bytes) -> Checkpoint:
    """The checkpoint that makes `state` durable. last: the previous checkpoint that this process wrote."""
    return Checkpoint(last.number + 1, last.attempt, last.writer, False, state)


def landed_before(found: Checkpoint | None, wanted: Checkpoint) -> bool:
    """Whether an earlier write of the same process, whose outcome it never learnt, has taken the number."""
    return found is not None and found.writer == wanted.writer
