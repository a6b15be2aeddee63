"""An agent and the owners that it holds bundles of: it reads, keeps room, votes, starts and lets go."""

from __future__ import annotations

import dataclasses
import math

import msgspec
from msgspec.structs import replace

from fray_agents.agent.held import HeldPlacement
from fray_agents.agent.membership import Membership
from fray_agents.agent.placement_loop import PlacementWatch
from fray_agents.agent.private_pools import ReservationRooms
from fray_agents.agent.voting import Voting
from fray_coordinator.core import Core
from fray_coordinator.protocol.heartbeat import HeartbeatInput, next_beat
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.store.interface import ABSENT, ANY
from fray_layouts.object_keys import JobKeys, PoolKeys
from fray_layouts.records import AgentRecord, Holding, JobRecord, Placement, PlacementMember, PoolPlan, Resources
from fray_layouts.spec import EntrypointSpec, JobSpec, ResourceSpec
from fray_layouts.states import ExitKind
from tests.support.members import trusted_member
from tests.support.unforeseen import raising_for
from tests.support.virtual import Cluster

HOST = Resources(cpu=4000, memory=2**40, disk=2**40)


class Stage:
    """An agent named "agent" of four cores, and a gang "g" of four replicas."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.member: Membership = trusted_member(core, HOST)
        self.started: list[HeldPlacement] = []
        self.freed = 0
        self.voting = Voting(self.member, self.started.append, self._free)
        rooms = ReservationRooms(self.member, self.voting.let_go, self._free)
        self.watch = PlacementWatch(self.member, self.voting, rooms)

    def _free(self) -> None:
        self.freed += 1

    async def assign(self, mine: list[int], round: int = 1, *, cpu: float = 1.0, **more: object) -> None:
        """Write the gang's record with these replicas on the agent, and a plan that names it."""
        members = [PlacementMember(agent="agent", bundles=mine)] if mine else []
        resources = ResourceSpec(cpu=cpu)
        spec = JobSpec(name="g", entrypoint=EntrypointSpec(command=["x"]), replicas=4, resources=resources)
        job = JobRecord(id="g", spec=spec, status="gathering", placement=Placement(round=round, members=members))
        for name, value in more.items():
            setattr(job, name, value)
        await self.core.records.put(JobKeys.key("g"), job, ANY)
        await self.core.records.put(PoolKeys.plan("default"), PoolPlan(owners={"agent": [JobKeys.key("g")]}), ANY)

    async def poll(self) -> HeldPlacement | None:
        """Look at everything now. Returns the gang's bundles that the agent holds afterwards."""
        self.watch.plan_rang()
        self.watch.poll_soon()
        await self.watch.poll()
        return self.member.leases.placements.get("g")

    def listed(self) -> tuple[str, int, list[int]] | None:
        """The entries of the gang in the next heartbeat."""
        holding = self.member.leases.holdings().get("g")
        return (holding.phase, holding.round, holding.bundles) if holding is not None else None

    def fill(self, name: str, cpu: float) -> None:
        """Run a single job here."""
        spec = JobSpec(name=name, entrypoint=EntrypointSpec(command=["x"]), resources=ResourceSpec(cpu=cpu))
        self.member.leases.add(entry_of(JobRecord(id=name, spec=spec, status="running")))

    async def job(self) -> JobRecord:
        found = await self.core.records.read(JobKeys.key("g"), JobRecord)
        assert found is not None
        return found.record


async def test_a_member_votes_once_it_has_room(cluster: Cluster) -> None:
    stage = Stage(await cluster.core())
    stage.fill("s", 3)
    await stage.assign([1, 3])
    assert await stage.poll() is not None
    assert stage.listed() is None
    assert stage.member.leases.unreserved().cpu == 0
    stage.member.leases.remove(stage.member.leases.held["s"])
    assert stage.member.leases.unreserved().cpu == 2000
    await stage.poll()
    assert stage.listed() == ("reserved", 1, [1, 3])
    assert stage.member.beat_by <= stage.member.core.clock.boottime()


async def test_the_host_of_the_first_replica_votes_with_a_port_for_all(cluster: Cluster) -> None:
    stage = Stage(await cluster.core())
    await stage.assign([0])
    held = await stage.poll()
    assert held is not None
    assert set(stage.member.leases.holdings()["g"].ports) == {"coordinator"}
    await stage.voting.let_go(held)


async def test_a_vote_holds_until_the_record_moves_on(cluster: Cluster) -> None:
    stage = Stage(await cluster.core())
    await stage.assign([1])
    await stage.poll()
    await stage.core.records.put(PoolKeys.plan("default"), PoolPlan(), ANY)
    assert await stage.poll() is not None
    await stage.assign([2, 3], 2)
    await stage.poll()
    assert stage.listed() == ("reserved", 2, [2, 3])
    await stage.assign([], 3)
    assert await stage.poll() is None
    assert stage.freed >= 1
    assert stage.member.leases.free() == HOST


async def test_a_gang_that_is_gone_or_ended_is_let_go(cluster: Cluster) -> None:
    stage = Stage(await cluster.core())
    await stage.assign([1])
    await stage.poll()
    await stage.core.store.delete(JobKeys.key("g"))
    assert await stage.poll() is None
    await stage.assign([1], 2)
    assert await stage.poll() is not None
    await stage.assign([1], 2, status="stopped")
    assert await stage.poll() is None


async def test_a_host_that_is_too_small_for_ever_refuses(cluster: Cluster) -> None:
    stage = Stage(await cluster.core())
    await stage.assign([1], cpu=5)
    await stage.poll()
    assert stage.listed() == ("refused", 1, [])
    assert stage.member.leases.unreserved() == HOST
    await stage.assign([], 2, cpu=5)
    assert await stage.poll() is None


async def test_a_started_replica_runs_once_and_only_with_trust(cluster: Cluster) -> None:
    stage = Stage(await cluster.core())
    await stage.assign([1])
    await stage.poll()
    await stage.assign([1], status="running")
    stage.member.trusted_until = 0.0
    await stage.poll()
    assert stage.started == []
    stage.member.trusted_until = float("inf")
    held = await stage.poll()
    assert stage.started == [held]
    assert stage.listed() == ("running", 1, [1])
    await stage.poll()
    assert stage.started == [held]


async def test_a_running_member_is_stopped_on_a_stop_and_on_an_end_elsewhere(cluster: Cluster) -> None:
    stage = Stage(await cluster.core())
    await stage.assign([1])
    await stage.poll()
    await stage.assign([1], status="running")
    held = await stage.poll()
    assert held is not None
    assert all(bundle.stop is None for bundle in held.bundles)
    await stage.assign([1], 2, attempt=2)
    assert await stage.poll() is held
    assert [bundle.stop for bundle in held.bundles] == [(10.0, ExitKind.LOST)]
    assert stage.listed() == ("running", 1, [1])
    await stage.voting.let_go(held)
    await stage.poll()
    assert stage.listed() == ("reserved", 2, [1])


async def test_a_leaving_member_moves_the_round_before_it_frees_its_room(cluster: Cluster) -> None:
    stage = Stage(await cluster.core())
    await stage.assign([1])
    await stage.poll()
    stage.member.leaving = True
    assert not stage.member.leases.nothing_to_do()
    assert await stage.poll() is None
    placement = (await stage.job()).placement
    assert placement is not None
    assert (placement.round, placement.members) == (2, [])
    assert stage.member.leases.nothing_to_do()


async def test_a_leaving_member_that_reads_that_its_gang_runs_ends_the_attempt_as_preempted(cluster: Cluster) -> None:
    stage = Stage(await cluster.core())
    await stage.assign([1])
    await stage.poll()
    stage.member.leaving = True
    await stage.assign([1], status="running")
    held = await stage.poll()
    assert held is not None
    assert stage.started == [held]
    assert [bundle.stop for bundle in held.bundles] == [(0.0, ExitKind.PREEMPTED)]


async def test_an_unfit_member_refuses_its_bundles(cluster: Cluster) -> None:
    stage = Stage(await cluster.core())
    stage.member.problems.disk = "full"
    await stage.assign([1])
    await stage.poll()
    assert stage.listed() == ("refused", 1, [])


async def test_a_leaving_agent_forgets_its_refusals(cluster: Cluster) -> None:
    stage = Stage(await cluster.core())
    await stage.assign([1], cpu=5)
    await stage.poll()
    assert stage.listed() == ("refused", 1, [])
    stage.member.leaving = True
    assert await stage.poll() is None
    assert (await stage.job()).placement == Placement(round=1, members=[PlacementMember(agent="agent", bundles=[1])])


async def test_only_gangs_are_voted_for(cluster: Cluster) -> None:
    stage = Stage(await cluster.core())
    spec = JobSpec(name="g", entrypoint=EntrypointSpec(command=["x"]))
    placement = Placement(round=1, members=[PlacementMember(agent="agent", bundles=[0])])
    job = JobRecord(id="g", spec=spec, status="gathering", placement=placement)
    await stage.core.records.put(JobKeys.key("g"), job, ABSENT)
    await stage.core.records.put(PoolKeys.plan("default"), PoolPlan(owners={"agent": [JobKeys.key("g")]}), ANY)
    assert await stage.poll() is None


async def test_odd_records_and_plans_harm_nobody(cluster: Cluster) -> None:
    stage = Stage(await cluster.core())
    await stage.core.store.put(PoolKeys.plan("default"), b"no plan", ANY)
    assert await stage.poll() is None
    await stage.core.store.put(JobKeys.key("h"), b"no record", ANY)
    await stage.assign([1])
    both = PoolPlan(owners={"agent": [JobKeys.key("h"), JobKeys.key("g")]})
    await stage.core.records.put(PoolKeys.plan("default"), both, ANY)
    held = await stage.poll()
    assert held is not None
    assert stage.listed() == ("reserved", 1, [1])
    await stage.core.store.put(JobKeys.key("g"), b"no record", ANY)
    assert await stage.poll() is held


async def test_the_beat_has_short_intervals_while_a_vote_is_out(cluster: Cluster) -> None:
    stage = Stage(await cluster.core())
    assert not stage.member.leases.lists_any()
    await stage.assign([1])
    await stage.poll()
    assert stage.member.leases.lists_any()


async def test_a_replica_ends_with_the_trust_of_its_agent(cluster: Cluster) -> None:
    stage = Stage(await cluster.core())
    await stage.assign([1])
    job = await stage.job()
    now = stage.core.clock.boottime()
    stage.member.trusted_until = now + 2
    assert stage.member.task_deadline(job) <= now + 2
    alone = replace(job, spec=replace(job.spec, replicas=1))
    assert stage.member.task_deadline(alone) > now + 2


def test_a_leaving_agent_says_so_in_each_beat_and_is_not_chosen() -> None:
    record = AgentRecord(id="agent", host="h", pool="default")
    pulse = HeartbeatInput({"g": Holding(attempt=1, phase="reserved")}, 5.0, HOST, leaving=True)
    beat = next_beat(record, pulse)
    assert (beat.drain, beat.state) == (True, "live")


async def test_a_heartbeat_that_may_wait_puts_off_none_that_is_wanted_now(cluster: Cluster) -> None:
    member = Stage(await cluster.core()).member
    member.request_beat()
    member.request_beat(10.0)
    assert member.beat_by <= member.core.clock.boottime()


async def test_members_of_a_large_gang_say_in_turn_that_they_have_let_go(cluster: Cluster) -> None:
    stage = Stage(await cluster.core())
    await stage.assign([1])
    held = await stage.poll()
    assert held is not None
    held.owner = dataclasses.replace(held.owner, low=1000)
    stage.member.beat_by = math.inf
    await stage.voting.let_go(held)
    assert 0.0 < stage.member.beat_by - stage.member.core.clock.boottime() <= 1.0


async def test_an_error_in_one_owner_keeps_no_other_owner_from_being_followed(cluster: Cluster) -> None:
    stage = Stage(await cluster.core())
    await stage.assign([1])
    await stage.core.records.put(
        PoolKeys.plan("default"), PoolPlan(owners={"agent": [JobKeys.key("a-odd"), JobKeys.key("g")]}), ANY
    )
    await stage.core.store.put(JobKeys.key("a-odd"), msgspec.json.encode(replace(await stage.job(), id="a-odd")), ANY)
    with raising_for("a-odd", Voting, "follow"):
        assert await stage.poll() is not None
    assert stage.listed() == ("reserved", 1, [1])
