"""What objects hold: specs, records and their successors, segments, and lines of logs."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from fray_agents.runner import task_log
from fray_coordinator.store.interface import ABSENT, ANY, Applied, Expectation, Object, Superseded
from fray_coordinator.store.store import outcome_of_write
from fray_layouts import codec, queue_records, schemas
from fray_layouts.errors import InvalidInput, Malformed
from fray_layouts.parsing import MAX_DEPTH
from fray_layouts.queue_records import SegmentHeader
from fray_layouts.records import JobRecord, NameRecord
from fray_layouts.spec_parsing import parse_spec
from tests.vectors.form import NOW, File, base64_of, plain

COMMAND = {"command": ["true"]}


def _specs() -> File:
    fields: dict[str, dict[str, Any]] = {
        "the least": {},
        "sizes as text": {"resources": {"ram": "2GB", "disk": "512MiB"}},
        "what has its default is left out": {"priority": 0, "pool": "default", "resources": {"cpu": 1}},
        "an unknown field": {"prority": 1},
        "two entrypoints": {"entrypoint": {"command": ["true"], "callable": {"blob": "blobs/2026-01/00"}}},
        "no whole number": {"priority": 1.5},
        "1.0 is no whole number": {"priority": 1.0},
        "a whole number is a number": {"timeout": 60},
        "too large": {"max_retries_failure": 10**9},
        "a gang": {"replicas": 2},
        "packages": {"environment": {"pip_packages": ["numpy"]}},
        "a workspace": {"environment": {"workspace": {"blob": "blobs/2026-01/00", "dependencies": "uv.lock"}}},
        "a folder as a workspace": {"environment": {"workspace": "."}},
        "no packages": {"environment": {"pip_packages": [], "env_vars": {"A": "1"}}},
        "a name of two words": {"name": "two words"},
        "an actor with a health check": {"actor": True, "health_check": {"port": 8080}},
    }
    cases = {}
    for case, more in fields.items():
        spec = {"name": "train", "entrypoint": COMMAND, **more}
        cases[case] = spec, _read_spec(spec)
    return File(
        "input: a dropped spec. expected: the `spec` of the job's record without its namespace, or the "
        "reason of its rejection",
        cases,
    )


def _read_spec(spec: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"spec": plain(parse_spec(json.dumps(spec)))}
    except InvalidInput as error:
        return {"reason": str(error)}


def _records() -> File:
    job = {"id": "a-1", "status": "pending", "spec": {"name": "a", "entrypoint": COMMAND}}
    bodies: dict[str, tuple[str, str]] = {
        "a job": ("job", json.dumps(job)),
        "unknown fields": ("job", json.dumps({**job, "colour": "blue"})),
        "an unknown status": ("job", json.dumps({**job, "status": "hovering"})),
        "1.0 is no whole number": ("job", json.dumps(job)[:-1] + ', "attempt": 1.0}'),
        "1e2 is no whole number": ("job", json.dumps(job)[:-1] + ', "attempt": 1e2}'),
        "a whole number is a time": ("job", json.dumps({**job, "submitted_at": 5})),
        "attempts count from 1": ("job", json.dumps({**job, "attempt": 0})),
        "null is no default": ("job", json.dumps({**job, "history": None})),
        "a size is a number": ("job", json.dumps({**job, "spec": {**job["spec"], "resources": {"memory": "2GB"}}})),  # type: ignore[dict-item]
        "a result may be any number": (
            "job",
            json.dumps(job)[:-1] + ', "result": {"encoding": "json", "value": 123456789012345678901234567890}}',
        ),
        "a size of 2^53": ("agent", '{"id": "a", "host": "h", "pool": "p", "free": {"memory": 9007199254740992}}'),
        "a size above 2^53": ("agent", '{"id": "a", "host": "h", "pool": "p", "free": {"memory": 9007199254740993}}'),
        "a time after 3084": ("name", '{"since": 35184372088.832}'),
        "a duration above 10^9 s": ("cluster", '{"quarantine": 1000000001}'),
        "as deep as may be": ("job", json.dumps({**job, "deep": _nested(MAX_DEPTH - 1)})),
        "too deep": ("job", json.dumps({**job, "deep": _nested(MAX_DEPTH)})),
        "a number that no float holds": ("job", json.dumps(job)[:-1] + ', "colour": 1e999}'),
        "NaN": ("job", json.dumps(job)[:-1] + ', "submitted_at": NaN}'),
        "an array": ("job", "[]"),
        "a field twice": ("name", '{"job": "a", "job": "b"}'),
    }
    cases = {case: ({"schema": kind, "text": text}, _is_readable(text, kind)) for case, (kind, text) in bodies.items()}
    return File("input: the text of a record of that schema. expected: whether it is readable", cases)


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def _is_readable(text: str, kind: str) -> bool:
    try:
        codec.decode(text.encode(), schemas.SCHEMAS[kind])
    except Malformed:
        return False
    return True


def _successors() -> File:
    def after(previous: dict[str, Any] | None, op: str, **changes: Any) -> tuple[Any, Any]:
        decoded = codec.decode(json.dumps(previous).encode(), NameRecord) if previous else None
        base = decoded.record if decoded else NameRecord(job="a-1", since=NOW)
        made = codec.successor(msgspec.structs.replace(base, **changes), op, decoded.record if decoded else None)
        given = {"previous": previous, "op": op, "changes": changes or {"job": "a-1", "since": NOW}}
        return given, json.loads(codec.encode(made, decoded.raw if decoded else None))

    eight = [f"op{number}" for number in range(8, 0, -1)]
    cases = {
        "a name is created": after(None, "op1"),
        "the second body": after({"op": "op1", "created_op": "op1", "job": "a-1", "since": NOW}, "op2", attempt=1),
        "eight are remembered": after(
            {"op": "op9", "recent_ops": eight, "created_op": "op0", "job": "a-1", "since": NOW}, "op10", state="free"
        ),
        "unknown fields stay": after(
            {"op": "op1", "created_op": "op1", "job": "a-1", "since": NOW, "colour": "blue"}, "op2", attempt=3
        ),
        "what gets its default is left out": after(
            {"op": "op1", "created_op": "op1", "job": "a-1", "attempt": 2, "since": NOW}, "op2", attempt=0
        ),
    }
    return File(
        "input: the body of schema `name` that was read (null: the object is absent), and the changes. "
        "expected: the new body",
        cases,
    )


def _kept() -> File:
    raw = {
        "id": "a-1",
        "status": "running",
        "colour": "blue",
        "lease": {"agent": "h-1", "host": "h", "since": 5.0, "rack": 7},
        "spec": {"name": "a", "entrypoint": {"command": ["true"], "shell": False}, "mood": "good"},
        "op": "op1",
        "created_op": "op1",
    }
    decoded = codec.decode(json.dumps(raw).encode(), JobRecord)
    made = codec.successor(msgspec.structs.replace(decoded.record, failures=1), "op2", decoded.record)
    return File(
        "input: a record that was read. expected: what is written when `failures` becomes 1 under op2; "
        "unknown fields stay",
        {"a newer version's fields": (raw, json.loads(codec.encode(made, decoded.raw)))},
    )


def _outcomes() -> File:
    mine = {"op": "mine", "recent_ops": [], "created_op": "mine"}
    found: dict[str, tuple[dict[str, Any] | None, Expectation]] = {
        "it is there": (mine, ABSENT),
        "somebody went on from it": ({"op": "x", "recent_ops": ["mine"], "created_op": "first"}, "v0"),
        "many went on from what it created": ({"op": "x", "recent_ops": ["w"], "created_op": "mine"}, ABSENT),
        "somebody else created the name": ({"op": "x", "created_op": "x"}, ABSENT),
        "the name is absent, as it should be": (None, ABSENT),
        "the name is absent": (None, "v0"),
        "the version is still the expected one": ({"op": "x", "created_op": "x"}, "v1"),
        "the version is another": ({"op": "x", "created_op": "x"}, "v0"),
        "no condition, nothing of it there": ({"op": "x", "created_op": "x"}, ANY),
    }
    cases = {}
    for case, (body, expect) in found.items():
        there = Object(json.dumps(body).encode(), "v1", NOW) if body is not None else None
        outcome = outcome_of_write(there, json.dumps(mine).encode(), expect, "mine")
        given = {
            "op": "mine",
            "condition": expect if isinstance(expect, str) else expect.value,
            "found": body,
            "version": "v1" if body else None,
        }
        cases[case] = given, _called(outcome)
    return File(
        "input: a write whose answer was 412 or silence, and the object that is then found under its key. "
        "expected: the outcome of the write",
        cases,
    )


def _called(outcome: object) -> str:
    if outcome is None:
        return "send the same bytes on the same condition again"
    return {Applied: "applied", Superseded: "superseded"}.get(type(outcome), "rejected")


def _segments() -> File:
    items: dict[str, list[bytes]] = {"two items": [b'{"n":1}', b'"\xc3\xa9"'], "an empty item": [b"", b"1"]}
    cases: dict[str, Any] = {}
    for case, bodies in items.items():
        header = SegmentHeader(encoding="json", sizes=[len(body) for body in bodies])
        cases[case] = [body.decode() for body in bodies], base64_of(queue_records.encode_segment(header, bodies))
    header = SegmentHeader(encoding="json", sizes=[1, 0], large=[1])
    cases["the second is an object of its own"] = (
        ["1", None],
        base64_of(queue_records.encode_segment(header, [b"1", b""])),
    )
    return File(
        "input: items with encoding json. expected: a segment's bytes in base64 (other JSON text with the "
        "same header is equally valid)",
        cases,
    )


def _logs() -> File:
    printed: dict[str, list[bytes]] = {
        "a line": [b"hello\n"],
        "a line in two pieces": [b"hel", b"lo\nwor"],
        "no text": [b"\xff\x00\n"],
        "lines together": [b"one\ntwo\n\nthr", b"ee\n"],
        "a character in two pieces": [b"x" * (16 * 1024 - 1) + "€".encode()],
    }
    cases = {}
    for case, pieces in printed.items():
        lines = task_log.LineFormatter("stdout")
        shipped = [part.split(b" ", 1)[1] for piece in pieces for part in lines.format(piece)]
        shipped += [part.split(b" ", 1)[1] for part in lines.flush()]
        joined = base64_of(b"".join(pieces))
        cases[case] = [base64_of(line) for line in shipped], joined
    return File(
        "input: pieces of one stream, each without its time and with its last LF, in base64. expected: the bytes that "
        "were printed, in base64",
        cases,
    )


FILES = {
    "specs": _specs,
    "records": _records,
    "successors": _successors,
    "unknown-fields": _kept,
    "outcomes": _outcomes,
    "segments": _segments,
    "logs": _logs,
}
