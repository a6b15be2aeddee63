"""An agent without tasks: it joins, sends heartbeats and claims through the real services, one step at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fray_coordinator.core import Core
from fray_coordinator.jobs.claiming import Claimed, NotClaimed, try_claim
from fray_coordinator.jobs.commit import end_attempt
from fray_coordinator.jobs.submission import submit
from fray_coordinator.protocol.commit import AttemptEnd
from fray_coordinator.protocol.heartbeat import HeartbeatInput, is_fenced, next_beat
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.index_keys import PendingKey
from fray_layouts.object_keys import AgentKeys, CoordinatorKeys, JobKeys
from fray_layouts.records import AgentRecord, AttemptExit, Holding, JobRecord, ReconcilerRecord, Resources
from fray_layouts.spec_parsing import parse_spec
from tests.support.virtual import Cluster

CAPACITY = Resources(cpu=8000, memory=2**36, disk=2**36)


@dataclass(slots=True)
class ScriptedAgent:
    """One scripted agent. holding: what its next heartbeat lists; supports_placements: whether it knows gangs."""

    core: Core
    id: str
    interval: float = 5.0
    holding: dict[str, Holding] = field(default_factory=dict)
    supports_placements: bool = False

    async def beat(self, leaving: bool = False) -> bool:
        """Send a heartbeat; the first one creates the record. Returns False once the agent is fenced."""

        def next_body(now: AgentRecord | None) -> AgentRecord | None:
            if now is not None and is_fenced(now):
                return None
            fresh = AgentRecord(
                id=self.id,
                host=self.id,
                pool="default",
                capacity=CAPACITY,
                supports_placements=self.supports_placements,
            )
            return next_beat(now or fresh, HeartbeatInput(self.holding, self.interval, CAPACITY, leaving=leaving))

        return (await self.core.records.update(AgentKeys.key(self.id), AgentRecord, next_body)).wrote

    async def beat_for_ever(self, every: float = 5.0) -> None:
        while await self.beat():
            await self.core.clock.sleep(every)

    async def claim(self, listed: bool = True) -> Stored[JobRecord]:
        """Claim the first entry of the index and list it; both must succeed."""
        result = await self.try_claim()
        assert isinstance(result, Claimed), result
        job = result.job.record
        self.holding[job.id] = Holding(attempt=job.attempt, phase="running")
        if listed:
            await self.beat()
        return result.job

    async def try_claim(self) -> Claimed | NotClaimed:
        keys = [row.key for row in await self.core.store.list("pending/")]
        entry = PendingKey.parse(keys[0])
        assert entry is not None
        return await try_claim(self.core, entry, self.id, self.id)

    async def end(self, held: Stored[JobRecord], kind: str = "success", **more: Any) -> JobRecord | None:
        """End the attempt and stop listing it."""
        entry = entry_of(held.record)
        ended = await end_attempt(self.core, held, self.id, AttemptEnd(AttemptExit(kind=kind), **more), entry)
        self.holding.pop(held.record.id, None)
        return record_of(ended)


async def join(cluster: Cluster, name: str, interval: float = 5.0, supports_placements: bool = False) -> ScriptedAgent:
    """A new agent whose record exists."""
    hand = ScriptedAgent(await cluster.core(), name, interval, supports_placements=supports_placements)
    await hand.beat()
    return hand


async def launch(core: Core, attempt_of_parent: int | None = None, **spec: Any) -> JobRecord:
    """Submit one job with a command that is never run."""
    wanted = {"name": "job", "entrypoint": {"command": ["true"]}, **spec}
    return (await submit(core, [parse_spec(wanted)], attempt_of_parent))[0].job


async def job_now(core: Core, job_id: str) -> JobRecord:
    """The job's record, which must exist."""
    found = await core.records.read(JobKeys.key(job_id), JobRecord)
    assert found is not None, f"{job_id} is gone"
    return found.record


async def agent_now(core: Core, agent_id: str) -> AgentRecord:
    """The agent's record, which must exist."""
    found = await core.records.read(AgentKeys.key(agent_id), AgentRecord)
    assert found is not None, f"{agent_id} is gone"
    return found.record


async def pass_now(core: Core) -> ReconcilerRecord:
    """The lease of the pass, which must exist."""
    found = await core.records.read(CoordinatorKeys.reconciler, ReconcilerRecord)
    assert found is not None
    return found.record


async def passes(coordinator: Reconciler, seconds: float, every: float = 8.0) -> None:
    """Run passes for a while."""
    end = coordinator.core.clock.boottime() + seconds
    while coordinator.core.clock.boottime() < end:
        await coordinator.try_pass()
        await coordinator.core.clock.sleep(every)
