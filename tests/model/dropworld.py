"""A small world for the inbox on local files, into which a person copies: `cp` is not atomic and takes no lock.

What is parsed and decided is `parse_spec`, `record_of_drop` and `admit_or_withdraw`; the rest mirrors `Admission` and
the store's
`withdraw`, which compares the content and then renames, while the `cp` may go on: first to a name that is given once,
under which the drop becomes a job, then aside. A version is the content; a record's id is made of it, of the name, and
of the time in the name or, without one, of the file. Other rights change the file's time. The agent may die. A copy
that is not finished changes within `inbox_patience`, unless it stalls, once, in the inbox: one that stalled again in
the file moved aside would be lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from fray_coordinator.protocol.job_identity import admit_or_withdraw, record_of_drop
from fray_coordinator.protocol.transitions import Status
from fray_layouts.errors import InvalidInput
from fray_layouts.spec import JobSpec
from fray_layouts.spec_parsing import parse_spec
from tests.model.essence import NOW
from tests.model.explorer import Found, Step, explore


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that can be switched off, one at a time."""

    two_looks: bool = True
    named_first: bool = True
    renamed_aside: bool = True
    aside_read_again: bool = True
    aside_lies_still: bool = True


class File(NamedTuple):
    """A file: its content, and what was known of it `patience` ago.

    `time`: in its name, or its own. `dealt_with`: as what it was moved aside.
    """

    content: bytes
    time: int = 0
    seen: bytes | None = None
    still: bool = False
    dealt_with: bytes = b""


class Agent(NamedTuple):
    """What the agent is about to do, with which file, as it read it."""

    phase: str = "idle"
    where: str = ""
    read: File = File(b"")


class Drops(NamedTuple):
    """A state. `copying`: (drop, which file it writes to: "box", "taken", "aside" or "lost").

    `box`: as it was dropped; `taken`: under its own name. `admitted`: (content, time) of the records.
    """

    box: File | None = None
    taken: File | None = None
    aside: File | None = None
    dropped: int = 0
    names: int = 0
    copying: tuple[int, str] | None = None
    agent: Agent = Agent()
    admitted: frozenset[tuple[bytes, int]] = frozenset()
    faults: frozenset[str] = frozenset()

    def file(self, where: str) -> File | None:
        return {"box": self.box, "taken": self.taken, "aside": self.aside}.get(where)

    def having(self, where: str, file: File | None) -> Drops:
        named: dict[str, Any] = {where: file}
        return self._replace(**named)


def content(drop: int) -> bytes:
    return b'{"name": "j%d", "entrypoint": {"command": ["x"]}}' % drop


@cache
def spec_of(data: bytes) -> JobSpec | None:
    try:
        return parse_spec(data)
    except InvalidInput:
        return None


class DropWorld:
    """The steps under `rules`, with `drops` drops under one name, one after another."""

    def __init__(self, rules: Rules, drops: int, *faults: str) -> None:
        self.rules = rules
        self.drops = drops
        self.start = Drops(faults=frozenset(faults))

    def good(self, w: Drops) -> bool:
        """All drops are copied and processed, and the last version became a job."""
        ended = w.dropped == self.drops and w.copying is None and w.box is w.taken is w.aside is None
        return ended and content(self.drops - 1) in {data for data, _ in w.admitted}

    def steps(self, w: Drops) -> Iterator[Step[Drops]]:
        yield from self._person(w)
        for where in ("box", "taken", "aside"):
            yield from self._time(w, where)
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
        if w.box is not None and "chmod" in w.faults:
            changed = w._replace(box=w.box._replace(time=-1), faults=w.faults - {"chmod"})
            yield Step("the file gets other rights", changed, fault=True)

    def _written(self, w: Drops, where: str, data: bytes) -> Drops:
        file = w.file(where)
        return w.having(where, file._replace(content=data)) if file is not None else w

    def _time(self, w: Drops, where: str) -> Iterator[Step[Drops]]:
        """`inbox_patience` passes since a file was seen; a copy that is not finished has changed it by then."""
        file = w.file(where)
        if file is None or file.seen is None or file.still:
            return
        waited = w.having(where, file._replace(still=True))
        if w.copying is None or w.copying[1] != where:
            yield Step(f"patience with the file in {where} ends", waited)
        elif where != "aside" and "stall" in w.faults and file.content == file.seen:
            yield Step("the copy stalls until patience ends", waited._replace(faults=w.faults - {"stall"}), fault=True)

    def _agent(self, w: Drops) -> Iterator[Step[Drops]]:
        phase, where, read = w.agent
        lies = w.file(where)
        unchanged = lies is not None and lies.content == read.content
        if phase != "idle" and "death" in w.faults:
            yield Step("the agent dies", w._replace(agent=Agent(), faults=w.faults - {"death"}), fault=True)
        match phase:
            case "idle" if w.taken is not None:
                yield self._look(w, "taken", w.taken)
            case "idle" if w.box is not None:
                yield self._look(w, "box", w.box)
            case "settle":
                yield self._settle(w, where, read, lies)
            case "take" | "name" if not unchanged:
                yield Step("the agent compares: changed", w._replace(agent=Agent()))
            case "take":
                yield Step("the agent compares: unchanged", w._replace(agent=Agent("move", where, read)))
            case "name":
                yield Step("the agent compares: unchanged", w._replace(agent=Agent("rename", where, read)))
            case "rename" if lies is not None:
                yield self._rename(w, lies)
            case "move" if w.aside is None:
                yield self._move(w, where, read, lies)

    def _look(self, w: Drops, where: str, file: File) -> Step[Drops]:
        if spec_of(file.content) is not None:
            phase = "name" if self.rules.named_first and where == "box" else "settle"
            return Step(f"the agent reads what lies in {where}", w._replace(agent=Agent(phase, where, file)))
        if self.rules.two_looks and not (file.still and file.seen == file.content):
            seen = file._replace(seen=file.content, still=False)
            return Step(f"the agent sees no JSON in {where}, and waits", w.having(where, seen))
        copied = w.copying is not None and w.copying[1] == where and not file.still
        breaks = "a drop was rejected while it was being copied" if copied else ""
        return Step("the agent rejects what lies there", w._replace(agent=Agent("take", where, file)), breaks=breaks)

    def _rename(self, w: Drops, lies: File) -> Step[Drops]:
        """Rename the file as it is now, even if something else was read."""
        copying = (w.copying[0], "taken") if w.copying and w.copying[1] == "box" else w.copying
        taken = File(lies.content, w.names + 1)
        after = w._replace(box=None, taken=taken, names=w.names + 1, copying=copying, agent=Agent())
        return Step("the agent gives it a name of its own", after)

    def _settle(self, w: Drops, where: str, read: File, lies: File | None) -> Step[Drops]:
        spec = spec_of(read.content)
        assert spec is not None, "only a spec has a record"
        version = lies.content.hex() if lies is not None else None
        decided = admit_or_withdraw(record_of_drop("inbox/a.json", read.content.hex(), NOW, spec), version, NOW)
        if decided is None or decided.status != Status.PENDING:
            return Step("the agent looks again: changed", w._replace(agent=Agent()))
        return self._admitted(w._replace(agent=Agent("take", where, read)), read, where)

    def _admitted(self, w: Drops, file: File, where: str) -> Step[Drops]:
        record = (file.content, file.time)
        twice = record not in w.admitted and file.content in {data for data, _ in w.admitted}
        breaks = "a dropped version ran twice" if twice else ""
        after = w._replace(admitted=w.admitted | {record})
        return Step(f"{file.content[10:12].decode()} is admitted from {where}", after, breaks=breaks)

    def _move(self, w: Drops, where: str, read: File, lies: File | None) -> Step[Drops]:
        copying = w.copying
        if copying is not None and copying[1] == where:
            copying = (copying[0], "aside" if self.rules.renamed_aside else "lost")
        after = w.having(where, None)._replace(copying=copying, agent=Agent())
        if not self.rules.renamed_aside or lies is None:
            return Step("the agent unlinks it", after)
        aside = File(lies.content, lies.time, dealt_with=read.content)
        return Step("the agent moves it aside", after._replace(aside=aside))

    def _look_aside(self, w: Drops, aside: File) -> Step[Drops]:
        """Process a file that was moved aside: if it has changed since, it is a drop of its own.

        Otherwise it is rejected.
        """
        if self.rules.aside_lies_still and not (aside.still and aside.seen == aside.content):
            seen = aside._replace(seen=aside.content, still=False)
            return Step("the agent sees the file aside, and waits", w._replace(aside=seen))
        copying = (w.copying[0], "lost") if w.copying and w.copying[1] == "aside" else w.copying
        done = w._replace(aside=None, copying=copying)
        if aside.content == aside.dealt_with or not self.rules.aside_read_again or spec_of(aside.content) is None:
            return Step("the file aside goes", done)
        return self._admitted(done, aside._replace(time=-2), "aside")


def explored(rules: Rules, drops: int, *faults: str) -> Found:
    """Explore every interleaving."""
    world = DropWorld(rules, drops, *faults)
    return explore(world.start, world.steps, world.good)
