"""A process scales only the pools that its user named or described, but an agent on a machine scales every pool."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from fray_agents.provisioning.scaler import Scaler
from fray_coordinator.core import Core
from fray_coordinator.protocol.scaling.provisioning import ScalingScope, difference, left_out
from fray_coordinator.store.interface import ABSENT, ANY
from fray_layouts.object_keys import CoordinatorKeys, MachineKeys, PoolKeys
from fray_layouts.records import (
    AgentPoolRecord,
    CommandSettings,
    MachineRecord,
    PoolScaling,
    ProvisioningSpec,
    ScalerRecord,
    TpuSettings,
)
from tests.support.memory_provider import MemoryProvider
from tests.support.virtual import Cluster

OURS = ProvisioningSpec(provider="tpu", machine_type="v5litepod-4", zones=["us-a"], max=2, hourly_cost=1.0)
PROGRAM = CommandSettings(list=["evil"], create=["evil"], delete=["evil"])
EVIL = ProvisioningSpec(provider="command", min=1, max=1, command=PROGRAM)


class Opened:
    """Records which pools a scaler opens a provider for, and with which settings."""

    def __init__(self) -> None:
        self.specs: list[tuple[str, ProvisioningSpec]] = []

    async def __call__(self, core: Core, pool: str, spec: ProvisioningSpec) -> MemoryProvider:
        self.specs.append((pool, spec))
        return MemoryProvider()


async def put_pool(core: Core, pool: str, spec: ProvisioningSpec | None) -> None:
    await core.records.put(PoolKeys.record(pool), AgentPoolRecord(provisioning=spec), ANY)


async def machine(core: Core, pool: str) -> None:
    record = MachineRecord(pool=pool, name="m1-1", state="up", provider="command", command=PROGRAM, zone="z")
    await core.records.put(MachineKeys.key(pool, "m1-1"), record, ABSENT)


async def account(core: Core, pool: str) -> None:
    record = ScalerRecord(pools={pool: PoolScaling(accounts=[EVIL])})
    await core.records.put(CoordinatorKeys.scaler, record, ABSENT)


async def pool_of_others(core: Core, pool: str) -> None:
    await put_pool(core, "evil", EVIL)


async def another_project(core: Core, pool: str) -> None:
    await put_pool(core, pool, replace(OURS, tpu=TpuSettings(project="theirs")))


async def another_provider(core: Core, pool: str) -> None:
    await put_pool(core, pool, EVIL)


async def more_machines(core: Core, pool: str) -> None:
    await put_pool(core, pool, replace(OURS, max=1000, min=1000))


@pytest.mark.parametrize("write", [machine, account, pool_of_others])
async def test_what_others_write_beside_a_described_pool_opens_nothing(
    cluster: Cluster, write: Callable[[Core, str], object]
) -> None:
    core, opened = await cluster.core(), Opened()
    await put_pool(core, "train", OURS)
    await write(core, "train")  # type: ignore[misc]
    assert (await Scaler(core, "one", ScalingScope(described={"train": OURS}), opened).run_once()).keys() == {"train"}
    assert opened.specs == [("train", OURS)]


@pytest.mark.parametrize("change", [another_project, another_provider, more_machines])
async def test_a_described_pool_whose_record_says_otherwise_is_left_alone_and_named_once(
    cluster: Cluster, change: Callable[[Core, str], object], caplog: pytest.LogCaptureFixture
) -> None:
    core, opened = await cluster.core(), Opened()
    await put_pool(core, "train", OURS)
    scaler = Scaler(core, "one", ScalingScope(described={"train": OURS}), opened)
    await change(core, "train")  # type: ignore[misc]
    with caplog.at_level(logging.WARNING, "fray"):
        for _ in range(3):
            assert await scaler.run_once() == {}
    assert opened.specs == []
    (told,) = caplog.messages
    assert told.startswith(
        "pool train is not scaled by this process: it is in fray.yaml, but the cluster has other set"
    )
    assert told.endswith("`fray up` writes the file's, and `fray scale train` accepts the cluster's")


async def test_a_named_pool_is_scaled_as_its_record_says(cluster: Cluster) -> None:
    core, opened = await cluster.core(), Opened()
    await put_pool(core, "evil", EVIL)
    await put_pool(core, "other", EVIL)
    await Scaler(core, "one", ScalingScope(named=frozenset({"evil"})), opened).run_once()
    assert opened.specs == [("evil", EVIL)]


async def test_an_agent_on_a_machine_scales_every_pool_as_its_record_says(cluster: Cluster) -> None:
    core, opened = await cluster.core(), Opened()
    await put_pool(core, "ours", OURS)
    await put_pool(core, "other", EVIL)
    await Scaler(core, "one", ScalingScope(every=True), opened).run_once()
    assert sorted(opened.specs, key=lambda each: each[0]) == [("other", EVIL), ("ours", OURS)]


@pytest.mark.parametrize(
    ("scope", "pools"),
    [
        (ScalingScope(every=True), {"a", "b"}),
        (ScalingScope(named=frozenset({"new"}), every=True), {"a", "b", "new"}),
        (ScalingScope(named=frozenset({"a", "new"})), {"a", "new"}),
        (ScalingScope(), set()),
    ],
)
def test_a_scope_of_every_pool_has_those_of_the_bucket_too(scope: ScalingScope, pools: set[str]) -> None:
    assert scope.among(["a", "b"]) == pools
    assert left_out(scope, {"a": 50.0, "b": 20.0}, frozenset({"new"}), 40.0) == pools & {"b"}


async def test_pools_that_the_holder_of_the_role_does_not_scale_are_scaled_by_others(cluster: Cluster) -> None:
    core, opened = await cluster.core(), Opened()
    for pool in ("one", "two"):
        await put_pool(core, pool, OURS)
    first = Scaler(core, "first", ScalingScope(named=frozenset({"one"})), opened)
    both = Scaler(await cluster.core(), "both", ScalingScope(named=frozenset({"one", "two"})), opened)
    again = Scaler(await cluster.core(), "again", ScalingScope(named=frozenset({"two"})), opened)
    assert await first.run_if_elected()
    assert await both.run_if_elected()
    assert not await again.run_if_elected(), "another process has just scaled it"
    assert [pool for pool, _ in opened.specs] == ["one", "two"]
    found = await core.records.read(CoordinatorKeys.scaler, ScalerRecord)
    assert found is not None
    assert (found.record.holder, found.record.scope, sorted(found.record.pools)) == ("first", ["one"], ["one", "two"])


def test_a_pool_that_may_have_no_machines_now_is_still_the_described_one() -> None:
    scope = ScalingScope(described={"train": OURS})
    assert difference(scope, "train", replace(OURS, min=0, max=0)) == "", "`fray down` wrote it"
    assert difference(scope, "train", replace(EVIL, min=0, max=0)) != ""
    assert difference(scope, "train", None) == "the cluster has no such pool of machines"
    assert "(spot, max)" in difference(scope, "train", replace(OURS, spot=True, max=9))


def test_a_pool_is_left_out_if_its_last_run_is_old_and_the_holder_does_not_scale_it() -> None:
    scope = ScalingScope(named=frozenset({"a", "b"}), described={"c": OURS})
    assert left_out(scope, {"a": 50.0, "b": 20.0}, frozenset(), 40.0) == {"b", "c"}
    assert left_out(scope, {}, frozenset({"a", "b", "c"}), 40.0) == set()
