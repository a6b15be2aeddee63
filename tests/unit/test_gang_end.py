"""The end of a gang's attempt: success, failure, preemption, a stop, a lost member."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from msgspec.structs import replace

from fray_coordinator.protocol.placements.gang_end import end_of_gang, gang_left, gang_without, runs_gang
from fray_coordinator.protocol.placements.launching import COORDINATOR_PORT, MEGASCALE_PORT, gang_port_names
from fray_coordinator.protocol.retries import FIRST_RESTART_WAIT
from fray_coordinator.protocol.stopping import request_stop
from fray_layouts.records import (
    AttemptExit,
    ClusterSettings,
    JobRecord,
    JobResult,
    Placement,
    PlacementMember,
    ReplicaExit,
    ResourceUsage,
    StopRequest,
)
from fray_layouts.spec_parsing import parse_spec

NOW = 5000.0
SETTINGS = ClusterSettings(requeue_backoff=2.0, requeue_backoff_max=10.0, host_killer_limit=3)
MEMBERS = [
    PlacementMember(agent="a", host="hosta", bundles=[0]),
    PlacementMember(agent="b", host="hostb", bundles=[1, 2]),
]


def gang(status: str = "running", spec: dict[str, Any] | None = None, **fields: Any) -> JobRecord:
    wanted = parse_spec({"name": "g", "entrypoint": {"command": ["x"]}, "replicas": 3, **(spec or {})})
    placement = Placement(round=4, members=MEMBERS, until=NOW, moves=2, refused=["c"])
    usual: dict[str, Any] = {"submitted_at": NOW - 100, "started_at": NOW - 10, "placement": placement, "attempt": 2}
    return JobRecord(id="g-1", spec=wanted, status=status, **(usual | fields))


def stopping(**fields: Any) -> JobRecord:
    return gang(stop=StopRequest(at=NOW - 1, reason="enough"), **fields)


def exits(**kinds: str) -> dict[int, ReplicaExit]:
    """Exits by replica: `exits(r0="success")`."""
    hosts = {0: "a", 1: "b", 2: "b"}
    return {
        number: ReplicaExit(
            agent=hosts[number],
            host=f"host{hosts[number]}",
            exit=AttemptExit(kind=kind, message=f"it was {kind}", log_chunks=3),
            ended_at=NOW,
            result=JobResult(encoding="json", value=number),
        )
        for number, kind in ((int(name[1:]), kind) for name, kind in kinds.items())
    }


def ended(job: JobRecord, agent: str, found: dict[int, ReplicaExit]) -> JobRecord | None:
    return end_of_gang(job, 2, agent, found, NOW, SETTINGS)


def lost(job: JobRecord, agent: str, found: dict[int, ReplicaExit]) -> JobRecord | None:
    return gang_without(job, 2, agent, found, NOW, SETTINGS)


ALL_GOOD = exits(r0="success", r1="success", r2="success")


@pytest.mark.parametrize("agent", ["a", "b"])
@pytest.mark.parametrize("write", [ended, lost])
def test_a_member_that_sees_all_replicas_succeed_writes_success_with_the_result_of_replica_0(
    agent: str, write: Any
) -> None:
    for job in (gang(), stopping()):
        done = write(job, agent, ALL_GOOD)
        assert done is not None
        assert (done.status, done.result, done.ended_at) == ("succeeded", JobResult(encoding="json", value=0), NOW)
        assert done.exit.log_chunks is None, "each replica has a log of its own"


def test_a_member_whose_replicas_did_well_leaves_the_end_to_the_last_one() -> None:
    assert ended(gang(), "a", exits(r0="success")) is None
    assert ended(gang(), "b", exits(r1="success", r2="success")) is None
    assert lost(gang(), "b", exits(r1="success", r2="success")) is None, "it had done all that it was to do"


def test_a_failure_of_another_member_is_left_to_that_member() -> None:
    assert ended(gang(), "a", exits(r0="success", r1="exited", r2="success")) is None


def test_a_failure_requeues_the_whole_gang_and_spends_one_failure() -> None:
    again = ended(gang(spec={"max_retries_failure": 1}), "b", exits(r1="stopped", r2="exited"))
    assert again is not None
    assert (again.status, again.attempt, again.failures, again.preemptions) == ("gathering", 3, 1, 0)
    assert again.placement == Placement(round=5), "the round goes on, the members do not"
    assert (again.started_at, again.not_before) == (None, NOW + FIRST_RESTART_WAIT)
    past = again.history[-1]
    assert (past.attempt, past.agent, past.host, past.started_at) == (2, "b", "hostb", NOW - 10)
    assert (past.exit.kind, past.exit.message) == ("exited", "replica 2 on hostb: it was exited")
    for other in ("a", "b"):
        assert ended(again, other, exits(r0="exited", r1="exited", r2="exited")) is None, "the attempt has moved on"


def waits(kind: str, life: float, settings: ClusterSettings) -> list[float]:
    """Seconds before each next attempt of a gang whose attempts have these lengths and ends."""
    job, now, told = gang(spec={"max_retries_failure": 99, "max_retries_preemption": 99}), NOW, []
    for _ in range(8):
        again = end_of_gang(replace(job, started_at=now - life), job.attempt, "a", exits(r0=kind), now, settings)
        assert again is not None
        told.append(round(again.not_before - now, 2))
        now = again.not_before + life
        job = replace(again, status="running", placement=Placement(members=MEMBERS))
    return told


@pytest.mark.parametrize(
    ("kind", "later"), [("exited", [10.0, 10.0]), ("start-failed", [10.0, 10.0]), ("preempted", [2.0, 2.0])]
)
def test_a_gang_waits_ever_longer_for_its_next_attempt_while_all_end_quickly(kind: str, later: list[float]) -> None:
    assert waits(kind, 1.0, SETTINGS) == [0.05, 0.1, 0.2, 0.4, 0.8, *later, later[-1]]
    assert waits(kind, 3600.0, SETTINGS) == [0.05] * 8
    assert waits(kind, 1.0, ClusterSettings(requeue_backoff=0.0)) == [0.0] * 8


def test_a_failure_beyond_the_budget_fails_the_gang_and_names_replica_and_host() -> None:
    failed = ended(gang(), "a", exits(r0="exception"))
    assert failed is not None
    assert failed.exit is not None
    assert (failed.status, failed.exit.kind) == ("failed", "exception")
    assert failed.exit.message == "replica 0 on hosta: it was exception"


@pytest.mark.parametrize("kind", ["preempted", "stopped", "host-failed"])
def test_preemption_is_no_failure(kind: str) -> None:
    again = ended(gang(), "a", exits(r0=kind))
    assert again is not None
    assert (again.status, again.failures, again.preemptions) == ("gathering", 0, 1)


def test_a_failed_start_spends_nothing_and_avoids_the_host() -> None:
    again = ended(gang(), "b", exits(r1="start-failed", r2="stopped"))
    assert again is not None
    assert (again.status, again.failures, again.preemptions, again.start_failures) == ("gathering", 0, 0, 1)
    assert again.avoid_hosts == ["hostb"]


def test_a_stopped_gang_ends_once_all_replicas_have_ended() -> None:
    some = exits(r0="stopped", r1="exited")
    assert ended(stopping(), "a", some) is None
    assert ended(stopping(), "b", some) is None, "a failure under a stop requeues nothing"
    done = ended(stopping(), "b", some | exits(r2="success"))
    assert done is not None
    assert done.exit is not None
    assert (done.status, done.exit.message) == ("stopped", "enough")


def test_a_lost_member_requeues_the_gang_once_as_one_death() -> None:
    again = lost(gang(), "b", exits(r0="success", r1="success"))
    assert again is not None
    assert (again.status, again.preemptions, again.agent_deaths, again.failures) == ("gathering", 1, 1, 0)
    assert again.history[-1].exit.message == "replica 2 on hostb: its agent b died"
    assert lost(again, "a", {}) is None
    third = lost(gang(agent_deaths=2, spec={"max_retries_failure": 1}), "b", {})
    assert third is not None
    assert (third.status, third.failures, third.agent_deaths) == ("gathering", 1, 0)


def test_a_lost_member_that_left_a_failure_counts_as_that_failure_once_all_have_ended() -> None:
    failed = lost(gang(), "b", exits(r0="success", r1="exited", r2="stopped"))
    assert failed is not None
    assert failed.status == "failed"


@pytest.mark.parametrize("left", [exits(r1="exited"), exits(r1="exited", r2="exited")])
@pytest.mark.parametrize("how", [gang_without, gang_left])
def test_a_lost_members_failure_does_not_count_while_a_dead_member_may_be_its_cause(how: Any, left: Any) -> None:
    again = how(gang(), 2, "b", left, NOW, SETTINGS)
    assert again is not None
    assert (again.status, again.preemptions, again.failures) == ("gathering", 1, 0)


def test_a_lost_member_ends_a_stopped_gang_at_once() -> None:
    done = lost(stopping(), "b", exits(r1="stopped"))
    assert done is not None
    assert done.status == "stopped"
    assert lost(stopping(), "a", exits(r0="stopped")) is None, "it has left all its exits: the others go on"
    late = gang_without(stopping(), 2, "b", exits(r1="stopped"), NOW, SETTINGS, may_run=True)
    assert late is None, "stopped means that nothing runs"


@pytest.mark.parametrize(
    "now",
    [
        None,
        gang(attempt=3),
        gang("gathering"),
        gang("succeeded"),
        gang("stopped"),
        gang("hibernating"),
        gang(placement=None),
        gang(placement=Placement(round=9, members=MEMBERS[1:])),
    ],
)
def test_a_member_of_an_attempt_that_is_over_writes_nothing(now: JobRecord | None) -> None:
    assert not runs_gang(now, 2, "a")
    for found in (ALL_GOOD, exits(r0="exited"), {}):
        assert ended(now, "a", found) is None  # type: ignore[arg-type]
        if now is not None:
            assert lost(now, "a", found) is None


def test_the_first_failure_is_told_unless_a_host_explains_it() -> None:
    found = exits(r0="exited", r1="exception", r2="stopped")
    found[0], found[1] = replace(found[0], ended_at=NOW + 2), replace(found[1], ended_at=NOW + 1)
    for agent in ("a", "b"):
        failed = ended(gang(), agent, found)
        assert failed is not None
        assert failed.exit is not None
        assert (failed.exit.kind, failed.exit.message) == ("exception", "replica 1 on hostb: it was exception")
    explained = ended(gang(), "b", found | exits(r0="preempted"))
    assert explained is not None
    assert (explained.status, explained.failures, explained.preemptions) == ("gathering", 0, 1)
    assert explained.history[-1].agent == "a"


def test_a_member_that_leaves_ends_the_attempt_as_preempted() -> None:
    def left(job: JobRecord, agent: str, found: dict[int, ReplicaExit]) -> JobRecord | None:
        return gang_left(job, 2, agent, found, NOW, SETTINGS)

    again = left(gang(), "b", exits(r0="success", r1="success"))
    assert again is not None
    assert (again.status, again.failures, again.preemptions, again.agent_deaths) == ("gathering", 0, 1, 0)
    assert again.history[-1].exit.message == "replica 2 on hostb: its agent b was asked to leave"
    assert left(gang(), "a", exits(r0="success")) is None, "nothing of it runs there any more"
    assert left(stopping(), "a", {}) is None, "its replicas end as those of all do"
    assert left(again, "a", {}) is None
    whole = left(gang(), "a", ALL_GOOD)
    assert whole is not None
    assert whole.status == "succeeded"


def test_in_any_order_of_exits_exactly_one_end_is_written() -> None:
    """Each member looks once, right after its last exit; a decided write is applied at once."""
    kinds = ["success", "exited", "preempted"]
    for first, second, order in itertools.product(kinds, kinds, [("a", "b"), ("b", "a")]):
        left = {"a": exits(r0=first), "b": exits(r1=second, r2="success")}
        job, writes = gang(spec={"max_retries_failure": 9}), 0
        found: dict[int, ReplicaExit] = {}
        for agent in order:
            found = found | left[agent]
            wanted = ended(job, agent, found)
            job, writes = wanted or job, writes + (wanted is not None)
        assert writes == 1, (first, second, order)
        assert job.status == ("succeeded" if first == second == "success" else "gathering")
        assert job.failures + job.preemptions <= 1


def test_a_stop_of_a_gang_ends_it_while_it_gathers_and_flags_it_while_it_runs() -> None:
    waiting = request_stop(gang("gathering"), NOW, "enough")
    assert waiting is not None
    assert waiting.status == "stopped"
    flagged = request_stop(gang(), NOW, "enough")
    assert flagged is not None
    assert (flagged.status, flagged.stop) == ("running", StopRequest(at=NOW, reason="enough"))
    assert request_stop(flagged, NOW, "more") is None
    damaged = request_stop(gang(placement=Placement(round=3)), NOW, "enough")
    assert damaged is not None
    assert damaged.status == "stopped", "nobody else could end it"


def test_the_host_of_replica_0_holds_the_ports() -> None:
    spec = gang().spec
    assert gang_port_names(spec, [0, 2]) == [COORDINATOR_PORT]
    assert gang_port_names(spec, [1]) == []
    assert gang_port_names(replace(spec, slices=2), [0]) == [COORDINATOR_PORT, MEGASCALE_PORT]


def test_a_success_states_the_usage_of_all_replicas() -> None:
    used = ResourceUsage(cpu_seconds=1.5, memory_peak=100)
    found = exits(r0="success", r1="success", r2="success")
    for number in (0, 1):
        found[number] = replace(found[number], exit=replace(found[number].exit, usage=used))
    done = ended(gang(), "b", found)
    assert done is not None
    assert done.exit is not None
    assert done.exit.usage == ResourceUsage(cpu_seconds=3.0, memory_peak=200)
