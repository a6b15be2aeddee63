"""The states in records: unknown ones are kept, and the contract names the known ones."""

from __future__ import annotations

import json
from enum import StrEnum

import pytest

from fray_layouts import codec
from fray_layouts.records import AgentRecord, AttemptExit, Holding, NameRecord, Record, StopRequest
from fray_layouts.states import AgentState, ExitKind, HoldingPhase, NameState, StopOrigin


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (AgentRecord, {"id": "h-1", "host": "h", "pool": "p", "state": "asleep"}),
        (AgentRecord, {"id": "h-1", "host": "h", "pool": "p", "holdings": {"j-1": {"attempt": 1, "phase": "paused"}}}),
        (NameRecord, {"state": "lent"}),
    ],
)
def test_a_state_that_this_version_does_not_know_is_kept(kind: type[Record], body: dict[str, object]) -> None:
    read = codec.decode(json.dumps(body).encode(), kind)
    assert json.loads(codec.encode(read.record, read.raw)).items() >= body.items()


@pytest.mark.parametrize(
    ("states", "struct"),
    [
        (AgentState, AgentRecord),
        (HoldingPhase, Holding),
        (ExitKind, AttemptExit),
        (StopOrigin, StopRequest),
        (NameState, NameRecord),
    ],
)
def test_the_contract_names_every_state(states: type[StrEnum], struct: type) -> None:
    assert [state for state in states if f'"{state}"' not in (struct.__doc__ or "")] == []
