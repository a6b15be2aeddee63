"""Users of the bucket who leave odd objects in a queue's folders, copy what lies there, and change its times.

What they leave harms nobody else, and stays.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fray_coordinator.store.interface import ABSENT, ANY, AttemptFailed, Object
from fray_layouts.queue_keys import QueueKeys, SegmentName
from tests.simulation.loop import Participant
from tests.support.malformed_objects import odd_body

if TYPE_CHECKING:
    from tests.simulation.queue_watching import QueueWatch

HEADER = b'{"encoding":"pickle","sizes":[1]}\n1'


class QueueStrangers:
    """Whoever is not Fray.

    Attributes:
        odd: what they left, by key, which nobody may delete.
        owner: who sends what they write.
    """

    def __init__(self, world: QueueWatch, names: QueueKeys) -> None:
        self.odd: dict[str, bytes] = {}
        self._world = world
        self._names = names
        self.owner = Participant("stranger")
        self._draw = random.Random(f"queue strangers {world.seed_number}")

    def act(self) -> None:
        """One thing of those that they do."""
        acts = [self.leave_segment, self.leave_lease, self.leave_name, self.copy, self.change_times, self.spoil_bell]
        self._draw.choice(acts)()

    def leave_segment(self) -> None:
        """Bytes that are no segment, or that of another name, under the name of one: half a copy, say."""
        living = [found.data for _, found in self._segments()]
        body = self._draw.choice([*living, b"", odd_body(self._draw, HEADER)])
        self._leave(self._names.segment(self._name(999)), body[: self._draw.randrange(len(body) + 1)])

    def leave_lease(self) -> None:
        """A lease of nothing that is none."""
        self._leave(self._names.lease(self._name(1)), b"[" + odd_body(self._draw, b"{}"))

    def leave_name(self) -> None:
        """What has no name that Fray gives."""
        kinds = [self._names.segments, self._names.finished, self._names.all_large, f"{self._names.segments}00000/"]
        folder = self._draw.choice(kinds)
        self._leave(f"{folder}{self._draw.choice(['', 'x', 'copy of '])}{self._draw.randrange(100)}/", b"")

    def copy(self) -> None:
        """A segment is there once more, under a later name: its items come twice."""
        if segments := self._segments():
            key, found = self._draw.choice(segments)
            items = SegmentName.items_of(key)
            self._put(self._names.segment(self._name(items)), found.data, "copied segment")

    def change_times(self) -> None:
        """chmod -R, cp -a, a backup that is restored: everything looks as if it had been written now."""
        contents, now = self._world.storage.contents, self._world.storage.clock.wall()
        for key in list(contents.keys(self._names.prefix, None)):
            contents.objects[key] = replace(contents.objects[key], updated=now)
        self._count("changed times")

    def spoil_bell(self) -> None:
        self._put(self._names.doorbell, odd_body(self._draw, b'{"rung_at":1.0}'), "spoilt bell", replaces=True)

    def _segments(self) -> list[tuple[str, Object]]:
        contents = self._world.storage.contents
        keys = [key for key in contents.keys(self._names.segments, None) if key not in self.odd]
        return [(key, contents.objects[key]) for key in keys if (found := self._names.parse(key)) and not found[1]]

    def _name(self, items: int) -> str:
        """Of a segment, now or a while ago."""
        time = self._world.storage.clock.wall() - self._draw.choice([0.0, 5.0, 100.0])
        return str(SegmentName(time, 0, f"zzzz{self._draw.randrange(10, 100)}", items))

    def _leave(self, key: str, body: bytes) -> None:
        if key not in self._world.storage.contents.objects:
            self.odd[key] = body
            self._put(key, body, "odd object")

    def _put(self, key: str, body: bytes, what: str, replaces: bool = False) -> None:
        storage = self._world.storage
        put = storage.backend.put(key, body, ANY if replaces else ABSENT)
        try:
            storage.perform(key, lambda: put, self.owner)
        except AttemptFailed:
            self.odd.pop(key, None)
            return
        self._count(what)

    def _count(self, what: str) -> None:
        self._world.storage.faults[what] += 1
        self._world.note("stranger", what)
