"""The keys of queues and of the tasks of worker pools; `object_keys` has all other keys."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from fray_layouts.errors import InvalidInput
from fray_layouts.key_encoding import (
    BASE32_DIGITS,
    NUMBER_PATTERN,
    RANDOM_DIGITS,
    TIME_DIGITS,
    decode_time,
    encode_time,
    is_namespace,
)

QUEUE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_SEGMENT = re.compile(
    rf"([{BASE32_DIGITS}]{{9}})([{BASE32_DIGITS}]{{3}})([{BASE32_DIGITS}]{{6}})-([1-9][0-9]{{0,5}})", re.ASCII
)
_LARGE = re.compile(rf"({_SEGMENT.pattern})~{NUMBER_PATTERN}", re.ASCII)
_PLACE = re.compile(rf"({_SEGMENT.pattern})/{NUMBER_PATTERN}", re.ASCII)
_OUTCOME = re.compile(
    rf"([{BASE32_DIGITS}]{{5}})/([{BASE32_DIGITS}]{{2}})/(\1\2[{BASE32_DIGITS}]{{2}})[{BASE32_DIGITS}]{{6}}"
)
_TIMED = re.compile(rf"[{BASE32_DIGITS}]{{{TIME_DIGITS + RANDOM_DIGITS}}}", re.ASCII)
CONSUMER_DIGITS = 8
"""Base-32 digits of a consumer, with which the owners of all its claims begin."""
_CONSUMER = re.compile(rf"[{BASE32_DIGITS}]{{{CONSUMER_DIGITS}}}", re.ASCII)
_LEASE = "~lease"
_IN_FOLDERS = re.compile(
    rf"([{BASE32_DIGITS}]{{5}})/([{BASE32_DIGITS}]{{2}})/(\1\2[{BASE32_DIGITS}]{{11}}-[1-9][0-9]{{0,5}})({_LEASE})?",
    re.ASCII,
)
_DEAD = "dead-letters/"
_OWNER = re.compile(rf"(queues|tasks)/([^/]+)/({QUEUE_NAME.pattern})~([1-9][0-9]{{0,15}})/({_DEAD})?")


def owner_of(key: str) -> tuple[str, str, int] | None:
    """(namespace, name, incarnation) of the queue or pool that a key under `queues/` or `tasks/` belongs to."""
    found = _owned(key)
    return (found[2], found[3], int(found[4])) if found else None


def _written_at(name: str) -> float | None:
    """The time in a name that is a time and random digits; None for any other text."""
    return decode_time(name[:TIME_DIGITS]) if _TIMED.fullmatch(name) else None


def _owned(key: str) -> re.Match[str] | None:
    found = _OWNER.match(key)
    return found if found and is_namespace(found[2]) else None


@dataclass(frozen=True, slots=True)
class SegmentName:
    """The name of a segment, `<time><order><token>-<items>`; text order is the order of the queue.

    Attributes:
        time: when it was named, storage's clock, to the millisecond.
        order: distinguishes segments that one producer named in the same millisecond.
        token: six base-32 digits that distinguish producers.
        items: number of items in the segment.
    """

    time: float
    order: int
    token: str
    items: int

    def __str__(self) -> str:
        order = encode_time(self.order / 1000)[-3:]
        return f"{encode_time(self.time)}{order}{self.token}-{self.items}"

    def places(self) -> list[ItemPlace]:
        """The places of its items in the queue, in order."""
        segment = str(self)
        return [ItemPlace(segment, item) for item in range(self.items)]

    @staticmethod
    def parse(text: str) -> SegmentName | None:
        """The parts of a segment's name; None for any other text."""
        found = _SEGMENT.fullmatch(text)
        if found is None:
            return None
        time, order, token, items = found.groups()
        return SegmentName(decode_time(time), round(decode_time(order) * 1000), token, int(items))

    @staticmethod
    def items_of(text: str) -> int:
        return int(text.rpartition("-")[2])

    @staticmethod
    def time_of(text: str) -> float:
        return decode_time(text[:TIME_DIGITS])


class ItemPlace(NamedTuple):
    """The place of an item in its queue: its segment, and its number in the segment, counted from 0."""

    segment: str
    item: int

    def __str__(self) -> str:
        return f"{self.segment}/{self.item}"

    @staticmethod
    def parse(text: str) -> ItemPlace | None:
        """The place that `str` wrote; None for any other text."""
        found = _PLACE.fullmatch(text)
        place = ItemPlace(found[1], int(found.groups()[-1])) if found else None
        return place if place and place.item < SegmentName.items_of(place.segment) else None


MAX_ORDERS = 32**3
"""Names that one producer can make in one millisecond: `order` has three base-32 digits."""


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """The keys of one queue: everything under `prefix`.

    The prefix is `queues/<namespace>/<name>~<incarnation>/` in a cluster, and "" in a root that holds only this queue.
    Each segment lies in a folder for its second, inside a folder for its quarter of an hour, so that no local folder
    grows large.
    """

    prefix: str = ""

    area: ClassVar[str] = "queues/"

    @staticmethod
    def of(namespace: str, name: str, incarnation: int) -> QueueKeys:
        return QueueKeys(f"{QueueKeys.folder(namespace)}{name}~{incarnation}/")

    @staticmethod
    def around(key: str) -> QueueKeys | None:
        """The keys of the queue that a key under `queues/` belongs to; None if there is none."""
        found = _owned(key)
        return QueueKeys(found[0]) if found and found[1] == "queues" else None

    @staticmethod
    def folder(namespace: str) -> str:
        return f"queues/{namespace}/"

    @staticmethod
    def checked(name: str) -> str:
        """`name` as the name of a queue. Raises InvalidInput if it cannot be one."""
        if not QUEUE_NAME.fullmatch(name):
            raise InvalidInput(
                "queue name", name, "use at most 64 letters, digits, '-' and '_', no slashes and no dots"
            )
        return name

    @property
    def settings(self) -> str:
        return f"{self.prefix}queue.json"

    @property
    def doorbell(self) -> str:
        return f"{self.prefix}doorbell.json"

    @property
    def segments(self) -> str:
        return f"{self.prefix}segments/"

    @property
    def all_large(self) -> str:
        return f"{self.prefix}large/"

    @property
    def finished(self) -> str:
        return f"{self.prefix}finished/"

    @property
    def receipts(self) -> str:
        return f"{self.prefix}receipts/"

    @property
    def dead_letters(self) -> QueueKeys:
        """The keys of the dead letters, which form a queue like any other."""
        return QueueKeys(f"{self.prefix}{_DEAD}")

    def segment(self, segment: str) -> str:
        return f"{self.prefix}segments/{segment[:5]}/{segment[5:7]}/{segment}"

    def lease(self, segment: str) -> str:
        """The key of a segment's lease; it sorts directly after the segment."""
        return f"{self.prefix}segments/{segment[:5]}/{segment[5:7]}/{segment}{_LEASE}"

    def large(self, segment: str, item: int) -> str:
        """The key of an item that is stored as an object of its own."""
        return f"{self.all_large}{segment[:5]}/{segment}~{item}"

    def finished_at(self, time: float, token: str) -> str:
        """The key of a list of finished segments, written at `time` (storage's clock); text order is time order."""
        return f"{self.finished}{encode_time(time)}{token[:RANDOM_DIGITS]}"

    def finished_time(self, key: str) -> float | None:
        """When an object under `finished` was written; None for any other key."""
        return _written_at(key.removeprefix(self.finished))

    def receipts_of(self, owner: str) -> str | None:
        """The prefix of the receipts of the consumer that made this claim; None if no consumer's claim looks like that.

        So whoever looks for a receipt reads only those of one consumer, however many others there are.
        """
        consumer = owner[:CONSUMER_DIGITS]
        return f"{self.receipts}{consumer}/" if _CONSUMER.fullmatch(consumer) else None

    def receipt_at(self, consumer: str, time: float, token: str) -> str:
        """The key of a receipt that a consumer writes at `time` (storage's clock); text order is time order."""
        return f"{self.receipts}{consumer}/{encode_time(time)}{token[:RANDOM_DIGITS]}"

    def receipt_time(self, key: str) -> float | None:
        """When a receipt was written; None for any other key."""
        consumer, _, name = key.removeprefix(self.receipts).partition("/")
        return _written_at(name) if key.startswith(self.receipts) and _CONSUMER.fullmatch(consumer) else None

    def parse(self, key: str) -> tuple[str, bool] | None:
        """(segment, whether this is its lease) of a key under `segments`; None for any other key."""
        segments = f"{self.prefix}segments/"
        found = _IN_FOLDERS.fullmatch(key, len(segments)) if key.startswith(segments) else None
        return (found[3], found[4] is not None) if found else None

    def parse_large(self, key: str) -> tuple[str, int] | None:
        """(segment, item) of a key under `all_large`; None for any other key."""
        found = _LARGE.fullmatch(key.rpartition("/")[2])
        parsed = (found[1], int(found.groups()[-1])) if found else None
        return parsed if parsed and self.large(*parsed) == key else None


@dataclass(frozen=True, slots=True)
class TaskKeys:
    """The keys of one worker pool's tasks, `tasks/<namespace>/<name>~<incarnation>/...`, except those of its queue."""

    prefix: str
    area: ClassVar[str] = "tasks/"

    @staticmethod
    def of(namespace: str, name: str, incarnation: int) -> TaskKeys:
        return TaskKeys(f"tasks/{namespace}/{name}~{incarnation}/")

    @staticmethod
    def around(key: str) -> TaskKeys | None:
        """The keys of the pool that a key under `tasks/` belongs to; None if there is none."""
        found = _owned(key)
        return TaskKeys(found[0].removesuffix(_DEAD)) if found and found[1] == "tasks" else None

    @property
    def pool(self) -> str:
        return f"{self.prefix}pool.json"

    @property
    def outcomes(self) -> str:
        return f"{self.prefix}outcomes/"

    @property
    def files(self) -> str:
        """The prefix of files that the tasks themselves write."""
        return f"{self.prefix}files"

    def outcome(self, time: float, token: str) -> str:
        """The key of a batch of outcomes written at `time` (storage's clock); text order is time order."""
        name = encode_time(time)
        return f"{self.outcomes}{name[:5]}/{name[5:7]}/{name}{token[:RANDOM_DIGITS]}"

    def outcomes_after(self, time: float) -> str:
        """The key that sorts directly before all outcomes written at `time` or later."""
        name = encode_time(time)
        return f"{self.outcomes}{name[:5]}/{name[5:7]}/{name}"

    def time_of(self, key: str) -> float | None:
        """When the batch of this name was written; None for any other key."""
        found = _OUTCOME.fullmatch(key.removeprefix(self.outcomes))
        return decode_time(found[3]) if found and key.startswith(self.outcomes) else None

    def object(self, digest: str) -> str:
        """The key of an object that tasks share; its name is the digest of its content."""
        return f"{self.prefix}objects/{digest}"
