"""Checkpoints of a durable actor: one sequence of create-only numbers for all attempts of its job.

**Invariant.** The highest number holds every call that was acknowledged.

**Unsafe sequence.** Attempt 1 freezes before it writes a checkpoint; attempt 2 restores an older one and answers calls;
attempt 1 wakes, writes the next number, and answers too: two histories, and the next restore loses one of them.

**Why this cannot happen.** An attempt's first act is to take the next number for a fence that holds the state it
restored, so an earlier attempt's next number is taken; and after every applied create the writer lists: a fence that is
not the highest is made again from what is, a checkpoint that is not the highest is not acknowledged. Numbers below
one's own are deleted only once that one exists; who lists a number and finds it gone lists again.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint in the sequence.

    Attributes:
        attempt: of the job whose process wrote it.
        writer: that process, unique.
        fence: it was written to shut earlier attempts out, not to acknowledge calls.
        state: None if the actor never wrote one.
    """

    number: int
    attempt: int
    writer: str
    fence: bool
    state: bytes | None


def fence(highest: Checkpoint | None, attempt: int, writer: str) -> Checkpoint | None:
    """The first write of a process, which has read the highest number.

    None: a later attempt goes on from there, so the process must neither write nor answer any more.
    """
    if highest is None:
        return Checkpoint(1, attempt, writer, True, None)
    if highest.attempt > attempt:
        return None
    return Checkpoint(highest.number + 1, attempt, writer, True, highest.state)


def checkpoint(last: Checkpoint, state: bytes) -> Checkpoint:
    """The write that makes `state` durable, after the process's own `last`."""
    return Checkpoint(last.number + 1, last.attempt, last.writer, False, state)


def landed_before(found: Checkpoint | None, wanted: Checkpoint) -> bool:
    """Whether the number is taken by an earlier write of the same process whose outcome it never learnt."""
    return found is not None and found.writer == wanted.writer
