"""Members of placements without tasks: they read plans and vote through the real services, one step at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fray_coordinator.core import Core
from fray_coordinator.placements.scheduler import PlacementScheduler
from fray_coordinator.protocol.placements.rounds import owner_of
from fray_coordinator.store.records import Stored
from fray_layouts.object_keys import AgentKeys, JobKeys, PoolKeys
from fray_layouts.records import AgentRecord, HintEndpoint, Holding, JobRecord, PoolPlan, Resources, Suspect
from tests.support.scripted_agents import launch
from tests.support.virtual import Cluster

ONE_CORE = Resources(cpu=1000, memory=2**36, disk=2**36)


@dataclass(slots=True)
class Member:
    """An agent that knows the rules of placements."""

    core: Core
    record: AgentRecord
    held: dict[str, Holding] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.record.id

    async def beat(self, **changes: Any) -> None:
        """Write its record with its current holdings and these changed fields."""
        for name, value in changes.items():
            setattr(self.record, name, value)
        self.record.beat += 1
        self.record.holdings = dict(self.held)
        found = await self.core.records.read(AgentKeys.key(self.id), AgentRecord)
        written = await self.core.records.write(AgentKeys.key(self.id), AgentRecord, self.record, found)
        assert written.wrote

    async def plan(self) -> list[str]:
        """The owners that it should read, by the plan of its pool."""
        found = await self.core.records.read(PoolKeys.plan(self.record.pool), PoolPlan)
        return found.record.owners.get(self.id, []) if found is not None else []

    async def vote(self, job: str, phase: str = "reserved", **more: Any) -> None:
        """List what the job's current record assigns to it; nothing if it assigns nothing."""
        found = await self.core.records.read(JobKeys.key(job), JobRecord)
        assert found is not None
        owner = owner_of(found.record)
        bundles = owner.bundles_of(self.id)
        self.held.pop(job, None)
        if bundles:
            round_ = owner.placement.round
            self.held[job] = Holding(attempt=owner.attempt, phase=phase, round=round_, bundles=list(bundles), **more)
        await self.beat()


@dataclass(slots=True)
class Gathering:
    """A scheduler with its agents."""

    core: Core
    members: list[Member]
    hinted: list[str] = field(default_factory=list)
    suspects: dict[str, Suspect] = field(default_factory=dict)
    scheduler: PlacementScheduler = field(init=False)
    _seen: dict[str, Stored[AgentRecord]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scheduler = PlacementScheduler(self.core, lambda: self._seen, lambda: self.suspects, self._send_hints)

    async def read_agents(self) -> None:
        """Read all agents, as the pass does now and then."""
        self._seen = {}
        for member in self.members:
            found = await self.core.records.read(AgentKeys.key(member.id), AgentRecord)
            if found is not None and found.record.state == "live":
                self._seen[member.id] = found

    async def step(self, reads_agents: bool = True, woken: bool = False) -> None:
        """A step of the scheduler, by default after a read of all agents."""
        if reads_agents:
            await self.read_agents()
        await self.scheduler.step(woken)

    def _send_hints(self, endpoints: object) -> None:
        assert isinstance(endpoints, list)
        self.hinted += [endpoint.address for endpoint in endpoints if isinstance(endpoint, HintEndpoint)]


async def gathering(cluster: Cluster, *names: str, core: Core | None = None, **fields: Any) -> Gathering:
    """A scheduler, and agents of one core each that have joined."""
    members = [
        Member(
            await cluster.core(),
            AgentRecord(
                id=name,
                host=f"{name}.example",
                hint_endpoint=HintEndpoint(address=f"{name}.example:1", nonce=name),
                **{"pool": "default", "supports_placements": True, "capacity": ONE_CORE, "free": ONE_CORE, **fields},
            ),
        )
        for name in names
    ]
    for member in members:
        await member.beat()
    found = Gathering(core or await cluster.core(), members)
    await found.read_agents()
    return found


async def gang(found: Gathering, replicas: int = 2, **spec: Any) -> JobRecord:
    """Submit a gang; return its record."""
    return await launch(found.core, name="gang", replicas=replicas, **spec)


async def vote_all(found: Gathering, job: str) -> None:
    """Let every agent list what the job's record assigns to it."""
    for member in found.members:
        await member.vote(job)


def members_of(job: JobRecord) -> dict[str, list[int]]:
    """The replicas of each of its members."""
    assert job.placement is not None
    return {member.agent: member.bundles for member in job.placement.members}
