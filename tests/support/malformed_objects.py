"""A grammar of malformed objects, as people, foreign programs and interrupted copies leave them under a root.

It has every kind of record with every field replaced by every kind of wrong value, and with two fields that each have a
right value and contradict one another; bodies that were cut off, are no text, or hold something else; records under
another record's name; folder markers and foreign files. All choices come from the given generator, so one seed gives
one object.
"""

from __future__ import annotations

import json
import random
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

from fray_layouts import object_keys
from fray_layouts.index_keys import ChildKey, PlacementKey
from fray_layouts.object_keys import (
    AgentKeys,
    ArchiveKeys,
    CoordinatorKeys,
    EndpointKey,
    JobKeys,
    MachineKeys,
    NameKeys,
    PoolKeys,
    ReservationKeys,
    SecretKeys,
)
from fray_layouts.queue_keys import QueueKeys, TaskKeys
from fray_layouts.queue_records import FinishedSegments, PoolRecord, QueueLease, QueueRecord, Receipt, SegmentHeader
from fray_layouts.records import (
    AgentPoolRecord,
    AgentRecord,
    ChildEntry,
    ClusterSettings,
    Doorbell,
    EndpointRecord,
    JobRecord,
    MachineRecord,
    NameRecord,
    OutputManifest,
    PendingEntry,
    PlacementEntry,
    PoolPlan,
    ReconcilerRecord,
    ReplicaExit,
    ReservationRecord,
    RpcSecrets,
    ScalerRecord,
)
from fray_layouts.spec import JobSpec
from fray_layouts.work_keys import InboxKeys, WorkKeys

LONG = 20_000
"""Characters of a long text; limited because a machine runs very many of these tests."""

HUGE = 1_000_000
"""Bytes of a huge body."""

DEPTHS = (64, 600, 60_000)
"""Levels of nested values: few enough, too many for Python's recursion in some places, too many everywhere."""

FOLDERS = (
    "",
    "jobs/",
    "agents/",
    "inbox/",
    "blobs/",
    "work/",
    "pending/",
    "pending/default/",
    "children/",
    "names/",
    "actors/",
    "pools/",
    "pools/default/",
    "coordinator/",
    "inbox/rejected/",
    "inbox/aside/",
    "queues/",
    "tasks/",
    "reservations/",
    "placements/default/",
    "machines/default/",
    "aside/",
    "archive/",
    "archive/own/",
)

FOREIGN = (
    ".DS_Store",
    "desktop.ini",
    "README.md",
    "notes.json",
    "x.json.tmp",
    "._x.json",
    "x.json.gstmp",
    "x",
    "~",
    " ",
)

_USUAL: dict[str, Sequence[Any]] = {
    "status": ("pending", "running", "running", "succeeded", "unadmitted", "haunted"),
    "state": ("live", "live", "dead", "left", "held", "haunted"),
    "name": ("quick",),
    "entrypoint": ({"command": ["x"]}, {"callable": {"pickle": "eA=="}}, {"callable": {"blob": "blobs/2001-01/x"}}),
}
"""Right values for some fields, so that an object has only one wrong value."""

_TEXTS = (
    "haunted",
    "",
    "../../etc/passwd",
    "a/b//c",
    ".",
    "..",
    "a\nb",
    "\x1b[2J\u202etxt",
    "nul\x00",
    "é" * 300,
    "~",
    "%2e",
)
_STEMS = (
    "stranger",
    "copy of it",
    "a\nb",
    "\x1b[2J\u202e",
    "x" * 245,
    "..",
    ".hidden",
    "é",
    "a~b",
    "-",
    " ",
    "A" * 400,
)


@dataclass(frozen=True, slots=True)
class Odd:
    """A malformed or misplaced object."""

    key: str
    data: bytes


# --- values


def fragments(draw: random.Random) -> bytes:
    """JSON of values that are hardly ever right for a field."""
    deep = draw.choice(DEPTHS)
    written: Callable[[], bytes] = draw.choice(
        [
            lambda: draw.choice([b"null", b"true", b"false", b"[]", b"{}", b'""', b"[null]", b'{"":null}']),
            lambda: draw.choice([b"-1", b"0", b"0.5", b"1e306", b"-1e306", b"1e999", b"-0.0", b"1e-320"]),
            lambda: draw.choice([b"9223372036854775808", b"-9223372036854775809", b"1" + b"0" * 400, b"1e18"]),
            lambda: json.dumps(draw.choice(_TEXTS)).encode(),
            lambda: b'"' + b"x" * LONG + b'"',
            lambda: draw.choice([rb'"\ud800"', rb'"\u0000"', b"NaN", b"Infinity", b"01", b"'x'"]),
            lambda: b"[" * deep + b"]" * deep,
            lambda: b'{"a":' * deep + b"1" + b"}" * deep,
            lambda: b"[" + b",".join([b"0"] * 3000) + b"]",
        ]
    )
    return written()


# --- records


@cache
def example(kind: Any) -> Any:
    """An example value of this type in JSON's types, with every field of every struct."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind)
        return {field.encode_name: example(hints[field.name]) for field in msgspec.structs.fields(kind)}
    if origin in (types.UnionType, typing.Union):
        return example(next(argument for argument in arguments if argument is not type(None)))
    if origin is typing.Annotated:
        return example(arguments[0])
    if origin is typing.Literal:
        return arguments[0]
    if origin is dict:
        return {"x": example(arguments[1])}
    if origin in (list, tuple, set, frozenset) or kind in (list, tuple):
        return [example(arguments[0])] if arguments else []
    return {int: 1, float: 1.0, bool: True, str: "x", bytes: "eA=="}.get(kind, "x")


def spoiled(draw: random.Random, record: Any) -> bytes:
    """JSON of the record with one value, at any depth, replaced, left out, or renamed."""
    paths = list(_paths(record))
    if not paths:
        return fragments(draw)
    path = draw.choice(paths)
    mark = f"spoiled-{draw.getrandbits(64):x}"
    how = draw.random()
    if how < 0.1:
        return json.dumps(_replaced(record, path, None, drop=True)).encode()
    text = json.dumps(_replaced(record, path, mark)).encode()
    return text.replace(json.dumps(mark).encode(), fragments(draw))


def _paths(value: Any, before: tuple[Any, ...] = ()) -> typing.Iterator[tuple[Any, ...]]:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        yield (*before, name)
        yield from _paths(part, (*before, name))


def _replaced(value: Any, path: tuple[Any, ...], new: Any, drop: bool = False) -> Any:
    first, *rest = path
    copy = dict(value) if isinstance(value, dict) else list(value)
    if rest:
        copy[first] = _replaced(value[first], tuple(rest), new, drop)
    elif drop:
        del copy[first]
    else:
        copy[first] = new
    return copy


# --- contradictions

_ENDS: Sequence[Any] = (0, 1, 2, 3, 7, 10**4, 10**6, 10**12, 2**53)
"""Whole numbers within the bounds of most fields: few, more than a record has of anything, and huge."""
_WORDS: Sequence[Any] = (
    *("pending", "gathering", "running", "succeeded", "haunted", "live", "dead", "forming", "held", "ended"),
    *("reservation", "group", "zone", "region", "rack", "wanted", "up", "gone", "claiming", "reserved", "success"),
)


def contradictory(draw: random.Random, record: Any) -> bytes:
    """JSON of the record with some values, at any depth, replaced by others that their fields may have."""
    paths = [path for path in _paths(record) if "resources" not in path]
    for path in draw.sample(paths, min(len(paths), draw.randint(1, 3))):
        old = _at(record, path)
        if isinstance(old, bool):
            new: Any = not old
        elif isinstance(old, (int, float)):
            new = draw.choice(_ENDS)
        elif isinstance(old, str):
            new = draw.choice([*_WORDS, *_strings(record)])
        elif isinstance(old, list):
            new = draw.choice([[], old * 2, old[:1] * 3])
        else:
            continue
        if _holds(record, path):
            record = _replaced(record, path, new)
    return json.dumps(record).encode()


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for part in path:
        value = value[part] if _has(value, part) else None
    return value


def _has(value: Any, part: Any) -> bool:
    return part in value if isinstance(value, dict) else isinstance(value, list) and part < len(value)


def _holds(value: Any, path: tuple[Any, ...]) -> bool:
    """Whether the path still leads somewhere, after other values were replaced."""
    for part in path:
        if not _has(value, part):
            return False
        value = value[part]
    return True


def _strings(record: Any) -> list[str]:
    """Every text in the record, such as its own id, so that one may stand where it does not belong."""
    return sorted({text for path in _paths(record) if isinstance(text := _at(record, path), str)})


# --- bodies


def odd_body(draw: random.Random, good: bytes) -> bytes:
    """A wrong body in the place of `good`: `good` with a wrong value, a part of it, or something else."""
    kinds = [_with_a_wrong_value, _with_a_contradiction, _cut_off, _no_text, _something_else, _huge]
    return draw.choices(kinds, [8, 5, 2, 1, 2, 0.3])[0](draw, good)


def _with_a_wrong_value(draw: random.Random, good: bytes) -> bytes:
    try:
        record = json.loads(good)
    except (ValueError, RecursionError):
        return fragments(draw)
    return spoiled(draw, record)


def _with_a_contradiction(draw: random.Random, good: bytes) -> bytes:
    try:
        record = json.loads(good)
    except (ValueError, RecursionError):
        return fragments(draw)
    return contradictory(draw, record)


def _cut_off(draw: random.Random, good: bytes) -> bytes:
    return good[: draw.randint(0, max(len(good) - 1, 0))]


def _no_text(draw: random.Random, good: bytes) -> bytes:
    return draw.choice(
        [
            b"\xff\xfe" + good,
            b"\x1f\x8b\x08" + good,
            b"\xef\xbb\xbf" + good,
            good.replace(b'"', b"\x80", 1),
            b"\x00" * 64,
        ]
    )


def _something_else(draw: random.Random, good: bytes) -> bytes:
    other = draw.choice([kind for kind, _ in PLACES])
    whole = json.dumps(example(other)).encode()
    return draw.choice([b"", b" ", b"null", b"[]", b"{}", fragments(draw), whole, good + good, b"# hello\n"])


def _huge(draw: random.Random, good: bytes) -> bytes:
    filling = draw.choice([b'"x",' * (HUGE // 4), b"0," * (HUGE // 2), b'{"a":0},' * (HUGE // 8)])
    return b'{"recent_ops":[' + filling + b'""]}'


# --- names


def _stem(draw: random.Random) -> str:
    stem = draw.choice(_STEMS)
    return stem if draw.random() < 0.3 else f"{stem}-{draw.randrange(10**6)}"


def _pending(draw: random.Random, stem: str) -> str:
    """Now and then a valid name of an entry, for a job that does not exist."""
    shape = draw.choice(
        ["c1000m0d0", "c0m0d0", "c" + "9" * 30 + "m1d1", "c1m" + "9" * 400 + "d1", "c1000m0d0oag1gpu", "c1000"]
    )
    order = draw.choice(["499", "000", "999", "-01"]) + draw.choice(["1fay1b000", "zzzzzzzzz", "000000000"])
    pool, attempt = draw.choice(["default", "other", "a/b", ""]), draw.choice(["1", "0", "9" * 30, "x"])
    return f"pending/{pool}/{order}-{stem}~{attempt}~{shape}"


def _placement(draw: random.Random, owner: str) -> PlacementKey:
    """An entry before or after all others, of an owner that may be a malformed record of this grammar."""
    priority, kind = draw.choice([-500, 0, 499]), draw.choice(["gang", "reservation"])
    return PlacementKey(draw.choice(["default", "other"]), priority, draw.choice([0.0, 1.8e9]), owner, kind)


Place = Callable[[random.Random, str], str]
PLACES: Sequence[tuple[type[msgspec.Struct], Place]] = (
    (JobRecord, lambda draw, stem: JobKeys.key(stem)),
    (JobRecord, lambda draw, stem: ArchiveKeys.key(stem)),
    (AgentRecord, lambda draw, stem: AgentKeys.key(stem)),
    (JobSpec, lambda draw, stem: InboxKeys.key(stem)),
    (ReconcilerRecord, lambda draw, stem: f"{CoordinatorKeys.reconciler}.{stem}"),
    (PendingEntry, _pending),
    (ChildEntry, lambda draw, stem: ChildKey(stem, draw.choice([1, 10**30]), draw.choice(["x", stem])).key()),
    (Doorbell, lambda draw, stem: PoolKeys.doorbell(stem)),
    (AgentPoolRecord, lambda draw, stem: PoolKeys.record(draw.choice(["default", stem]))),
    (
        NameRecord,
        lambda draw, stem: NameKeys.key(draw.choice(["ns", stem]), draw.choice(["actor", "queue", "other"]), stem),
    ),
    (EndpointRecord, lambda draw, stem: EndpointKey(draw.choice(["ns", stem]), draw.choice(["a", stem]), stem).key()),
    (RpcSecrets, lambda draw, stem: f"{SecretKeys.area}{stem}.json"),
    (ReservationRecord, lambda draw, stem: ReservationKeys.key(stem)),
    (PlacementEntry, lambda draw, stem: _placement(draw, stem).key()),
    (PoolPlan, lambda draw, stem: PoolKeys.plan(stem)),
    (MachineRecord, lambda draw, stem: MachineKeys.key(draw.choice(["default", stem]), stem)),
    (ScalerRecord, lambda draw, stem: f"{CoordinatorKeys.scaler}.{stem}"),
    (ClusterSettings, lambda draw, stem: f"cluster.json.{stem}"),
    (ReplicaExit, lambda draw, stem: WorkKeys.exit(stem, 1, draw.choice([0, 1, 10**9]))),
    (OutputManifest, lambda draw, stem: WorkKeys.outputs(stem, 1, 0)),
    (QueueRecord, lambda draw, stem: QueueKeys.of("ns", stem, 1).settings),
    (QueueLease, lambda draw, stem: QueueKeys.of("ns", stem, 1).lease(stem)),
    (SegmentHeader, lambda draw, stem: QueueKeys.of("ns", stem, 1).segment(stem)),
    (Receipt, lambda draw, stem: f"{QueueKeys.of('ns', stem, 1).receipts}{stem}"),
    (FinishedSegments, lambda draw, stem: f"{QueueKeys.of('ns', stem, 1).finished}{stem}"),
    (PoolRecord, lambda draw, stem: TaskKeys.of("ns", stem, 1).pool),
    (JobSpec, lambda draw, stem: f"{InboxKeys.aside_prefix}{stem}{draw.choice(['', '~', '~1~x', '~~'])}"),
    (JobSpec, lambda draw, stem: f"{InboxKeys.rejected_prefix}{stem}.json"),
    (
        JobRecord,
        lambda draw, stem: (
            f"work/{stem}/{draw.choice(['1', 'x', '9' * 30])}/0/{draw.choice(['result', 'log-00000001', 'log-x'])}"
        ),
    ),
    (
        JobRecord,
        lambda draw, stem: f"{object_keys.BlobKeys.area}{draw.choice(['2001-01/', '2999-13/', '', '/'])}{stem}",
    ),
)
"""Kinds of records, and names for them or for similar objects."""


# --- objects


def new_record(draw: random.Random) -> Odd:
    """A malformed record of any kind, under a name of its own."""
    kind, place = draw.choice(PLACES)
    stem = _stem(draw)
    record = dict(example(kind))
    for name, usual in _USUAL.items():
        if name in record:
            record[name] = draw.choice(usual)
    if "id" in record and draw.random() < 0.8:
        record["id"] = stem
    return Odd(place(draw, stem), odd_body(draw, json.dumps(record).encode()))


def waiting_owner(draw: random.Random, pool: str = "default") -> list[Odd]:
    """A gang or a reservation that contradicts itself, with the entry through which the scheduler finds it."""
    stem, agent = f"odd-{draw.randrange(10**6)}", draw.choice(["x", f"a-{draw.randrange(9)}"])
    placed = {"round": 1, "members": [{"agent": agent, "bundles": [draw.choice([0, 1, 7])]}]}
    nothing = {"cpu": 0.0, "labels": {"odd": "nowhere"}}  # a record that is right after all runs on no host
    gang = {"name": "odd", "entrypoint": {"command": ["x"]}, "namespace": "odd", "replicas": 2, "pool": pool}
    gang |= {"resources": nothing, "slices": 0}
    parts = [{"gang": {"resources": nothing, "count": 1, "slices": 0, "same": ""}, "job": ""}]
    if is_gang := draw.random() < 0.5:
        status = draw.choice(["gathering", "running", "haunted"])
        record: dict[str, Any] = {"id": stem, "spec": gang, "status": status, "placement": placed}
    else:
        state = draw.choice(["forming", "held", "paused"])
        record = {"id": stem, "kind": "reservation", "namespace": "odd", "pool": pool, "parts": parts, "low": 1}
        record |= {"state": state, "same": "", "placement": placed, "expires_at": 4e9, "submitted_at": 0.0}
    body = contradictory(draw, record)
    if draw.random() < 0.8:  # otherwise it may be a record under another's name
        body = json.dumps({**json.loads(body), "id": stem}).encode()
    key = JobKeys.key(stem) if is_gang else ReservationKeys.key(stem)
    entry = PlacementKey(pool, 0, 0.0, stem, "gang" if is_gang else "reservation").key()
    return [Odd(entry, b"{}"), Odd(key, body), Odd(PlacementKey.bell, json.dumps({"op": stem}).encode())]


def misnamed(draw: random.Random, lying: Sequence[tuple[str, bytes]]) -> Odd:
    """A copy of an existing object, unchanged or malformed, under another name."""
    if not lying:
        return new_record(draw)
    key, data = draw.choice(lying)
    body = data if draw.random() < 0.6 else odd_body(draw, data)
    folder, _, name = key.rpartition("/")
    copy = draw.choice(
        [
            f"{name.removesuffix('.json')} copy.json",
            f"copy-of-{name}",
            f"{name}.bak",
            f"{name.removesuffix('.json')}.1.json",
        ]
    )
    elsewhere = draw.choice([f"{folder}/", f"{folder}/", *FOLDERS])
    return Odd(elsewhere + copy if elsewhere != "/" else copy, body)


def foreign(draw: random.Random) -> Odd:
    """A folder marker like those of web consoles, or a file that does not belong to Fray."""
    folder = draw.choice(FOLDERS)
    if folder and draw.random() < 0.5:
        return Odd(folder, b"")
    sub = draw.choice(["", "", "sub/", "a/b/c/"])
    return Odd(f"{folder}{sub}{draw.choice(FOREIGN)}", draw.choice([b"", b"text\n", b"\x00\x01", b"{}", b"[]"]))


def odd_object(draw: random.Random, lying: Sequence[tuple[str, bytes]] = ()) -> Odd:
    """Any malformed object under an unused name. lying: the keys and bodies in the root."""
    made = draw.choices([new_record, lambda d: misnamed(d, lying), foreign], [5, 3, 2])[0](draw)
    used = {key for key, _ in lying}
    return made if made.key not in used else odd_object(draw, lying)
