"""An exception in a decision on one machine, in one step of a pool or in one pool ends nothing else, and is named."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

from fray_agents.provisioning import pool_run, scaler
from fray_agents.provisioning.scaler import Scaler
from fray_coordinator.core import Core
from fray_coordinator.jobs.submission import submit
from fray_coordinator.protocol.scaling import machines
from fray_coordinator.protocol.scaling.machines import observe
from fray_coordinator.protocol.scaling.provisioning import ScalingScope
from fray_coordinator.protocol.scaling.view import ListedMachine, ListedState, PoolView
from fray_coordinator.store.store import Store
from fray_layouts.object_keys import MachineKeys, PoolKeys
from fray_layouts.records import AgentPoolRecord, MachineRecord, ProvisioningSpec, Resources
from fray_layouts.spec_parsing import parse_spec
from fray_layouts.states import MachineState
from tests.support.memory_provider import MemoryProvider
from tests.support.scaling_views import NOW, SPEC, listed, machine, view
from tests.support.unforeseen import raising_for
from tests.support.virtual import Cluster

HOST = Resources(cpu=4000, memory=2**33, disk=2**33)
SOUND = ProvisioningSpec(provider="command", capacity=HOST, max=4)
SCOPE = ScalingScope(named=frozenset({"a", "odd", "z"}))
LEAVING = "m-1"


@pytest.mark.parametrize("decision", ["_next_record", "_zone_failure"])
def test_a_machine_that_cannot_be_judged_stays_as_it_is_and_the_others_are_followed(decision: str) -> None:
    seen = view(SPEC, machine("odd", "creating"), machine("m2", "creating"))
    seen = machines_listed(seen, listed("odd", ListedState.LOST), listed("m2", ListedState.LOST))
    with raising_for("odd", machines, decision):
        found = observe(seen, NOW)
    assert [*found.changed] == ["m2"]
    assert "unforeseen" in found.problems["odd"]


@pytest.mark.parametrize("decision", ["_is_left_over", "_stray"])
def test_a_listed_machine_that_cannot_be_judged_is_neither_kept_nor_deleted(decision: str) -> None:
    seen = machines_listed(view(SPEC), listed("odd"), listed("m2"))
    with raising_for("odd", machines, decision):
        found = observe(seen, NOW)
    assert ([*found.changed], found.strangers, [*found.problems]) == (["m2"], (), ["odd"])


def machines_listed(seen: PoolView, *found: ListedMachine) -> PoolView:
    return dataclasses.replace(seen, listed=found)


async def with_pool(core: Core, name: str, jobs: int = 1) -> None:
    await core.records.write(PoolKeys.record(name), AgentPoolRecord, AgentPoolRecord(provisioning=SOUND), None)
    wants = {"name": "job", "pool": name, "entrypoint": {"command": ["true"]}, "resources": {"cpu": 4}}
    await submit(core, [parse_spec(wants) for _ in range(jobs)])


STEPS = {
    "observe": {"create", "delete"},
    "withdrawn": {"create", "delete"},
    "plan": {"delete"},
    "confirmed": {"delete"},
    "to_ask": {"delete"},
    "to_delete": {"create"},
    "to_drain": {"create", "delete"},
    "retention_seconds": {"create", "delete"},
}
"""By decision that fails, what the provider is asked all the same."""


@pytest.mark.parametrize("step", STEPS)
async def test_a_step_that_fails_is_named_and_the_others_go_on(cluster: Cluster, step: str) -> None:
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core, "a")
    leaving = replace(machine(LEAVING, MachineState.DELETING), pool="a", provider="command", created_at=1.0)
    await core.records.write(MachineKeys.key("a", LEAVING), MachineRecord, leaving, None)
    provider.machines[LEAVING] = listed(LEAVING)
    with mock.patch.object(pool_run, step, side_effect=RecursionError("unforeseen")):
        found = await Scaler(core, "one", SCOPE, provider.open).run_once()
    assert "unforeseen" in found["a"].problem
    assert {what for what, _ in provider.asked} == STEPS[step]


async def test_a_record_that_cannot_be_written_keeps_no_other_machine_waiting(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core, "a", jobs=2)
    real = Store.put
    refused: list[str] = []

    async def put(self: Store, key: str, *given: Any, **named: Any) -> Any:
        if MachineKeys.parse(key) and (not refused or refused[0] == key):
            refused[:] = [key]
            raise OverflowError("unforeseen")
        return await real(self, key, *given, **named)

    with mock.patch.object(Store, "put", put):
        found = await Scaler(core, "one", SCOPE, provider.open).run_once()
    assert len(provider.machines) == 1
    assert f"{(MachineKeys.parse(refused[0]) or ('', ''))[1]}: " in found["a"].problem


@pytest.mark.parametrize("where", ["difference", "allowed_accounts", "in_force", "_merged"])
async def test_a_pool_that_fails_is_named_and_the_others_are_scaled(cluster: Cluster, where: str) -> None:
    core, providers = await cluster.core(), {pool: MemoryProvider() for pool in ("a", "odd", "z")}
    for pool in providers:
        await with_pool(core, pool)

    async def open_one(core: Core, pool: str, spec: ProvisioningSpec) -> MemoryProvider:
        return providers[pool]

    real, calls = getattr(scaler, where), itertools.count()

    def once(*given: Any) -> Any:
        if next(calls) == 0:
            raise RecursionError("unforeseen")
        return real(*given)

    with mock.patch.object(scaler, where, once):
        found = await Scaler(core, "one", SCOPE, open_one).run_once()
    assert sum(bool(provider.machines) for provider in providers.values()) >= 2
    assert ["unforeseen" in found[pool].problem for pool in sorted(found)].count(True) == 1


async def test_a_provider_that_cannot_be_closed_is_no_pools_trouble(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core, "a")
    scaling = Scaler(core, "one", SCOPE, provider.open)
    await scaling.run_once()
    with mock.patch.object(MemoryProvider, "close", side_effect=RuntimeError("unforeseen")):
        await scaling.close()
    assert (await scaling.run_once())["a"].problem == ""
