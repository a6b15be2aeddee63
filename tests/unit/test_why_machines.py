"""Why a job waits in a pool of machines: coming machines, the zones' answers, and the limit on the pool's machines."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from fray_coordinator.core import open_core
from fray_coordinator.jobs.pools import change_pool
from fray_coordinator.jobs.waiting import WaitingReasons
from fray_coordinator.jobs.why_machines import about_machines, machines_for
from fray_coordinator.jobs.why_waiting import why_waiting
from fray_coordinator.store.interface import ABSENT, ANY
from fray_layouts.object_keys import CoordinatorKeys, MachineKeys
from fray_layouts.records import (
    AgentPoolRecord,
    JobRecord,
    MachineRecord,
    PoolScaling,
    ProvisioningSpec,
    ScalerRecord,
    ZoneAnswer,
)
from fray_layouts.spec_parsing import parse_spec
from tests.support.virtual import Cluster

SPEC = ProvisioningSpec(
    provider="tpu", machine_type="v6e-8", zones=["us-east5-a", "europe-west4-b"], max=4, max_hourly_cost=60.0
)
STOCKOUT = {"us-east5-a": ZoneAnswer(kind="stockout", text="no capacity")}
BOTH = {**STOCKOUT, "europe-west4-b": ZoneAnswer(kind="quota", text="")}
COMING = MachineRecord(pool="p", name="m1", state="creating", zone="europe-west4-b")
UP = MachineRecord(pool="p", name="m2", state="up", zone="us-east5-a")


@pytest.mark.parametrize(
    ("scaling", "machines", "says"),
    [
        (PoolScaling(), [UP], ""),
        (PoolScaling(), [COMING, UP], "1 machine is on the way: m1"),
        (PoolScaling(zones=STOCKOUT), [], "stockout in us-east5-a, trying europe-west4-b"),
        (
            PoolScaling(zones=STOCKOUT),
            [COMING],
            "stockout in us-east5-a, trying europe-west4-b; 1 machine is on the way: m1",
        ),
        (
            PoolScaling(zones=BOTH, limit="zones"),
            [UP],
            "quota in europe-west4-b, stockout in us-east5-a (no capacity); no zone of its pool grants a machine now",
        ),
        (PoolScaling(limit="max"), [UP], "its pool has as many machines as it may, 4"),
        (
            PoolScaling(limit="cost", hourly_cost=43.2),
            [UP],
            "its pool costs $43.20 an hour, and its limit of $60.00 allows no more",
        ),
        (PoolScaling(problem="no credentials"), [], "its pool cannot be scaled: no credentials"),
    ],
)
def test_the_limit_on_a_pools_machines_is_reported(
    scaling: PoolScaling, machines: list[MachineRecord], says: str
) -> None:
    assert about_machines("p", SPEC, replace(scaling, ran_at=100.0), machines, 110.0) == says


def test_a_pool_that_nobody_looks_at_is_told() -> None:
    remedy = "; run `fray scale p`, or wait where its fray.yaml is"
    assert about_machines("p", SPEC, None, [], 1000.0).endswith(f"no scaler has looked at it yet{remedy}")
    old = PoolScaling(ran_at=100.0)
    assert about_machines("p", SPEC, old, [UP], 1000.0).endswith(f"no scaler has looked at it for 900 s{remedy}")


async def test_a_job_that_waits_for_machines_reports_their_state_within_half_a_minute(cluster: Cluster) -> None:
    core = await cluster.core()
    await change_pool(core, "p", lambda record: AgentPoolRecord(provisioning=SPEC))
    reasons = WaitingReasons(core)
    job = JobRecord(
        id="j-1", spec=parse_spec({"name": "j", "entrypoint": {"command": ["x"]}, "pool": "p"}), status="pending"
    )
    for _ in range(300):
        await reasons.update([job])
        await asyncio.sleep(1)
    scaler = ScalerRecord(pools={"p": PoolScaling(ran_at=core.now(), zones=STOCKOUT)})
    await core.records.put(CoordinatorKeys.scaler, scaler, ABSENT)
    for _ in range(31):
        await reasons.update([job])
        await asyncio.sleep(1)
    assert "stockout in us-east5-a" in reasons.text


async def test_a_machine_whose_start_fails_is_reported_soon(cluster: Cluster) -> None:
    core = await cluster.core()
    await change_pool(core, "p", lambda record: AgentPoolRecord(provisioning=SPEC))
    reasons = WaitingReasons(core)
    job = JobRecord(
        id="j-1", spec=parse_spec({"name": "j", "entrypoint": {"command": ["x"]}, "pool": "p"}), status="pending"
    )
    texts = []
    for second in range(6):
        if second == 3:
            scaler = ScalerRecord(pools={"p": PoolScaling(ran_at=core.now(), zones=STOCKOUT)})
            await core.records.put(CoordinatorKeys.scaler, scaler, ABSENT)
        texts.append(await reasons.update([job]))
        await asyncio.sleep(1)
    news = [second for second, text in enumerate(texts) if text]
    assert news == [2, 4]
    assert "stockout in us-east5-a" in texts[4]


async def test_while_jobs_wait_for_machines_reasons_are_asked_for_at_intervals_that_double_up_to_half_a_minute(
    cluster: Cluster,
) -> None:
    core = await cluster.core()
    await change_pool(core, "p", lambda record: AgentPoolRecord(provisioning=SPEC))
    reasons, asked = WaitingReasons(core), cluster.connections[-1].asked
    job = JobRecord(
        id="j-1", spec=parse_spec({"name": "j", "entrypoint": {"command": ["x"]}, "pool": "p"}), status="pending"
    )
    asked_at = []
    for second in range(100):
        asked.clear()
        await reasons.update([job])
        if ("list", "agents/") in asked:
            asked_at.append(second)
        await asyncio.sleep(1)
    assert asked_at == [2, 4, 8, 16, 32, 62, 92]


async def test_a_job_reports_the_state_of_its_pool_of_machines() -> None:
    core = await open_core("memory://why-machines")
    spec = parse_spec({"name": "j", "entrypoint": {"command": ["x"]}, "pool": "p"})
    job = JobRecord(id="j-1", spec=spec, status="pending")
    assert await machines_for(core, [job], {}) == {}
    await change_pool(core, "p", lambda record: AgentPoolRecord(provisioning=SPEC))
    await core.records.put(MachineKeys.key("p", "m1"), COMING, ABSENT)
    scaler = ScalerRecord(pools={"p": PoolScaling(ran_at=core.now(), zones=STOCKOUT)})
    await core.records.put(CoordinatorKeys.scaler, scaler, ABSENT)
    told = why_waiting(job, [], core.now(), machines=await machines_for(core, [job], {}))
    assert told == (
        "no live agent in pool p: stockout in us-east5-a, trying europe-west4-b; 1 machine is on the way: m1"
    )
    await core.store.close()


async def test_a_scalers_record_that_cannot_be_read_is_said_and_keeps_nobody_from_waiting() -> None:
    core = await open_core("memory://why-scaler")
    spec = parse_spec({"name": "j", "entrypoint": {"command": ["x"]}, "pool": "p"})
    job = JobRecord(id="j-1", spec=spec, status="pending")
    await change_pool(core, "p", lambda record: AgentPoolRecord(provisioning=SPEC))
    await core.store.put(CoordinatorKeys.scaler, b"{", ANY)
    told = (await machines_for(core, [job], {}))["p"]
    assert told.startswith("its pool may have machines, but coordinator/scaler.json does not hold a ScalerRecord")
    await core.store.close()
