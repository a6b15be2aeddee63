"""The states of the world in `jobworld`, and its rules, which can be switched off."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.model.essence import Beat, Job

A, C = "A", "C"
ABSENT = "absent"
"""The state of an agent whose record is not there yet."""

REQUEUED_FROM_THE_LIVING = "the job of a live agent was requeued"
THROWN_AWAY = "a complete result was thrown away while its lease stood"

Flight = tuple[Any, ...]
ENDS = {
    "success": "success",
    "failure": "exited",
    "restart": "exited",
    "preemption": "preempted",
    "stopping": "exited",
}


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that can be switched off, one at a time, to see what breaks without them."""

    entry_outlives_claim: bool = True
    unresolved_claim_kept: bool = True
    attempt_in_entry: bool = True
    listed_until_next_entry: bool = True
    reaping_repeated: bool = True
    later_entry_first: bool = True
    decided_again: bool = True
    holder_heeds_stop: bool = True
    reaper_heeds_stop: bool = True
    entry_outlives_restart: bool = True
    later_entry_whoever_requeued: bool = True
    fence: bool = True
    record_first: bool = True
    claim_judged_by_content: bool = True
    unresolved_claim_listed: bool = True
    finder_requeues: bool = True
    complete_result_commits: bool = True
    dropped_are_requeued: bool = True
    two_beats_without_it: bool = True
    requeued_on_that_version: bool = True
    nothing_taken_up_again: bool = True


class Agent(NamedTuple):
    """An agent's process: its mode ("up", "frozen", "gone"), the attempt that it deals with, and how far that is.

    `entry` is the attempt in the name of the entry that it claimed the job by, which a restart leaves as it is.
    Phases: idle, claiming, running, one of ENDS (it wants to end that way), requeued (the next entry is to be made).
    """

    mode: str = "up"
    attempt: int = 0
    phase: str = "idle"
    entry: int = 0


class World(NamedTuple):
    """A state. `flying`: writes to the job's record, deletes and creations of entries that may land at any time.

    `reader` is somebody who tends the index, between two reads; `settled` says that whoever buries A has looked at the
    job; `faults` are the ones that may still happen; `stopped` that a wish to stop was acknowledged. `composed` is what
    a beat of A's lists that is on its way; `unlisted` is the job as an observer saw it, before it saw that A does not
    list it, and how many of A's beats it has seen since that do not either.
    """

    job: Job = Job()
    entries: frozenset[int] = frozenset({1})
    beat_a: Beat = Beat()
    beat_c: Beat = Beat()
    a: Agent = Agent()
    c: Agent = Agent()
    flying: frozenset[Flight] = frozenset()
    reader: tuple[int, Job] | None = None
    settled: bool = False
    faults: frozenset[str] = frozenset()
    composed: int | None = None
    unlisted: tuple[Job, int] | None = None


def last_words(w: World) -> World:
    """Simplify the state of a job that has ended: only writes that may still land matter."""
    return World(w.job, frozenset(), Beat(w.beat_a.state), Beat(), w.a, w.c)
