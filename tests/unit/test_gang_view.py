"""A gang in `fray status` and `fray ps`: present and missing members, and the replicas that have ended."""

from __future__ import annotations

from msgspec.structs import replace

from fray.cli.job_view import MAX_MEMBERS, Members, as_one, describe, gang_json, job_row, member_lines
from fray_layouts.records import (
    AttemptExit,
    Holding,
    JobRecord,
    Placement,
    PlacementMember,
    ReplicaExit,
    ResourceUsage,
    SliceMember,
)
from fray_layouts.spec_parsing import parse_spec

SPEC = parse_spec({"name": "g", "entrypoint": {"command": ["x"]}, "replicas": 4, "spread": True, "same": "zone"})
MEMBERS = [
    PlacementMember(agent="agent-a", host="vm-a", bundles=[0, 1]),
    PlacementMember(agent="agent-b", host="vm-b", bundles=[2, 3]),
]
GATHERING = JobRecord(id="g-1", spec=SPEC, status="gathering", placement=Placement(round=2, members=MEMBERS))
RUNNING = replace(GATHERING, status="running", started_at=1.0)
VOTE = Holding(attempt=1, phase="reserved", round=2, bundles=[0, 1])
RUNS = Holding(attempt=1, phase="running", usage=ResourceUsage(cpu_percent=90.0, cpu_seconds=2.0, memory=10**6))


def left(kind: str, message: str = "") -> ReplicaExit:
    return ReplicaExit(agent="agent-a", host="vm-a", exit=AttemptExit(kind=kind, message=message), ended_at=1.0)


def test_a_gathering_gang_reports_which_agents_keep_room() -> None:
    shown = member_lines(GATHERING, Members(holdings={"agent-a": VOTE}))
    assert shown.splitlines() == [
        "replicas 2-3 on vm-b, by agent-b: has no room yet",
        "replicas 0-1 on vm-a, by agent-a: keeps room for it",
    ]
    refused = {"agent-a": replace(VOTE, phase="refused"), "agent-b": replace(VOTE, round=1)}
    assert "agent-a: can never have room for it" in member_lines(GATHERING, Members(holdings=refused))
    assert "agent-b: has no room yet" in member_lines(GATHERING, Members(holdings=refused))
    assert member_lines(replace(GATHERING, placement=Placement()), Members()) == ""


def test_a_gang_that_runs_tells_which_replicas_have_ended_while_others_run() -> None:
    known = Members(holdings={"agent-a": RUNS, "agent-b": RUNS}, exits={1: left("success")})
    assert member_lines(RUNNING, known).splitlines() == [
        "replicas 0-1 on vm-a, by agent-a: replica 1 has ended (success), the others run",
        "replicas 2-3 on vm-b, by agent-b: runs (90% of a core, 1 MB)",
    ]
    silent = Members(holdings={"agent-a": replace(RUNS, activity="building the environment", usage=None)})
    assert member_lines(RUNNING, silent).splitlines() == [
        "replicas 0-1 on vm-a, by agent-a: building the environment",
        "replicas 2-3 on vm-b, by agent-b: is silent",
    ]


def test_the_ends_of_a_gang_that_failed_are_told_with_their_reasons() -> None:
    failed = replace(RUNNING, status="failed", ended_at=9.0)
    shown = member_lines(failed, Members(exits={2: left("exited", "exit code 3"), 3: left("stopped")}))
    assert "replica 2 has ended (exited: exit code 3); replica 3 has ended (stopped)" in shown
    assert "agent-a: left no exit" in shown


def test_a_host_of_a_slice_says_which() -> None:
    place = SliceMember(id="s1", type="v5litepod-16", index=2, hosts=4)
    placed = Placement(members=[PlacementMember(agent="a", host="vm", bundles=[2], slice=place)])
    assert member_lines(replace(RUNNING, placement=placed), Members()).startswith(
        "replica 2 on vm, by a, host 2 of slice s1: "
    )


def test_members_with_problems_are_listed_before_the_others() -> None:
    many = [PlacementMember(agent=f"a{n}", host=f"vm-{n}", bundles=[n]) for n in range(MAX_MEMBERS + 10)]
    holdings = {member.agent: RUNS for member in many[:-1]}
    lines = member_lines(replace(RUNNING, placement=Placement(members=many)), Members(holdings=holdings)).splitlines()
    assert lines[0].endswith("is silent")
    assert (len(lines), lines[-1]) == (MAX_MEMBERS + 1, "and 10 more")


def test_scripts_get_members_and_ends() -> None:
    data = gang_json(RUNNING, Members(holdings={"agent-a": RUNS}, exits={0: left("success")}))
    assert [member["replicas"] for member in data["members"]] == [[0, 1], [2, 3]]
    assert data["members"][0]["usage"]["memory"] == 10**6
    assert data["members"][1] == {
        "agent": "agent-b",
        "host": "vm-b",
        "replicas": [2, 3],
        "state": "is silent",
        "usage": None,
    }
    assert data["exits"]["0"] == {"agent": "agent-a", "host": "vm-a", "kind": "success", "message": ""}


def test_a_row_has_the_hosts_and_the_usage_of_all_members() -> None:
    row = job_row(RUNNING, as_one([RUNS, RUNS]), "", 5.0)
    assert (row[1], row[5], row[6], row[7]) == ("running", "vm-a, vm-b", "180%", "2 MB")
    hosts = [PlacementMember(agent=f"a{n}", host=f"vm-{n}", bundles=[n]) for n in range(4)]
    assert job_row(replace(RUNNING, placement=Placement(members=hosts)), None, "", 5.0)[5] == "vm-0, vm-1 +2"


def test_a_description_states_the_number_of_waiting_replicas_and_the_reason() -> None:
    pairs = dict(describe(GATHERING, None, Members(), ["for room"], 5.0))
    assert pairs["replicas"] == "4, each on an agent of its own, all in one zone"
    assert pairs["waiting for"] == "for room"
    assert "agent-a" in pairs["members"]
