"""Decisions about the pending index, the schedule and the inbox."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from fray_coordinator.protocol.claiming import IndexAction, action_for, is_created_late
from fray_coordinator.protocol.job_identity import admit_or_withdraw, record_of_drop
from fray_coordinator.protocol.scheduling import HostKind, entry_of, free_slots, remaining_after, shape_of, shortage
from fray_coordinator.protocol.transitions import TERMINAL
from fray_layouts.index_keys import Shape
from fray_layouts.object_keys import JobIds
from fray_layouts.records import AgentRecord, ClusterSettings, Holding, JobLease, JobRecord, Resources
from fray_layouts.spec_parsing import parse_spec

NOW = 10_000.0
SETTINGS = ClusterSettings()
GIB = 2**30


def job(status: str = "pending", spec: dict[str, Any] | None = None, **fields: Any) -> JobRecord:
    wanted = parse_spec({"name": "j", "entrypoint": {"command": ["x"]}, **(spec or {})})
    lease = JobLease(agent="a", host="h", since=NOW) if status == "running" else None
    return JobRecord(id="j-1", spec=wanted, status=status, **({"lease": lease, "submitted_at": NOW} | fields))


def holder(listed: int = 0, state: str = "live") -> AgentRecord:
    holdings = {"j-1": Holding(attempt=listed)} if listed else {}
    return AgentRecord(id="a", host="h", pool="p", state=state, holdings=holdings)


def care(
    entry_attempt: int, record: JobRecord | None, agent: AgentRecord | None = None, now: float = NOW
) -> IndexAction:
    entry = entry_of(replace(job(), attempt=entry_attempt))
    return action_for(entry, record, agent, now, SETTINGS)


def test_an_entry_without_a_record_goes_after_the_quarantine() -> None:
    assert care(1, None, now=NOW + SETTINGS.quarantine) is IndexAction.LEAVE
    assert care(1, None, now=NOW + SETTINGS.quarantine + 1) is IndexAction.DELETE


def test_an_entry_without_a_record_goes_whose_name_says_a_time_that_is_far_from_come() -> None:
    assert care(1, None, now=NOW - SETTINGS.quarantine) is IndexAction.LEAVE
    assert care(1, None, now=NOW - SETTINGS.quarantine - 1) is IndexAction.DELETE


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_an_entry_of_a_job_that_is_over_goes(status: str) -> None:
    assert care(1, job(str(status))) is IndexAction.DELETE


@pytest.mark.parametrize(("entry", "wanted"), [(1, IndexAction.RENEW), (2, IndexAction.LEAVE), (3, IndexAction.LEAVE)])
def test_an_entry_of_a_waiting_job_is_renewed_if_it_is_old(entry: int, wanted: IndexAction) -> None:
    assert care(entry, job(attempt=2)) is wanted


@pytest.mark.parametrize(
    "other", [{"pool": "other"}, {"priority": 5}, {"time": NOW + 1}, {"shape": Shape(1, 0, 0, "", 0, False)}]
)
def test_a_second_entry_of_a_waiting_job_is_renewed(other: dict[str, Any]) -> None:
    entry = dataclasses.replace(entry_of(job()), **other)
    assert action_for(entry, job(), None, NOW, SETTINGS) is IndexAction.RENEW


@pytest.mark.parametrize(
    ("agent", "wanted"),
    [
        (None, IndexAction.REQUEUE),
        (holder(2, "dead"), IndexAction.REQUEUE),
        (holder(2, "left"), IndexAction.REQUEUE),
        (holder(), IndexAction.LEAVE),
        (holder(1), IndexAction.LEAVE),
        (holder(2), IndexAction.DELETE),
    ],
)
@pytest.mark.parametrize("entry", [1, 2])
def test_an_entry_of_a_running_job_goes_only_when_its_live_holder_lists_it(
    entry: int, agent: AgentRecord | None, wanted: IndexAction
) -> None:
    assert care(entry, job("running", attempt=2), agent) is wanted


@pytest.mark.parametrize("status", ["unadmitted", "hibernating"])
def test_an_entry_of_a_job_in_another_status_stays(status: str) -> None:
    assert care(1, job(status), now=NOW + 10 * SETTINGS.quarantine) is IndexAction.LEAVE


def test_a_submitter_that_took_half_the_quarantine_writes_its_entry_again() -> None:
    half = SETTINGS.quarantine / 2
    assert not is_created_late(job(), NOW + half, SETTINGS)
    assert is_created_late(job(), NOW + half + 1, SETTINGS)


# --- the schedule ------------------------------------------------------------------------------------------------


def test_an_entry_is_a_function_of_the_record_and_only_the_attempt_changes() -> None:
    record = job(spec={"priority": 7, "pool": "big"})
    entry = entry_of(record)
    assert (entry.pool, entry.priority, entry.job, entry.attempt) == ("big", 7, "j-1", 1)
    later = entry_of(replace(record, attempt=2, status="running", not_before=NOW + 60, failures=1))
    assert later.key() == entry.key().replace("~1~", "~2~")


def test_the_shape_states_a_hosts_required_resources() -> None:
    resources = {
        "cpu": 0.5,
        "memory": "1GiB",
        "device": {"kind": "gpu", "variant": "H100", "count": 2},
        "preemptible": False,
    }
    shape = shape_of(job(spec={"resources": resources}).spec)
    assert shape == Shape(500, GIB, 0, "gpu-h100", 2, on_demand=True)
    assert shape_of(job(spec={"resources": {"device": {"kind": "cpu", "count": 4}}}).spec).device == ""


HOST = Resources(cpu=4000, memory=8 * GIB, disk=GIB, device="gpu-h100", device_count=2)
SMALL = Shape(cpu=1000, memory=GIB, disk=0, device="", device_count=0, on_demand=False)


@pytest.mark.parametrize(
    ("wanted", "what"),
    [
        ({}, ""),
        ({"cpu": 4000, "memory": 8 * GIB, "disk": GIB}, ""),
        ({"cpu": 4001}, "cpu: 4.001 cores wanted, 4 free"),
        ({"memory": 8 * GIB + 1}, "memory: 8.59 GB wanted, 8.58 free"),
        ({"disk": 2 * GIB}, "disk: 2.15 GB wanted, 1.07 free"),
        ({"device": "gpu", "device_count": 2}, ""),
        ({"device": "gpu-h100", "device_count": 1}, ""),
        ({"device": "gpu", "device_count": 3}, "gpu: 3 wanted, 2 free"),
        ({"device": "gpu-h10", "device_count": 1}, "gpu-h10: 1 wanted, gpu-h100 here"),
        ({"device": "tpu", "device_count": 1}, "tpu: 1 wanted, gpu-h100 here"),
    ],
)
def test_a_shortage_names_the_missing_resource(wanted: dict[str, Any], what: str) -> None:
    assert shortage(dataclasses.replace(SMALL, **wanted), HOST, HostKind()) == ([what] if what else [])


def test_a_shortage_names_all_that_is_short_devices_first() -> None:
    much = Shape(8000, 64 * 10**9, 0, "gpu-a100", 8, on_demand=True)
    assert shortage(much, HOST, HostKind(preemptible=True), "here") == [
        "gpu-a100: 8 wanted, gpu-h100 here",
        "a host that is not preemptible",
        "cpu: 8 cores wanted, 4 here",
        "memory: 64 GB wanted, 8.58 here",
    ]


def test_a_job_that_must_not_be_preempted_shuns_preemptible_hosts() -> None:
    stay = dataclasses.replace(SMALL, on_demand=True)
    assert shortage(stay, HOST, HostKind(preemptible=True)) == ["a host that is not preemptible"]
    assert shortage(stay, HOST, HostKind()) == []
    assert shortage(SMALL, HOST, HostKind(preemptible=True)) == []


def test_an_actor_goes_where_it_can_be_called() -> None:
    actor = dataclasses.replace(SMALL, actor=True)
    assert shortage(actor, HOST, HostKind(inbound=False)) == ["a host that accepts connections, because it is an actor"]
    assert shortage(actor, HOST, HostKind()) == []
    assert shortage(SMALL, HOST, HostKind(inbound=False)) == []


def test_the_resources_of_a_running_job_are_subtracted_from_the_free_ones() -> None:
    left = remaining_after(HOST, Shape(1000, GIB, 0, "gpu", 1, on_demand=False))
    assert left == Resources(cpu=3000, memory=7 * GIB, disk=GIB, device="gpu-h100", device_count=1)
    assert [free_slots(r) for r in (left, Resources(cpu=999), Resources(cpu=-5))] == [3, 0, 0]


def test_the_chips_of_a_tpu_host_go_to_one_job() -> None:
    host = replace(HOST, device="tpu-v5litepod-8", device_count=8)
    small = Shape(0, 0, 0, "tpu-v5litepod-8", 1, on_demand=False)
    assert shortage(small, host, HostKind()) == []
    assert shortage(small, remaining_after(host, small), HostKind()) == ["tpu-v5litepod-8: 1 wanted, 0 free"]
    assert (
        shortage(dataclasses.replace(small, device="", device_count=0), remaining_after(host, small), HostKind()) == []
    )


# --- the inbox ---------------------------------------------------------------------------------------------------

SPEC = parse_spec({"name": "j", "entrypoint": {"command": ["x"]}})


def test_every_reader_of_a_drop_makes_the_same_record() -> None:
    one = record_of_drop("inbox/a.json", "v1", NOW, SPEC)
    assert one == record_of_drop("inbox/a.json", "v1", NOW, SPEC)
    assert (one.status, one.submitted_at) == ("unadmitted", NOW)
    assert JobIds.checked(one.id) == one.id
    others = [
        record_of_drop("inbox/b.json", "v1", NOW, SPEC),
        record_of_drop("inbox/a.json", "v2", NOW, SPEC),
        record_of_drop("inbox/a.json", "v1", NOW + 1, SPEC),
    ]
    assert len({one.id, *(other.id for other in others)}) == 4


def test_a_drop_with_an_id_of_its_own_has_the_id_of_a_submission() -> None:
    mine = replace(SPEC, id="monday")
    assert record_of_drop("inbox/a.json", "v1", NOW, mine).id == JobIds.given(mine.namespace, "j", "monday")


def test_a_drop_is_admitted_if_the_inbox_still_holds_it_and_withdrawn_otherwise() -> None:
    record = record_of_drop("inbox/a.json", "v1", NOW, SPEC)
    admitted = admit_or_withdraw(record, "v1", NOW)
    assert admitted is not None
    assert admitted.status == "pending"
    for lies in ("v2", None):
        withdrawn = admit_or_withdraw(record, lies, NOW)
        assert withdrawn is not None
        assert withdrawn.status == "stopped"
        assert admit_or_withdraw(withdrawn, "v1", NOW) is None
        assert admit_or_withdraw(admitted, lies, NOW) is None, "an admitted record is never taken back"
