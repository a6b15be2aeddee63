"""Owners and machines whose fields contradict one another: every step over all of them goes on, in bounded memory."""

from __future__ import annotations

import json
import random
import tracemalloc
from typing import Any

import pytest

from fray_agents.provisioning.scaler import Scaler
from fray_coordinator import fsck
from fray_coordinator.protocol.scaling.provisioning import ScalingScope
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.store.interface import ANY
from fray_layouts.object_keys import MachineKeys, PoolKeys
from fray_layouts.records import AgentPoolRecord, ProvisioningSpec, Resources
from tests.support.malformed_objects import contradictory, waiting_owner
from tests.support.memory_provider import MemoryProvider
from tests.support.scripted_agents import job_now
from tests.support.scripted_members import gang, gathering, members_of
from tests.support.virtual import Cluster

SCOPE = ScalingScope(named=frozenset({"burst", "odd"}))
PER_SEED = 12
"""Contradictory owners, and as many machines, of one seed."""

MEMORY = 64 * 1024**2
"""Bytes that all steps together may take: a list of as many numbers as some of these fields say takes terabytes."""

MACHINE: dict[str, Any] = {"state": "up", "hosts": 1, "batch": "m", "batch_size": 1, "provider": "command"}


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 12))])
async def test_records_that_contradict_themselves_harm_only_themselves(cluster: Cluster, seed: int) -> None:
    draw = random.Random(f"contradictions {seed}")
    found = await gathering(cluster, "a-1", "a-2")
    core = found.core
    machines = ProvisioningSpec(provider="command", capacity=Resources(cpu=1000), max=3, min=1)
    await core.records.write(PoolKeys.record("burst"), AgentPoolRecord, AgentPoolRecord(provisioning=machines), None)
    for number in range(PER_SEED):
        for odd in waiting_owner(draw, draw.choice(["default", "burst"])):
            await core.store.put(odd.key, odd.data, ANY)
        machine = contradictory(draw, {"pool": "odd", "name": f"m-{number}", **MACHINE})
        await core.store.put(MachineKeys.key("odd", f"m-{number}"), machine, ANY)
    wanted = await gang(found)
    provider = MemoryProvider()
    tracemalloc.start()
    try:
        await found.step()
        await found.step()
        await Scaler(core, "one", SCOPE, provider.open).run_once()
        reconciler = Reconciler(core, "p")
        await reconciler.try_pass()
        await reconciler.repair.run({})
        await fsck.check(core)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert members_of(await job_now(core, wanted.id)) == {"a-1": [0], "a-2": [1]}
    assert ("create", "") in provider.asked, "the least that pool burst has"
    assert peak < MEMORY, f"{peak >> 20} MiB"


def test_the_grammar_contradicts_relations_and_keeps_types() -> None:
    """Some of what it draws is refused by a check, which types and bounds alone would accept."""
    draw = random.Random(5)
    drawn = [json.loads(waiting_owner(draw)[1].data) for _ in range(300)]
    numbers = {record["low"] for record in drawn if "low" in record}
    bundles = {tuple(m["bundles"]) for r in drawn for m in r["placement"].get("members", ()) if "bundles" in m}
    assert {1, 10**12} <= numbers
    assert any(len(set(one)) < len(one) for one in bundles)
