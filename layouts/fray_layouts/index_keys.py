"""The keys of the derived indexes: entries for pending jobs, whose order is the schedule, and for children."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import ClassVar

from fray_layouts.bounds import MAX_PRIORITY
from fray_layouts.key_encoding import (
    ATTEMPT_PATTERN,
    BASE32_DIGITS,
    MAX_KEY_PART_BYTES,
    NUMBER_PATTERN,
    decode_time,
    encode_time,
    is_id,
    is_pool,
)
from fray_layouts.records import Resources


@dataclass(frozen=True, slots=True)
class Shape:
    """The resources of a pending job that an agent must know to see from the key alone whether the job fits.

    device_share: thousandths of one shared device; then `device_count` is 0.
    """

    cpu: int
    memory: int
    disk: int
    device: str
    device_count: int
    on_demand: bool
    actor: bool = False
    packages: bool = False
    image: bool = False
    device_share: int = 0

    def resources(self) -> Resources:
        return Resources(
            cpu=self.cpu, memory=self.memory, disk=self.disk, device=self.device, device_count=self.device_count
        )


_SHAPE_PART = (
    rf"c{NUMBER_PATTERN}m{NUMBER_PATTERN}d{NUMBER_PATTERN}(o?)(a?)(e?)(i?)"
    rf"(?:g(?:{NUMBER_PATTERN}|(0\.[0-9]{{0,2}}[1-9]))([A-Za-z][A-Za-z0-9._-]*))?"
)
_PENDING_KEY = re.compile(
    rf"pending/([^/]+)/([0-9]{{3}})([{BASE32_DIGITS}]{{9}})-([^/~]+)~{ATTEMPT_PATTERN}~{_SHAPE_PART}(?:~([0-9a-f]{{6}}))?"
)
_FLAGS = ("on_demand", "actor", "packages", "image")
"""The parts of a shape that are one letter each, in their order in the key."""
_MIB = 1024 * 1024
"""The unit of memory and disk in keys, in bytes."""


def _order(priority: int, time: float) -> str:
    """Priority and time of submission as text; the job to run first sorts first."""
    return f"{MAX_PRIORITY - priority:03d}{encode_time(time)}"


FAMILY_DIGITS = 6
"""Hexadecimal digits that stand for a family: two of 16 million families have the same ones. Then both go before an
owner that waits for one of them, which delays the owner."""


def family_digits(root: str) -> str:
    """The digits that stand for the family of a job: for everything that was launched below it. root: the job's id."""
    return hashlib.sha256(root.encode()).hexdigest()[:FAMILY_DIGITS]


@dataclass(frozen=True, slots=True)
class PendingKey:
    """`pending/<pool>/<order>-<job_id>~<attempt>~<shape>[~<family>]`: the listing order is the schedule.

    `order` is the inverted priority and the submission time. It depends only on the record and is the same for every
    attempt. Memory and disk in the shape are MiB, rounded down, so that two jobs of 2 GB fit into 4 GB. The entry of a
    job with ancestors ends in the digits of its family.
    """

    pool: str
    priority: int
    time: float
    job: str
    attempt: int
    shape: Shape
    below: str = ""

    area: ClassVar[str] = "pending/"

    @property
    def family(self) -> str:
        """The digits of the job's family. A job without ancestors is the root of its own."""
        return self.below or family_digits(self.job)

    @property
    def order(self) -> tuple[int, float, str]:
        """Its place in the total order in which jobs and owners of placements get room."""
        return -self.priority, self.time, self.job

    def key(self) -> str:
        s = self.shape
        shape = f"c{s.cpu}m{s.memory // _MIB}d{s.disk // _MIB}"
        shape += "o" * s.on_demand + "a" * s.actor + "e" * s.packages + "i" * s.image
        if s.device:
            shape += f"g{s.device_count or f'{s.device_share / 1000:g}'}{s.device}"
        below = f"~{self.below}" if self.below else ""
        return f"{PendingKey.before(self.pool, self.priority, self.time)}-{self.job}~{self.attempt}~{shape}{below}"

    @staticmethod
    def before(pool: str, priority: int, time: float) -> str:
        """The text that sorts directly before the entries of this priority submitted at `time` or later."""
        return f"{PendingKey.prefix(pool)}{_order(priority, time)}"

    @staticmethod
    def prefix(pool: str) -> str:
        return f"pending/{pool}/"

    @staticmethod
    def behind_priority_of(key: str) -> str:
        """The text that sorts directly after all of the pool's entries with the same priority as this key."""
        folder, _, name = key.rpartition("/")
        return f"{folder}/{name[:3]}~"

    @staticmethod
    def shape_text(key: str) -> str:
        """The shape in a key, as text; two keys of one shape have equal text."""
        return key.rpartition("/")[2].partition("~")[2].partition("~")[2].partition("~")[0]

    @staticmethod
    def parse(key: str) -> PendingKey | None:
        """The entry that a key names; None for any other key."""
        found = _PENDING_KEY.fullmatch(key)
        if found is None:
            return None
        pool, order, time, job, attempt, cpu, memory, disk, *flags, count, part, device, below = found.groups()
        if not is_pool(pool) or not is_id(job) or len(key) - key.rindex("/") > MAX_KEY_PART_BYTES + 1:
            return None
        return PendingKey(
            pool=pool,
            priority=MAX_PRIORITY - int(order),
            time=decode_time(time),
            job=job,
            attempt=int(attempt),
            shape=Shape(
                cpu=int(cpu),
                memory=int(memory) * _MIB,
                disk=int(disk) * _MIB,
                device=device or "",
                device_count=int(count or 0),
                device_share=round(float(part or 0) * 1000),
                **dict(zip(_FLAGS, map(bool, flags), strict=True)),
            ),
            below=below or "",
        )


_PLACEMENT_KEY = re.compile(rf"placements/([^/]+)/([0-9]{{3}})([{BASE32_DIGITS}]{{9}})-([^/~]+)~(gang|reservation)")


@dataclass(frozen=True, slots=True)
class PlacementKey:
    """`placements/<pool>/<order>-<owner>~<kind>`: the listing order is the order in which owners get room.

    `order` is that of `PendingKey`. `kind` says where the owner's record is: "gang" (a job) or "reservation". There is
    no attempt in the key: the entry stays until the owner has ended.
    """

    pool: str
    priority: int
    time: float
    owner: str
    kind: str

    area: ClassVar[str] = "placements/"
    bell: ClassVar[str] = "placements/bell"

    def key(self) -> str:
        return f"{PlacementKey.prefix(self.pool)}{_order(self.priority, self.time)}-{self.owner}~{self.kind}"

    @staticmethod
    def prefix(pool: str) -> str:
        return f"placements/{pool}/"

    @staticmethod
    def parse(key: str) -> PlacementKey | None:
        """The entry that a key names; None for any other key."""
        found = _PLACEMENT_KEY.fullmatch(key)
        if found is None or not is_pool(found[1]) or not is_id(found[4]):
            return None
        if len(key) - key.rindex("/") > MAX_KEY_PART_BYTES + 1:
            return None
        return PlacementKey(found[1], MAX_PRIORITY - int(found[2]), decode_time(found[3]), found[4], found[5])


_CHILD_KEY = re.compile(rf"children/([^/]+)/{ATTEMPT_PATTERN}/([^/]+)")


@dataclass(frozen=True, slots=True)
class ChildKey:
    """`children/<parent>/<attempt>/<child>`: a child that the parent's attempt launched."""

    parent: str
    attempt: int
    child: str

    area: ClassVar[str] = "children/"

    def key(self) -> str:
        return f"{ChildKey.prefix(self.parent)}{self.attempt}/{self.child}"

    @staticmethod
    def prefix(parent: str) -> str:
        return f"children/{parent}/"

    @staticmethod
    def parse(key: str) -> ChildKey | None:
        found = _CHILD_KEY.fullmatch(key)
        if found is None or not is_id(found[1]) or not is_id(found[3]):
            return None
        return ChildKey(found[1], int(found[2]), found[3])
