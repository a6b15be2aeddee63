"""A small world for the inbox on local files, into which a person copies: `cp` is not atomic and takes no lock.

What is parsed and decided is `parse_spec`, `record_of_drop` and `settle`; the rest mirrors `Admission` and the store's
`move_aside`, which compares the content and then renames, while the `cp` may go on. A version is the content. A copy
that is not finished changes within `inbox_patience`, unless it stalls, once, in the inbox: one that stalled again in
the file moved aside would be lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from fray_coordinator.protocol.inbox import record_of_drop, settle
from fray_coordinator.protocol.transitions import Status
from fray_layouts.errors import InvalidInput
from fray_layouts.spec import JobSpec, parse_spec
from tests.model.essence import NOW
from tests.model.explorer import Found, Step, explore


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that can be switched off, one at a time."""

    two_looks: bool = True
    renamed_aside: bool = True
    aside_read_again: bool = True
    aside_lies_still: bool = True


class File(NamedTuple):
    """A file: its content, and what was known of it `patience` ago. `dealt_with`: as what it was moved aside."""

    content: bytes
    seen: bytes | None = None
    still: bool = False
    dealt_with: bytes = b""


class Drops(NamedTuple):
    """A state. `copying`: (drop, which file it writes to: "box", "aside" or "lost"). `agent`: (phase, what it read)."""

    box: File | None = None
    aside: File | None = None
    dropped: int = 0
    copying: tuple[int, str] | None = None
    agent: tuple[str, bytes] = ("idle", b"")
    admitted: frozenset[bytes] = frozenset()
    stalls: bool = False


def content(drop: int) -> bytes:
    return b'{"name": "j%d", "entrypoint": {"command": ["x"]}}' % drop


@cache
def spec_of(data: bytes) -> JobSpec | None:
    try:
        return parse_spec(data)
    except InvalidInput:
        return None


class DropWorld:
    """The steps under `rules`, with so many `drops` under one name, one after another."""

    def __init__(self, rules: Rules, drops: int, stalls: bool) -> None:
        self.rules = rules
        self.drops = drops
        self.start = Drops(stalls=stalls)

    def good(self, w: Drops) -> bool:
        """All is copied and dealt with, and the last version became a job."""
        ended = w.dropped == self.drops and w.copying is None and w.box is None and w.aside is None
        return ended and content(self.drops - 1) in w.admitted

    def steps(self, w: Drops) -> Iterator[Step[Drops]]:
        yield from self._person(w)
        yield from self._time(w)
        yield from self._agent(w)
        if w.aside is not None:
            yield self._look_aside(w, w.aside)

    def _person(self, w: Drops) -> Iterator[Step[Drops]]:
        if w.copying is None and w.dropped < self.drops:
            opened = File(b"") if w.box is None else w.box._replace(content=b"")
            after = w._replace(box=opened, dropped=w.dropped + 1, copying=(w.dropped, "box"))
            yield Step(f"cp {w.dropped} opens the file", after)
        if w.copying is not None:
            drop, where = w.copying
            whole = content(drop)
            yield Step(f"cp {drop} writes half of it to {where}", self._written(w, where, whole[:20]))
            yield Step(f"cp {drop} finishes in {where}", self._written(w, where, whole)._replace(copying=None))

    def _written(self, w: Drops, where: str, data: bytes) -> Drops:
        if where == "box" and w.box is not None:
            return w._replace(box=w.box._replace(content=data))
        if where == "aside" and w.aside is not None:
            return w._replace(aside=w.aside._replace(content=data))
        return w

    def _time(self, w: Drops) -> Iterator[Step[Drops]]:
        """`inbox_patience` passes since a file was seen; a copy that is not finished has changed it by then."""
        writes = w.copying[1] if w.copying else ""
        if w.box is not None and w.box.seen is not None and not w.box.still:
            waited = w._replace(box=w.box._replace(still=True))
            if writes != "box":
                yield Step("patience with the inbox ends", waited)
            elif w.stalls and w.box.content == w.box.seen:
                yield Step("the copy stalls until patience ends", waited._replace(stalls=False), fault=True)
        if w.aside is not None and w.aside.seen is not None and not w.aside.still and writes != "aside":
            yield Step("patience with the file aside ends", w._replace(aside=w.aside._replace(still=True)))

    def _agent(self, w: Drops) -> Iterator[Step[Drops]]:
        phase, read = w.agent
        match phase:
            case "idle" if w.box is not None:
                yield self._look(w, w.box)
            case "settle":
                yield self._settle(w, read)
            case "take" if w.box is not None and w.box.content == read:
                yield Step("the agent compares: unchanged", w._replace(agent=("move", read)))
            case "take":
                yield Step("the agent compares: changed", w._replace(agent=("idle", b"")))
            case "move" if w.aside is None:
                yield self._move(w, read)

    def _look(self, w: Drops, box: File) -> Step[Drops]:
        if spec_of(box.content) is not None:
            return Step("the agent makes a record of what lies there", w._replace(agent=("settle", box.content)))
        if self.rules.two_looks and not (box.still and box.seen == box.content):
            seen = box._replace(seen=box.content, still=False)
            return Step("the agent sees no JSON, and waits", w._replace(box=seen))
        copied = w.copying is not None and w.copying[1] == "box" and not box.still
        breaks = "a drop was rejected while it was being copied" if copied else ""
        return Step("the agent rejects what lies there", w._replace(agent=("take", box.content)), breaks=breaks)

    def _settle(self, w: Drops, read: bytes) -> Step[Drops]:
        spec = spec_of(read)
        assert spec is not None, "only a spec has a record"
        version = w.box.content.hex() if w.box is not None else None
        decided = settle(record_of_drop("inbox/a.json", read.hex(), NOW, spec), version, NOW)
        if decided is None or decided.status != Status.PENDING:
            return Step("the agent looks again: changed", w._replace(agent=("idle", b"")))
        return self._admitted(w._replace(agent=("take", read)), read, "box")

    def _admitted(self, w: Drops, data: bytes, where: str) -> Step[Drops]:
        breaks = "a dropped version ran twice" if data in w.admitted else ""
        return Step(
            f"{data[10:12].decode()} is admitted from {where}", w._replace(admitted=w.admitted | {data}), breaks=breaks
        )

    def _move(self, w: Drops, read: bytes) -> Step[Drops]:
        copying = w.copying
        if copying is not None and copying[1] == "box":
            copying = (copying[0], "aside" if self.rules.renamed_aside else "lost")
        after = w._replace(box=None, copying=copying, agent=("idle", b""))
        if not self.rules.renamed_aside or w.box is None:
            return Step("the agent unlinks it", after)
        return Step("the agent moves it aside", after._replace(aside=File(w.box.content, dealt_with=read)))

    def _look_aside(self, w: Drops, aside: File) -> Step[Drops]:
        """What was moved aside and has changed since is a drop of its own; what is no spec is rejected for good."""
        if self.rules.aside_lies_still and not (aside.still and aside.seen == aside.content):
            seen = aside._replace(seen=aside.content, still=False)
            return Step("the agent sees the file aside, and waits", w._replace(aside=seen))
        copying = (w.copying[0], "lost") if w.copying and w.copying[1] == "aside" else w.copying
        done = w._replace(aside=None, copying=copying)
        if aside.content == aside.dealt_with or not self.rules.aside_read_again or spec_of(aside.content) is None:
            return Step("the file aside goes", done)
        return self._admitted(done, aside.content, "aside")


def explored(rules: Rules, drops: int, stalls: bool) -> Found:
    """What every interleaving leads to."""
    world = DropWorld(rules, drops, stalls)
    return explore(world.start, world.steps, world.good)
