"""Why a job waits whose room is kept for a gang, and why that gang waits: the reasons tell what was decided."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from fray_agents.agent.held import HeldBundle, HeldPlacement
from fray_agents.agent.leases import Leases
from fray_coordinator.jobs.why_gathering import why_gathering
from fray_coordinator.jobs.why_waiting import why_waiting
from fray_coordinator.protocol.placements.owners import owner_of_job
from fray_coordinator.store.records import Stored
from fray_layouts.index_keys import family_digits
from fray_layouts.records import (
    AgentRecord,
    FamilyFirst,
    Holding,
    JobRecord,
    Placement,
    PlacementMember,
    Resources,
)
from fray_layouts.spec_parsing import parse_spec

HOST = Resources(cpu=2000, memory=2**33, disk=2**33)
NOW = 1000.0


def job(name: str, status: str = "pending", **fields: Any) -> JobRecord:
    wants = {"name": "j", "entrypoint": {"command": ["x"]}, "replicas": fields.pop("replicas", 1)}
    spec = parse_spec({**wants, "resources": {"cpu": fields.pop("cpu", 1)}})
    return JobRecord(id=name, spec=spec, status=status, submitted_at=fields.pop("at", NOW), **fields)


def gang(**fields: Any) -> JobRecord:
    members = [PlacementMember(agent="a", bundles=[0]), PlacementMember(agent="b", bundles=[1])]
    return job("gang", "gathering", replicas=2, cpu=2, placement=Placement(round=1, members=members, **fields))


def keeping(record: JobRecord, used: float = 1.0) -> AgentRecord:
    """An agent of two cores that keeps its free core for the gang; the parent has the other one."""
    owner, leases = owner_of_job(record), Leases(HOST)
    bundle = HeldBundle(number=0, wants=owner.parts[0].shape)
    leases.add_placement(HeldPlacement(owner, Stored(owner.key, record, {}, "1", NOW), (bundle,)))
    holdings = {"parent": Holding(attempt=1, phase="running", since=NOW - 9, family="top")}
    free = replace(HOST, cpu=int(2000 - 1000 * used))
    return AgentRecord(
        id="a", host="a", pool="default", capacity=HOST, free=free, holdings=holdings, kept=leases.kept()
    )


def test_a_job_that_may_not_use_kept_room_is_told_for_whom_it_is_kept() -> None:
    child = job("child", at=NOW + 5, ancestors=["top", "parent"])
    assert why_waiting(child, [keeping(gang())], NOW) == (
        "no agent can take it now: a (1 job there; its free room is kept for gang)"
    )


def test_who_goes_before_the_gang_is_told_so() -> None:
    first = [FamilyFirst(family=family_digits("top"), at=NOW)]
    child = job("child", at=NOW + 5, ancestors=["top", "parent"])
    assert why_waiting(child, [keeping(gang(first=first))], NOW) == "a has room and should claim it soon"
    assert why_waiting(job("early", at=NOW - 5), [keeping(gang())], NOW) == "a has room and should claim it soon"


def test_a_vote_is_no_job() -> None:
    voted = {"gang": Holding(attempt=1, phase="reserved", round=1, bundles=[1])}
    agent = AgentRecord(id="b", host="b", pool="default", capacity=HOST, free=replace(HOST, cpu=0), holdings=voted)
    assert why_waiting(job("child"), [agent], NOW) == (
        "no agent can take it now: b (room is reserved for gang; cpu: 1 core wanted, 0 free)"
    )


def test_a_gang_names_the_job_that_must_end_and_whose_family_goes_first() -> None:
    b = AgentRecord(id="b", host="b", pool="default", capacity=HOST, free=HOST, supports_placements=True)
    waiting = gang()
    assert "1 job there must end first (parent)" in why_gathering(owner_of_job(waiting), [keeping(waiting), b], NOW)
    waiting = gang(first=[FamilyFirst(family=family_digits("top"), at=NOW)])
    assert why_gathering(owner_of_job(waiting), [keeping(waiting), b], NOW) == (
        "parent must end first on a and may wait for jobs that need this room, so top and all that was launched below "
        "it go first"
    )
    assert why_gathering(owner_of_job(waiting), [b], NOW) == (
        "jobs for which its hosts may be waiting go first for some minutes"
    )


def test_a_gang_that_has_let_a_family_in_says_when_it_may_go_first_again() -> None:
    b = AgentRecord(id="b", host="b", pool="default", capacity=HOST, free=HOST, supports_placements=True)
    waiting = gang(first=[FamilyFirst(family=family_digits("top"), at=NOW - 300, again=NOW + 120)])
    told = why_gathering(owner_of_job(waiting), [keeping(waiting), b], NOW)
    assert told.endswith("(parent); jobs that may need this room have gone first, and may again in 120 s")
