"""Pools as the rules of scaling see them, for tests."""

from dataclasses import replace
from typing import Any

from msgspec.structs import replace as changed

from fray_coordinator.protocol.scaling.demand import capacity_of, hosts_of
from fray_coordinator.protocol.scaling.planning import plan
from fray_coordinator.protocol.scaling.view import ListedMachine, ListedState, PoolView, WaitingJob
from fray_coordinator.protocol.scheduling import shape_of_resources
from fray_layouts.records import (
    AgentRecord,
    JobRecord,
    MachineRecord,
    ProvisioningSpec,
    Resources,
)
from fray_layouts.spec import DeviceSpec, EntrypointSpec, JobSpec, ResourceSpec

NOW = 10_000.0
CAPACITY = Resources(cpu=4000, memory=8 * 10**9, disk=10**11)
SPEC = ProvisioningSpec(provider="command", zones=["us-a", "eu-b"], max=4, idle_seconds=60.0)
TPU = ProvisioningSpec(provider="tpu", machine_type="v5litepod-16", zones=["us-a"], max=4)


def view(spec: ProvisioningSpec = SPEC, *machines: MachineRecord, jobs: list[WaitingJob] | None = None) -> PoolView:
    return PoolView(
        "p",
        spec,
        machines={m.name: m for m in machines},
        jobs=jobs or [],
        hosts=hosts_of(spec),
        capacity=capacity_of(spec, []) or CAPACITY,
        ran_at=NOW - 5,
    )


def job(number: int, wants: ResourceSpec | None = None) -> WaitingJob:
    wants = wants or ResourceSpec(cpu=2)
    return WaitingJob(f"j{number}", 0, float(number), shape_of_resources(wants, False, False, False), wants)


def machine(name: str, state: str, **fields: object) -> MachineRecord:
    made = MachineRecord(pool="p", name=name, state=state, provider="command", zone="us-a", batch=name, wanted_at=1.0)
    return changed(made, **{"billed_at": fields.get("created_at"), **fields})


def agent(name: str, on: str, **fields: object) -> AgentRecord:
    made = AgentRecord(
        id=name, host=name, pool="p", machine=on, capacity=CAPACITY, free=CAPACITY, supports_placements=True
    )
    return changed(made, zone="us-a", region="us", **fields)


def with_agents(seen: PoolView, *agents: AgentRecord) -> PoolView:
    return replace(seen, agents={a.id: a for a in agents})


def listed(name: str, state: ListedState = ListedState.READY, **fields: Any) -> ListedMachine:
    return ListedMachine("p", name, fields.pop("zone", "us-a"), state, **fields)


def orders(seen: PoolView) -> list[tuple[int, str | None, bool]]:
    return [(order.count, order.zone, order.together) for order in plan(seen, NOW).orders]


def gang(replicas: int, slices: int = 0, cpu: float = 2.0, **wants: object) -> JobRecord:
    device = DeviceSpec(kind="tpu", variant="v5litepod-16", count=4) if slices else None
    spec = JobSpec(
        name="g",
        entrypoint=EntrypointSpec(command=["x"]),
        replicas=replicas,
        slices=slices,
        spread=bool(wants.pop("spread", False)),
        same=str(wants.pop("same", "")),
        resources=ResourceSpec(cpu=cpu, device=device),
        pool="p",
    )
    return JobRecord(id="g-1", spec=spec, status="gathering", submitted_at=1.0)
