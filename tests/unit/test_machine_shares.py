"""How the cost of machines is divided among jobs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fray.cli.cost_model import machine_lines
from fray_coordinator.core import open_core
from fray_coordinator.protocol.scaling.shares import MachineShare, shares_of_jobs, sums_by_owner
from fray_coordinator.store.interface import ABSENT
from fray_layouts.object_keys import AgentKeys, JobKeys, MachineKeys
from fray_layouts.records import (
    AgentRecord,
    AttemptExit,
    JobLease,
    JobRecord,
    MachineRecord,
    PastAttempt,
    Placement,
    PlacementMember,
    Record,
    Resources,
)
from fray_layouts.spec_parsing import parse_spec
from tests.support.shell import Shell

MACHINE = MachineRecord(pool="p", name="m", state="up", hosts=2, hourly_cost=20.0, billed_at=0.0)
AGENTS = [
    AgentRecord(
        id=name, host=name, pool="p", machine="m", capacity=Resources(cpu=8000, memory=100_000_000, device_count=4)
    )
    for name in ("a", "b")
]


def job(name: str = "j", agent: str = "a", since: float = 0.0, **fields: Any) -> JobRecord:
    resources = fields.pop("resources", {"cpu": 2})
    spec = parse_spec({"name": name, "entrypoint": {"command": ["x"]}, "pool": "p", "resources": resources})
    lease = JobLease(agent=agent, host=agent, since=since)
    base: dict[str, Any] = {"id": f"{name}-1", "spec": spec, "status": "running", "lease": lease}
    return JobRecord(**(base | fields))


@pytest.mark.parametrize(
    ("record", "share"),
    [
        (job(), MachineShare(2.5, 2.5)),
        (job(since=1800.0), MachineShare(1.25, 2.5)),
        (job(status="succeeded", ended_at=1800.0), MachineShare(1.25, 0.0)),
        (job(resources={"cpu": 1, "memory": 50_000_000}), MachineShare(5.0, 5.0)),
        (job(resources={"cpu": 1, "device": {"kind": "tpu", "variant": "v6e-8", "count": 4}}), MachineShare(10, 10)),
        (job(resources={"cpu": 99}), MachineShare(10.0, 10.0)),
    ],
)
def test_a_job_pays_for_its_part_of_the_host_while_it_runs(record: JobRecord, share: MachineShare) -> None:
    assert shares_of_jobs([record], AGENTS, [MACHINE], 3600.0) == {record.id: share}


def test_a_job_pays_for_its_earlier_attempts() -> None:
    past = PastAttempt(
        attempt=1, agent="b", host="b", started_at=0.0, ended_at=1440.0, exit=AttemptExit(kind="preempted")
    )
    found = shares_of_jobs([job(since=3600.0, history=[past])], AGENTS, [MACHINE], 3600.0)
    assert found["j-1"] == MachineShare(1.0, 2.5)


def test_attempts_that_the_record_no_longer_lists_cost_as_much_as_those_that_it_does() -> None:
    past = PastAttempt(
        attempt=9, agent="b", host="b", started_at=0.0, ended_at=1440.0, exit=AttemptExit(kind="preempted")
    )
    found = shares_of_jobs([job(since=3600.0, history=[past], forgotten_seconds=2880.0)], AGENTS, [MACHINE], 3600.0)
    assert found["j-1"].so_far == pytest.approx(3.0)


def test_a_gang_pays_for_all_of_its_hosts_in_earlier_attempts_too() -> None:
    past = PastAttempt(attempt=1, agent="b", host="b", started_at=0.0, ended_at=3600.0, exit=AttemptExit(kind="failed"))
    one = job(lease=None, history=[past])
    spec = parse_spec(
        {"name": "j", "entrypoint": {"command": ["x"]}, "pool": "p", "resources": {"cpu": 8}, "replicas": 2}
    )
    found = shares_of_jobs([replace(one, spec=spec)], AGENTS, [MACHINE], 7200.0)
    assert found["j-1"] == MachineShare(20.0, 0.0)


def test_a_gang_pays_for_all_of_its_hosts() -> None:
    members = [PlacementMember(agent="a", bundles=[0, 1]), PlacementMember(agent="b", bundles=[2])]
    gang = job(lease=None, started_at=0.0, placement=Placement(members=members))
    assert shares_of_jobs([gang], AGENTS, [MACHINE], 3600.0) == {"j-1": MachineShare(7.5, 7.5)}


def test_a_job_elsewhere_or_on_a_free_machine_costs_nothing() -> None:
    free = MachineRecord(pool="p", name="m", hourly_cost=0.0)
    unknown = MachineRecord(pool="p", name="m")
    assert shares_of_jobs([job(agent="c")], AGENTS, [MACHINE], 3600.0) == {}
    assert shares_of_jobs([job()], AGENTS, [free], 3600.0) == {}
    assert shares_of_jobs([job()], AGENTS, [unknown], 3600.0) == {}


def test_shares_are_added_up_by_owner() -> None:
    shares = {"a": MachineShare(1.0, 2.0), "b": MachineShare(3.0, 0.0), "c": MachineShare(5.0, 1.0)}
    owners = {"a": "x", "b": "x", "c": "y"}
    assert sums_by_owner(shares, owners) == {"x": MachineShare(4.0, 2.0), "y": MachineShare(5.0, 1.0)}


def test_machines_are_lines_of_the_bill_by_pool() -> None:
    gone = MachineRecord(pool="p", name="n", state="gone", hourly_cost=10.0, billed_at=0.0, ended_at=3600.0)
    unknown = MachineRecord(pool="q", name="o", state="up", billed_at=0.0)
    lines = {line.what: line.dollars for line in machine_lines([MACHINE, gone, unknown], 7200.0)}
    assert lines == {
        "machines of pool p, an hour now": 20.0,
        "machines of pool p so far": 50.0,
        "machines of pool q, an hour now, without those of unknown price": 0.0,
        "machines of pool q so far, without those of unknown price": 0.0,
    }


def test_costs_are_shown_by_job_user_namespace_and_pool(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "root")
    record = job(status="succeeded", ended_at=3600.0)
    record.spec.user = "ann"
    put(
        shell,
        {
            MachineKeys.key("p", "m"): MACHINE,
            AgentKeys.key("a"): AGENTS[0],
            JobKeys.key("j-1"): record,
        },
    )
    assert shell.json("cost", "--by", "job") == [{"job": "j-1", "hourly": 0.0, "so_far": 2.5}]
    assert shell.json("cost", "--by", "user") == [{"user": "ann", "hourly": 0.0, "so_far": 2.5}]
    assert shell.json("cost", "--by", "namespace") == [{"namespace": "", "hourly": 0.0, "so_far": 2.5}]
    assert shell.json("cost", "--by", "pool") == [{"pool": "p", "hourly": 0.0, "so_far": 2.5}]
    assert "$2.50" in shell("cost", "--by", "job").stdout
    assert "machines of pool p, an hour now" in shell("cost").stdout


def put(shell: Shell, records: dict[str, Record]) -> None:
    async def write() -> None:
        core = await open_core(str(shell.root))
        for key, record in records.items():
            await core.records.put(key, record, ABSENT)
        await core.store.close()

    asyncio.run(write())
