"""One run of the scaler over many pools: its processor time, and its requests to the storage.

Every machine is up and busy, each pool has as many machines as it may, and ten jobs wait in it. The store and the
provider are in memory. The first run reads all records; the second one finds nothing changed; before the third every
agent has sent a heartbeat, which real agents need a minute for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness import arguments, report, say
from msgspec.structs import replace

from fray_agents.provisioning.provider import MachineRequest, ProviderError
from fray_agents.provisioning.scaler import Scaler
from fray_coordinator.core import Core, open_core
from fray_coordinator.jobs.submission import submit
from fray_coordinator.protocol.scaling.provisioning import ScalingScope
from fray_coordinator.protocol.scaling.view import ListedMachine, ListedState
from fray_coordinator.store.interface import ABSENT, ANY
from fray_coordinator.store.metering import GCS_PRICES
from fray_layouts.object_keys import AgentKeys, MachineKeys, PoolKeys
from fray_layouts.records import (
    AgentPoolRecord,
    AgentRecord,
    ClusterSettings,
    Holding,
    MachineRecord,
    ProvisioningSpec,
    Resources,
)
from fray_layouts.spec_parsing import parse_spec

JOBS = 10
"""Jobs that wait in each pool."""
HOST = Resources(cpu=4000, memory=2**34, disk=2**34)


@dataclass(frozen=True)
class Listing:
    """A provider whose machines are all ready."""

    machines: Sequence[ListedMachine]

    async def list(self) -> Sequence[ListedMachine]:
        return self.machines

    async def create(self, request: MachineRequest) -> str:
        raise AssertionError("no pool may have another machine")

    async def delete(self, name: str, zone: str, batch: str = "") -> None:
        raise AssertionError("every machine has work")

    async def check(self) -> Sequence[ProviderError]:
        return []

    async def close(self) -> None:
        pass


async def runs(pools: int, machines: int) -> dict[str, Any]:
    """The figures of three runs."""
    core = await open_core("memory://bench-scaler", ClusterSettings())
    providers = {f"pool-{number:03}": await fill(core, f"pool-{number:03}", machines) for number in range(pools)}
    agents = [key for row in await core.store.list(AgentKeys.area) if AgentKeys.parse(key := row.key)]
    say(f"{len(agents)} machines in {pools} pools")

    async def opened(core: Core, pool: str, spec: ProvisioningSpec) -> Listing:
        return providers[pool]

    scaler = Scaler(core, "bench", ScalingScope(named=frozenset(providers)), opened)
    figures = {"first": await timed(scaler), "nothing_changed": await timed(scaler)}
    for key in agents:
        await core.records.change(key, AgentRecord, lambda agent: replace(agent, beat=agent.beat + 1))
    figures["all_agents_have_beaten"] = await timed(scaler)
    await core.store.close()
    return figures


async def timed(scaler: Scaler) -> dict[str, Any]:
    """One run: seconds of processor time, and requests."""
    before, begun = scaler.core.store.usage.snapshot(), time.process_time()
    assert await scaler.run_if_elected()
    took, asked = time.process_time() - begun, scaler.core.store.usage - before
    return {"cpu_seconds": round(took, 3), **asdict(asked), "gcs_dollars": round(asked.cost(GCS_PRICES), 6)}


async def fill(core: Core, pool: str, count: int) -> Listing:
    """Fill a pool with machines, each with an agent that has work."""
    spec = ProvisioningSpec(provider="command", zones=["here-a"], max=count, hourly_cost=1.0, capacity=HOST)
    await core.records.put(PoolKeys.record(pool), AgentPoolRecord(provisioning=spec), ABSENT)
    listed = []
    for number in range(count):
        name, now = MachineKeys.fresh(core.now(), core.rng.token()), core.now()
        machine = MachineRecord(pool=pool, name=name, provider="command", zone="here-a", state="up", batch=name)
        machine = replace(
            machine, hourly_cost=1.0, wanted_at=now, asked_at=now, created_at=now, billed_at=now, up_at=now
        )
        await core.records.put(MachineKeys.key(pool, name), machine, ABSENT)
        agent = AgentRecord(
            id=f"{pool}-{number}-{core.rng.token()}",
            host=name,
            pool=pool,
            machine=name,
            interval=60.0,
            capacity=HOST,
            holdings={f"job-{pool}-{number}": Holding(attempt=1, phase="running")},
        )
        await core.records.put(AgentKeys.key(agent.id), agent, ANY)
        listed.append(ListedMachine(pool, name, "here-a", ListedState.READY, batch=name))
    wants = {"name": "job", "pool": pool, "entrypoint": {"command": ["true"]}, "resources": {"cpu": 4}}
    await submit(core, [parse_spec(wants) for _ in range(JOBS)])
    return Listing(listed)


def main() -> None:
    options = arguments(__doc__)
    pools, machines = (3, 2) if options.quick else (100, 10)
    figures = asyncio.run(runs(pools, machines))
    report("scaler", {"pools": pools, "machines": pools * machines, **figures, "goal_cpu_seconds": 1.0})


if __name__ == "__main__":
    main()
