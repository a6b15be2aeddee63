"""What an agent says of the jobs that it keeps out for owners of placements."""

from __future__ import annotations

from typing import Any

import pytest

from fray_agents.agent.candidates import Asks
from fray_agents.agent.held import HeldBundle, HeldPlacement
from fray_agents.agent.leases import Leases
from fray_coordinator.clock import RandomSource
from fray_coordinator.protocol.placements.owners import owner_of_job
from fray_coordinator.protocol.scheduling import HostKind, entry_of
from fray_coordinator.store.records import Stored
from fray_layouts.index_keys import family_digits
from fray_layouts.records import MAX_ASKS, FamilyFirst, JobRecord, Placement, Resources
from fray_layouts.spec_parsing import parse_spec

HOST = Resources(cpu=2000, memory=2**33, disk=2**33)
NOW, REPAIR = 1000.0, 60.0


def job(name: str, cpu: float = 1.0, at: float = NOW, **fields: Any) -> JobRecord:
    wants = {"name": "j", "entrypoint": {"command": ["x"]}, "resources": {"cpu": cpu}}
    spec = parse_spec({**wants, "replicas": fields.pop("replicas", 1)})
    return JobRecord(id=name, spec=spec, status=fields.pop("status", "pending"), submitted_at=at, **fields)


def key(name: str, **fields: Any) -> str:
    return entry_of(job(name, **fields)).key()


class Stage:
    """An agent of two cores that keeps both for a gang, which it has voted for or waits for."""

    def __init__(self, voted: bool, **placement: Any) -> None:
        self.leases = Leases(HOST)
        self.asks = Asks(self.leases)
        record = job("gang", 2.0, NOW - 9, replicas=2, status="gathering", placement=Placement(round=1, **placement))
        self.owner = owner_of_job(record)
        bundle = HeldBundle(number=0, wants=self.owner.parts[0].shape, taken=voted)
        held = HeldPlacement(self.owner, Stored(self.owner.key, record, {}, "1", NOW), (bundle,))
        held.phase = "reserved" if voted else ""
        self.leases.add_placement(held)

    def asked(self, *keys: str, later: float = REPAIR) -> list[str]:
        self.asks.note(keys, HostKind(), NOW)
        return [ask.entry for ask in self.asks.due(NOW + later, REPAIR, RandomSource(1))]


@pytest.mark.parametrize("voted", [False, True])
def test_what_was_kept_out_for_a_repair_interval_is_asked_for(voted: bool) -> None:
    assert Stage(voted).asked(key("child"), later=REPAIR - 1) == []
    assert Stage(voted).asked(key("child")) == [key("child")]


@pytest.mark.parametrize("voted", [False, True])
def test_what_would_not_fit_in_any_case_is_not_asked_for(voted: bool) -> None:
    stage = Stage(voted)
    stage.leases.add(entry_of(job("other")))  # the gang's vote took more than there is: whatever remains is kept
    assert stage.asked(key("large", cpu=3.0)) == []


def test_what_may_be_claimed_is_not_asked_for() -> None:
    first = [FamilyFirst(family=family_digits("top"), at=NOW)]
    child = key("child", ancestors=["top"])
    assert Stage(False, first=first).asked(child) == []
    assert Stage(False).asked(key("early", at=NOW - 99)) == []
    assert Stage(True).asked(key("early", at=NOW - 99)) != [], "a vote binds for earlier jobs, too"


def test_of_each_family_one_job_is_asked_for_and_of_many_some() -> None:
    stage = Stage(False)
    assert stage.asked(*(key(f"c{n}", ancestors=["top"]) for n in range(5))) == [key("c4", ancestors=["top"])]
    assert len(stage.asked(*(key(f"j{n}") for n in range(2 * MAX_ASKS)))) == MAX_ASKS


def test_asks_end_with_the_owner_s_wait() -> None:
    stage = Stage(False)
    assert stage.asked(key("child")) != []
    stage.leases.release(stage.leases.placements["gang"])
    assert stage.asked(key("child")) == []


def test_what_is_let_in_is_tried_again_and_no_longer_asked_for() -> None:
    stage = Stage(False)
    assert stage.asked(key("child", ancestors=["top"])) != []
    assert stage.asks.let_in() == []
    held = stage.leases.placements["gang"]
    held.owner.placement.first.append(FamilyFirst(family=family_digits("top"), at=NOW))
    assert [entry.job for entry in stage.asks.let_in()] == ["child"]
    assert stage.asks.due(NOW + REPAIR, REPAIR, RandomSource(1)) == []
