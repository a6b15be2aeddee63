"""A small world for one durable actor's checkpoints: its attempts, old ones that wake up, and creates that land late.

Each attempt lists, reads the highest number, writes its fence, and then serves two calls, each after a checkpoint. All
attempts but the last may freeze or die at any step, while others continue. A state of the actor is the set of calls in
it. The decisions are those of `protocol.checkpoint`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from fray_coordinator.protocol.naming import Checkpoint, checkpoint, fence, landed_before
from tests.model.explorer import Step

CALLS = (1, 2)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that can be switched off, one at a time."""

    fenced: bool = True
    fence_holds_state: bool = True
    fence_listed_after: bool = True
    checkpoint_listed_after: bool = True
    older_stops: bool = True
    reply_waits: bool = True
    collected_below_own: bool = True
    own_write_known: bool = True


class Number(NamedTuple):
    """The object under a number, or on its way there. calls: bits of the calls in the state."""

    attempt: int
    calls: int
    fence: bool


class Attempt(NamedTuple):
    """A process.

    Phases: off, start, listed (`at`: the highest number that it saw), writing (`body` under `at`), made (its write was
    applied; it lists), up, dead. `last`: its own last number; `calls`: what is in its memory, `saved` of it is durable.
    """

    phase: str = "off"
    at: int = 0
    body: Number | None = None
    last: int = 0
    calls: int = 0
    saved: int = 0


class World(NamedTuple):
    """A state. `numbers[n]` lies under number n + 1. `acknowledged`: calls with a reply; `flying`: late copies."""

    numbers: tuple[Number | None, ...]
    attempts: tuple[Attempt, ...]
    acknowledged: int = 0
    flying: frozenset[tuple[int, Number]] = frozenset()
    copies: int = 1
    silences: int = 1


def real(number: int, body: Number) -> Checkpoint:
    """What `body` stands for."""
    return Checkpoint(number, body.attempt, f"w{body.attempt}", body.fence, bytes([body.calls]))


def essence(made: Checkpoint) -> Number:
    return Number(made.attempt, made.state[0] if made.state else 0, made.fence)


class CheckpointWorld:
    """The steps under `rules`, with `attempts` attempts; numbers end at `numbers`, where everything is good.

    late: whether a write may land twice, and may land after its writer gave it up.
    """

    def __init__(self, rules: Rules, attempts: int, numbers: int, late: int) -> None:
        self.rules = rules
        waiting = (Attempt("start"),) + (Attempt(),) * (attempts - 1)
        self.start = World((None,) * numbers, waiting, copies=late, silences=late)

    def good(self, w: World) -> bool:
        newest = w.attempts[-1]
        return (newest.phase == "up" and w.acknowledged == sum(CALLS)) or w.numbers[-1] is not None

    def broken(self, w: World) -> str:
        if w.acknowledged & ~self._restored(w):
            return "an acknowledged call is lost"
        newest = w.attempts[-1]
        if newest.phase == "up" and w.acknowledged & ~newest.calls:
            return "the newest serves a state that lacks an acknowledged call"
        return ""

    def steps(self, w: World) -> Iterator[Step[World]]:
        for number, body in w.flying:
            rest = w._replace(flying=w.flying - {(number, body)})
            yield Step(f"a late copy of {number} is lost", rest)
            if self._at(w, number) is None:
                yield Step(f"a late copy of {number} by attempt {body.attempt} lands", self._put(rest, number, body))
        for index in range(len(w.attempts)):
            yield from self._attempt(w, index)

    # --- the sequence -----------------------------------------------------------------------------------------------

    def _at(self, w: World, number: int) -> Number | None:
        return w.numbers[number - 1]

    def _put(self, w: World, number: int, body: Number | None) -> World:
        numbers = list(w.numbers)
        numbers[number - 1] = body
        return w._replace(numbers=tuple(numbers))

    def _highest(self, w: World) -> int:
        return max((number for number, body in enumerate(w.numbers, 1) if body is not None), default=0)

    def _restored(self, w: World) -> int:
        """The calls in what the next attempt would restore."""
        for body in reversed(w.numbers):
            if body is not None and (self.rules.fence_holds_state or not body.fence):
                return body.calls
        return 0

    # --- an attempt -------------------------------------------------------------------------------------------------

    def _is(self, w: World, index: int, attempt: Attempt) -> World:
        attempts = list(w.attempts)
        attempts[index] = attempt
        return w._replace(attempts=tuple(attempts))

    def _attempt(self, w: World, index: int) -> Iterator[Step[World]]:
        me, who = w.attempts[index], f"attempt {index + 1}"
        newest = index == len(w.attempts) - 1
        if me.phase == "dead":
            return
        if me.phase != "off" and not newest:
            yield Step(f"{who} dies", self._is(self._left_behind(w, me), index, Attempt("dead")), fault=True)
        match me.phase:
            case "off" if w.attempts[index - 1].phase != "off":
                yield Step(f"{who} starts", self._is(w, index, Attempt("start")))
            case "start":
                seen = me._replace(phase="listed", at=self._highest(w))
                yield Step(f"{who} lists up to {seen.at}", self._is(w, index, seen))
            case "listed":
                yield from self._restore(w, index, me, who)
            case "writing":
                yield from self._write(w, index, me, who)
            case "made":
                yield from self._look_behind(w, index, me, who)
            case "up":
                yield from self._serve(w, index, me, who)

    def _left_behind(self, w: World, me: Attempt) -> World:
        """The process dies or gives up, and its write is still on its way."""
        if me.phase != "writing" or me.body is None:
            return w
        return w._replace(flying=w.flying | {(me.at, me.body)})

    def _restore(self, w: World, index: int, me: Attempt, who: str) -> Iterator[Step[World]]:
        found = self._at(w, me.at) if me.at else None
        if me.at and found is None:
            yield Step(f"{who}: {me.at} is gone, it lists again", self._is(w, index, Attempt("start")))
            return
        calls = self._restored(w) if not self.rules.fence_holds_state else found.calls if found else 0
        known = real(me.at, found._replace(calls=calls)) if found else None
        if known is not None and not self.rules.older_stops:
            known = real(me.at, Number(min(known.attempt, index + 1), calls, known.fence))
        wanted = fence(known, index + 1, f"w{index + 1}")
        if wanted is None:
            yield Step(f"{who} is fenced", self._is(w, index, Attempt("dead")))
        elif not self.rules.fenced:
            yield Step(f"{who} serves", self._is(w, index, Attempt("up", last=me.at, calls=calls, saved=calls)))
        elif wanted.number <= len(w.numbers):
            writing = Attempt("writing", wanted.number, essence(wanted), me.at, calls)
            yield Step(f"{who} sends the fence {wanted.number}", self._is(w, index, writing))

    def _write(self, w: World, index: int, me: Attempt, who: str) -> Iterator[Step[World]]:
        assert me.body is not None
        found, what = self._at(w, me.at), "fence" if me.body.fence else "checkpoint"
        made = me._replace(phase="made", last=me.at)
        if found is None:
            landed = self._put(self._is(w, index, made), me.at, me.body)
            yield Step(f"the {what} {me.at} of {who} lands", landed)
            if w.copies:
                copied = landed._replace(flying=w.flying | {(me.at, me.body)}, copies=w.copies - 1)
                yield Step(f"the {what} {me.at} of {who} lands, and a copy is under way", copied, fault=True)
            if w.silences and not me.body.fence:
                gave_up = self._is(self._left_behind(w, me), index, me._replace(phase="up", body=None))
                yield Step(f"{who} gives up on {me.at}", gave_up._replace(silences=w.silences - 1), fault=True)
        elif found == me.body:
            yield Step(f"{who} finds {me.at} written", self._is(w, index, made))
        elif me.body.fence:
            yield Step(f"the fence {me.at} of {who} is rejected", self._is(w, index, Attempt("start")))
        elif landed_before(real(me.at, found), real(me.at, me.body)) and self.rules.own_write_known:
            if me.at < len(w.numbers):
                again = me._replace(at=me.at + 1, last=me.at)
                yield Step(f"{who} finds that its earlier {me.at} had landed", self._is(w, index, again))
        else:
            yield Step(f"the checkpoint {me.at} of {who} is rejected, it ends", self._is(w, index, Attempt("dead")))

    def _look_behind(self, w: World, index: int, me: Attempt, who: str) -> Iterator[Step[World]]:
        assert me.body is not None
        up = me._replace(phase="up", body=None, saved=me.calls)
        highest = self._highest(w) <= me.at
        if me.body.fence and not highest and self.rules.fence_listed_after:
            yield Step(f"{who} sees a number behind its fence, and lists again", self._is(w, index, Attempt("start")))
        elif me.body.fence:
            yield Step(f"{who} serves", self._is(w, index, up))
        elif not highest and self.rules.checkpoint_listed_after:
            yield Step(f"{who} sees a number behind its checkpoint, and ends", self._is(w, index, Attempt("dead")))
        else:
            yield self._reply(w, index, up, who)
        yield from self._collect(w, me, who)

    def _reply(self, w: World, index: int, up: Attempt, who: str) -> Step[World]:
        lacks = any(other.phase == "up" and up.calls & ~other.calls for other in w.attempts[index + 1 :])
        breaks = "an older one acknowledges what a newer one lacks" if lacks else ""
        after = self._is(w, index, up)._replace(acknowledged=w.acknowledged | up.calls)
        return Step(f"{who} acknowledges", after, breaks=breaks)

    def _serve(self, w: World, index: int, me: Attempt, who: str) -> Iterator[Step[World]]:
        if me.saved & ~w.acknowledged and me.saved == me.calls:
            yield self._reply(w, index, me, who)  # the call is asked for again: it is in the state that was restored
        number = me.last + 1
        if number > len(w.numbers):
            return
        for call in CALLS:
            if me.calls & call or (call == CALLS[1] and not me.calls & CALLS[0]):
                continue
            own = Checkpoint(me.last, index + 1, f"w{index + 1}", False, None)
            body = essence(checkpoint(own, bytes([me.calls | call])))
            writing = me._replace(phase="writing", at=number, body=body, calls=me.calls | call)
            sent = self._is(w, index, writing)
            if not self.rules.reply_waits:
                sent = sent._replace(acknowledged=w.acknowledged | writing.calls)
            yield Step(f"{who} runs call {call} and sends the checkpoint {number}", sent)
        if me.calls != me.saved:
            body = Number(index + 1, me.calls, False)
            again = me._replace(phase="writing", at=number, body=body)
            yield Step(f"{who} sends the checkpoint {number} again", self._is(w, index, again))
        yield from self._collect(w, me, who)

    def _collect(self, w: World, me: Attempt, who: str) -> Iterator[Step[World]]:
        """Delete the objects below its own last number; without the rule also that one, as soon as the next is sent."""
        below = me.last if self.rules.collected_below_own else me.last + 1
        kept = tuple(body if number >= below else None for number, body in enumerate(w.numbers, 1))
        if kept != w.numbers:
            yield Step(f"{who} deletes what is below {below}", w._replace(numbers=kept))
