"""The codec: if this version changes a record of a newer one, the unknown fields stay."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from fray_layouts import codec
from fray_layouts.errors import Malformed
from fray_layouts.parsing import MAX_DEPTH, parse_json
from fray_layouts.records import MAX_RECENT_OPS, AgentRecord, Doorbell, EndpointRecord, Holding, JobLease, JobRecord

FUTURE_JOB: dict[str, Any] = {
    "op": "1",
    "id": "j",
    "status": "running",
    "new_top": {"a": [1, 2]},
    "spec": {
        "name": "j",
        "new_spec": 1,
        "entrypoint": {"command": ["x"], "new_entry": 2},
        "resources": {"new_resource": 3},
        "environment": {"env_vars": {"A": "1"}, "new_env": 4},
    },
    "lease": {"agent": "a", "host": "h", "since": 1.0, "new_lease": 5},
    "history": [
        {
            "attempt": 1,
            "agent": "a",
            "host": "h",
            "started_at": 1.0,
            "ended_at": 2.0,
            "new_attempt": 6,
            "exit": {"kind": "lost", "new_exit": 7},
        }
    ],
}


def rewritten(raw: dict[str, Any], kind: type[Any], **changes: Any) -> Any:
    known = codec.decode(msgspec.json.encode(raw), kind)
    return msgspec.json.decode(codec.encode(replace(known.record, **changes), known.raw))


def test_unknown_fields_survive_a_change_at_every_depth() -> None:
    out = rewritten(FUTURE_JOB, JobRecord, attempt=2)
    assert out["attempt"] == 2
    out.pop("attempt")
    assert out == FUTURE_JOB


def test_unknown_fields_of_older_list_items_survive_a_new_item() -> None:
    known = codec.decode(msgspec.json.encode(FUTURE_JOB), JobRecord)
    old = known.record.history[0]
    out = rewritten(FUTURE_JOB, JobRecord, history=[old, replace(old, attempt=2)])
    assert out["history"][0] == FUTURE_JOB["history"][0]
    assert "new_attempt" not in out["history"][1]


def test_a_known_field_that_is_emptied_is_gone() -> None:
    out = rewritten(FUTURE_JOB, JobRecord, lease=None, history=[])
    assert "lease" not in out
    assert "history" not in out
    assert out["new_top"] == FUTURE_JOB["new_top"]


def test_unknown_fields_of_mapped_structs_survive_and_removed_keys_go() -> None:
    raw = {"id": "a", "host": "h", "pool": "p", "holdings": {"j": {"attempt": 1, "new": 1}, "k": {"attempt": 1}}}
    out = rewritten(raw, AgentRecord, holdings={"j": Holding(attempt=2)})
    assert out["holdings"] == {"j": {"attempt": 2, "new": 1}}


def test_a_status_from_the_future_is_read_and_kept() -> None:
    out = rewritten(FUTURE_JOB | {"status": "hibernating"}, JobRecord, lease=JobLease(agent="b", host="h", since=2.0))
    assert out["status"] == "hibernating"


NO_RECORDS: list[bytes] = [
    *(b"", b"{", b"[]", b"1", b"null", b'{"id": 1}', b"\xff", b'{"id": "\xff"}', b'{"id": NaN}', b'{"id": 1e999}'),
    b'{"id": ' + b"9" * 5000 + b"}",
    b'{"id": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"id": ' + b"[" * 5000,
    b'{"id": "j", "status": "x", "spec": {"name": "j", "entrypoint": {}}, "new": ' + b"[" * 100 + b"]" * 100 + b"}",
]


@given(st.binary(max_size=60) | st.sampled_from(NO_RECORDS))
def test_malformed_records_raise_one_kind_of_error(data: bytes) -> None:
    with pytest.raises(Malformed):
        codec.decode(data, JobRecord)


@given(st.recursive(st.none() | st.floats(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_a_record_that_was_read_can_be_written_again(value: Any) -> None:
    """Also deep in a stack of calls, where Python accepts less deep values."""
    raw = {"namespace": "n", "name": "n", "actor_id": "a", "nonce": "n", "address": "h:1", "metadata": {"": value}}
    known = codec.decode(msgspec.json.encode(raw), EndpointRecord)
    assert codec.decode(codec.encode(known.record, known.raw), EndpointRecord) == known


@pytest.mark.parametrize("bracket", [b"[]", b"{}"])
def test_json_may_be_nested_so_deep_and_no_deeper(bracket: bytes) -> None:
    opening, closing = (b"[", b"]") if bracket == b"[]" else (b'{"":', b"}")

    def nested(depth: int) -> bytes:
        return opening * (depth - 1) + bracket + closing * (depth - 1)

    parse_json(nested(MAX_DEPTH))
    parse_json(b"[" + b"{}," * 1000 + b"[]]")
    parse_json(b'"' + b"[" * 1000 + b'"')
    parse_json(b'["[",' + nested(MAX_DEPTH - 1) + b',"]"]' + b" " * 1000)
    with pytest.raises(Malformed, match="nested more than"):
        parse_json(b'["]]]",' + nested(MAX_DEPTH) + b"]")
    with pytest.raises(Malformed, match="nested more than"):
        parse_json(nested(MAX_DEPTH + 1))


def test_a_chain_of_writes_keeps_the_creation_and_the_last_few_ops() -> None:
    body = codec.successor(Doorbell(), "op0", None)
    assert (body.op, body.recent_ops, body.created_op) == ("op0", [], "op0")
    for n in range(1, MAX_RECENT_OPS + 3):
        body = codec.successor(Doorbell(rung_at=n), f"op{n}", body)
    assert body.op == f"op{MAX_RECENT_OPS + 2}"
    assert body.recent_ops == [f"op{n}" for n in range(MAX_RECENT_OPS + 1, 1, -1)]
    assert body.created_op == "op0"
