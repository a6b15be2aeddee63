"""How an agent acts on its votes and gangs besides following their records."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

from fray_agents.agent.gang_runner import GangRunner
from fray_agents.agent.held import HeldBundle, HeldPlacement
from fray_agents.agent.placement_loop import PlacementLoop
from fray_coordinator.core import Core
from fray_coordinator.protocol.placements.owners import owner_of_job
from fray_coordinator.store.records import Stored
from fray_layouts.records import JobRecord, Placement, ReplicaExit, Resources
from fray_layouts.spec import EntrypointSpec, JobSpec
from fray_layouts.states import HoldingPhase
from tests.support.members import trusted_member
from tests.support.virtual import Cluster


class Gangs:
    """Records which gangs are to run and to leave."""

    def __init__(self) -> None:
        self.left: list[tuple[str, float]] = []
        self.fails = False

    async def run(self, held: HeldPlacement) -> dict[int, ReplicaExit]:
        if self.fails:
            raise RuntimeError("its end cannot be written")
        return {}

    async def store_late(self, job: JobRecord, exits: dict[int, ReplicaExit]) -> None:
        assert not exits

    async def leave(self, held: HeldPlacement, grace: float) -> None:
        self.left.append((held.owner.id, grace))


class Stage:
    """An agent with bundles of gangs."""

    def __init__(self, core: Core) -> None:
        self.member = trusted_member(core, Resources(cpu=8000, memory=2**40, disk=2**40))
        self.gangs = Gangs()
        self.told = 0
        self.broken: list[BaseException] = []
        self.work: list[Coroutine[Any, Any, None]] = []

        async def claim(entry: object, room: object) -> bool:
            return False

        self.loop = PlacementLoop(
            self.member,
            cast("GangRunner", self.gangs),
            lambda: None,
            self._tell,
            self.work.append,
            self.broken.append,
            claim,
        )

    def _tell(self) -> None:
        self.told += 1

    def hold(self, name: str, phase: str) -> HeldPlacement:
        """Hold one bundle of a gang."""
        spec = JobSpec(name=name, entrypoint=EntrypointSpec(command=["x"]), replicas=2, grace=20.0)
        job = JobRecord(id=name, spec=spec, status="gathering", placement=Placement(round=1))
        owner = owner_of_job(job)
        bundle = HeldBundle(number=1, wants=owner.parts[0].shape)
        held = HeldPlacement(owner, Stored(owner.key, job, {}, "1", 0.0), (bundle,))
        self.member.leases.add_placement(held)
        assert self.member.leases.reserve(held.bundles, self.member.host_kind)
        held.phase = phase
        return held


async def test_the_pass_is_told_once_of_a_vote_that_a_beat_lists(cluster: Cluster) -> None:
    stage = Stage(await cluster.core())
    before = stage.member.leases.holdings()
    stage.hold("g", HoldingPhase.RESERVED)
    stage.loop.on_listed(before)
    assert stage.told == 0
    listed = stage.member.leases.holdings()
    stage.loop.on_listed(listed)
    assert stage.told == 1
    stage.loop.on_listed(listed)
    assert stage.told == 1


async def test_a_vote_of_an_earlier_round_is_not_told_for_this_one(cluster: Cluster) -> None:
    stage = Stage(await cluster.core())
    held = stage.hold("g", HoldingPhase.RESERVED)
    listed = stage.member.leases.holdings()
    held.round = 2
    stage.loop.on_listed(listed)
    assert stage.told == 0
    stage.loop.on_listed(stage.member.leases.holdings())
    assert stage.told == 1


async def test_a_leaving_agent_has_its_running_gangs_requeued_within_the_hosts_grace(cluster: Cluster) -> None:
    stage = Stage(await cluster.core())
    stage.hold("runs", HoldingPhase.RUNNING)
    stage.hold("votes", HoldingPhase.RESERVED)
    stage.loop.leave(15.0, at_once=False)
    await asyncio.gather(*stage.work)
    assert stage.gangs.left == [("runs", 15.0)]


async def test_a_gang_whose_end_cannot_be_written_ends_the_agent_and_stays_listed(cluster: Cluster) -> None:
    stage = Stage(await cluster.core())
    held = stage.hold("g", HoldingPhase.RUNNING)
    stage.gangs.fails = True
    await stage.loop._run(held)
    assert len(stage.broken) == 1
    assert "g" in stage.member.leases.holdings()
    stage.gangs.fails = False
    await stage.loop._run(held)
    assert "g" not in stage.member.leases.holdings()
