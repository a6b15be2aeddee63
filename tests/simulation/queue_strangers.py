"""Users of the bucket who leave malformed objects in a queue's folders, copy objects there, and change their times.

These objects harm nothing else, and stay.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fray_coordinator.store.interface import ABSENT, ANY, AttemptFailed, Object
from fray_layouts.queue_keys import QueueKeys, SegmentName
from fray_layouts.queue_records import decode_segment
from tests.simulation.loop import Participant
from tests.support.malformed_objects import odd_body

if TYPE_CHECKING:
    from tests.simulation.queue_watching import QueueWatch

HEADER = b'{"encoding":"pickle","sizes":[1]}\n1'


class QueueStrangers:
    """Users of the bucket other than Fray.

    Attributes:
        odd: the objects that they left, by key, which nobody may delete.
        owner: the participant that sends their writes.
    """

    def __init__(self, world: QueueWatch, names: QueueKeys) -> None:
        self.odd: dict[str, bytes] = {}
        self._world = world
        self._names = names
        self.owner = Participant("stranger")
        self._draw = random.Random(f"queue strangers {world.seed_number}")

    def act(self) -> None:
        """Do one of their actions."""
        acts = [self.leave_segment, self.leave_lease, self.leave_name, self.copy, self.change_times, self.spoil_bell]
        self._draw.choice(acts)()

    def leave_segment(self) -> None:
        """Leave wrong bytes under the name of a segment: no segment, or that of another name, such as half a copy."""
        living = [found.data for _, found in self._segments()]
        body = self._draw.choice([*living, b"", odd_body(self._draw, HEADER)])
        self._leave(self._names.segment(self._name(999)), body[: self._draw.randrange(len(body) + 1)])

    def leave_lease(self) -> None:
        """Leave a malformed lease without a segment."""
        self._leave(self._names.lease(self._name(1)), b"[" + odd_body(self._draw, b"{}"))

    def leave_name(self) -> None:
        """Leave an object with a name that Fray never gives."""
        kinds = [self._names.segments, self._names.finished, self._names.all_large, f"{self._names.segments}00000/"]
        folder = self._draw.choice(kinds)
        self._leave(f"{folder}{self._draw.choice(['', 'x', 'copy of '])}{self._draw.randrange(100)}/", b"")

    def copy(self) -> None:
        """Copy a segment to a later name: its items come twice."""
        if segments := [(key, found) for key, found in self._segments() if not decode_segment(found.data)[0].large]:
            key, found = self._draw.choice(segments)
            items = SegmentName.items_of(key)
            self._put(self._names.segment(self._name(items)), found.data, "copied segment")

    def change_times(self) -> None:
        """Change all times, like chmod -R, cp -a or a restored backup: everything looks newly written."""
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
        """The name of a segment, from now or a while ago."""
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
            storage.perform(key, lambda: put, self.owner, storage.loop.now)
        except AttemptFailed:
            self.odd.pop(key, None)
            return
        self._count(what)

    def _count(self, what: str) -> None:
        self._world.storage.faults[what] += 1
        self._world.note("stranger", what)
