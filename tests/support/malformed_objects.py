"""A grammar of malformed objects, as people, foreign programs and interrupted copies leave them under a root.

It has every kind of record with every field replaced by every kind of wrong value; bodies that were cut off, are no
text, or hold something else; records under another record's name; folder markers and foreign files. All choices come
from the given generator, so one seed gives one object.
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
from fray_layouts.inbox_keys import InboxKeys
from fray_layouts.index_keys import ChildKey
from fray_layouts.object_keys import AgentKeys, CoordinatorKeys, EndpointKey, JobKeys, NameKeys, PoolKeys, SecretKeys
from fray_layouts.records import (
    AgentPoolRecord,
    AgentRecord,
    ChildEntry,
    Doorbell,
    EndpointRecord,
    JobRecord,
    NameRecord,
    PendingEntry,
    ReconcilerRecord,
    RpcSecrets,
)
from fray_layouts.spec import JobSpec

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


# --- bodies


def odd_body(draw: random.Random, good: bytes) -> bytes:
    """A wrong body in the place of `good`: `good` with a wrong value, a part of it, or something else."""
    return draw.choices([_with_a_wrong_value, _cut_off, _no_text, _something_else, _huge], [8, 2, 1, 2, 0.3])[0](
        draw, good
    )


def _with_a_wrong_value(draw: random.Random, good: bytes) -> bytes:
    try:
        record = json.loads(good)
    except (ValueError, RecursionError):
        return fragments(draw)
    return spoiled(draw, record)


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


Place = Callable[[random.Random, str], str]
PLACES: Sequence[tuple[type[msgspec.Struct], Place]] = (
    (JobRecord, lambda draw, stem: JobKeys.key(stem)),
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
