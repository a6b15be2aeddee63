"""Drivers, which are programs outside of jobs: what ends with them and when; in virtual time, under an agent's pass."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from fray_agents.agent.driver import Driver
from fray_coordinator.actors import naming
from fray_coordinator.core import Core
from fray_coordinator.errors import ParentNotRunning, StoreUnavailable
from fray_coordinator.jobs import stopping
from fray_coordinator.jobs.lookup import live_agents, read_agents
from fray_coordinator.protocol.failure_detection import declare_dead
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.store.interface import ABSENT, ANY
from fray_layouts import codec
from fray_layouts.object_keys import AgentKeys, JobKeys
from fray_layouts.records import AgentRecord, ClusterSettings, EndpointRecord, JobRecord
from tests.support.scripted_agents import agent_now, job_now, join, launch, pass_now, passes
from tests.support.virtual import Cluster

SETTINGS = ClusterSettings(poll_interval=0.05, repair_interval=3600.0)
"""The regular repair comes too late for any of these tests."""
DEATH = 40.0
"""Seconds after which a silent driver is dead and what it owned is ended: five beats, two looks, and some."""


class Served:
    """The endpoint that a program serves."""

    def __init__(self, core: Core) -> None:
        self.core = core

    async def announce(self, job: str) -> None:
        record = EndpointRecord(
            namespace="ns", name="a", actor_id="a", nonce="n", address="h:1", job=job, attempt=1, incarnation=0
        )
        await naming.publish(self.core, record, singleton=False)

    async def withdraw(self) -> None:
        """Do nothing: the repair removes the endpoint."""


class Program:
    """A program outside of jobs, and its connection to the store."""

    def __init__(self, cluster: Cluster, core: Core) -> None:
        self.core = core
        self.connection = cluster.connections[-1]
        self.driver = Driver(core, "ns", "ann", "train.py")

    async def owns(self) -> JobRecord:
        """A pending job that this program owns."""
        return await launch(self.core, parent=await self.driver.job(), name="owned")

    async def agent(self) -> AgentRecord:
        lease = (await job_now(self.core, await self.driver.job())).lease
        assert lease is not None
        return await agent_now(self.core, lease.agent)


async def program(cluster: Cluster) -> Program:
    return Program(cluster, await cluster.core())


@asynccontextmanager
async def drive(cluster: Cluster) -> AsyncIterator[tuple[Program, Reconciler]]:
    """Run with one program, and an agent that runs the coordinator's pass."""
    cluster.settings = SETTINGS

    agent = await join(cluster, "a")
    beating = asyncio.create_task(agent.beat_for_ever())
    coordinator = Reconciler(agent.core, "a")
    await coordinator.try_pass()
    yield await program(cluster), coordinator
    beating.cancel()


async def test_a_driver_is_a_job_that_runs_while_it_beats_and_counts_as_no_agent(cluster: Cluster) -> None:
    async with drive(cluster) as (program, coordinator):
        job = await program.driver.job()
        await passes(coordinator, 600.0)
        found = await job_now(program.core, job)
        assert (found.status, found.attempt, found.spec.entrypoint.command) == ("running", 1, ["train.py"])
        assert await program.driver.job() == job
        agent = await program.agent()
        assert agent.beat >= 100
        assert agent.holdings[job].phase == "running"
        assert (await pass_now(program.core)).pools["default"].agents == 1
        live = live_agents(await read_agents(program.core, {}), program.core.now())
        assert [one.id for one in live] == ["a"], "nobody waits for it to run a job"


async def test_owned_jobs_of_a_killed_driver_end_and_detached_ones_continue(cluster: Cluster) -> None:
    async with drive(cluster) as (program, coordinator):
        owned = await program.owns()
        detached = await launch(program.core, parent=await program.driver.job(), detached=True)
        await program.driver.host(Served(program.core))
        job = await program.driver.job()
        await program.driver.close()
        await passes(coordinator, DEATH)
        ended, left = await job_now(program.core, job), await job_now(program.core, owned.id)
        assert (ended.status, left.status) == ("failed", "stopped")
        assert ended.exit is not None
        assert (ended.exit.kind, ended.exit.message) == (
            "lost",
            "the program sent no more heartbeats (killed, asleep or frozen); the jobs that it owned end with it",
        )
        assert left.stop is not None
        silent = "it has ended, or was silent for too long (killed, asleep or frozen)"
        assert left.stop.reason == f"its parent {job} no longer runs: {silent}"
        assert (await job_now(program.core, detached.id)).status == "pending"
        assert await naming.lookup(program.core, "ns", "a") == []
        assert coordinator.problems == {}


async def test_one_repair_after_the_death_is_enough_also_if_the_reaper_is_slower(cluster: Cluster) -> None:
    async with drive(cluster) as (program, coordinator):
        owned, agent = await program.owns(), await program.agent()
        await program.driver.host(Served(program.core))
        await program.driver.close()
        await program.core.records.update(
            AgentKeys.key(agent.id), AgentRecord, lambda now: declare_dead(now, now.beat) if now else None
        )
        await coordinator.repair.run({})
        assert (await job_now(program.core, owned.id)).status == "stopped"
        assert await naming.lookup(program.core, "ns", "a") == []


async def test_a_leaving_driver_ends_its_jobs_at_once(cluster: Cluster) -> None:
    async with drive(cluster) as (program, _coordinator):
        owned, agent, job = await program.owns(), await program.agent(), await program.driver.job()
        begun = cluster.clock.boottime()
        await program.driver.leave()
        assert cluster.clock.boottime() - begun < 1.0, "nobody waits for a pass"
        assert (await job_now(program.core, job)).status == "succeeded"
        assert (await job_now(program.core, owned.id)).status == "stopped"
        assert (await agent_now(program.core, agent.id)).state == "left"
        assert await program.driver.job() != job, "it may begin again"


async def test_a_driver_that_cannot_leave_in_time_is_found_dead(cluster: Cluster) -> None:
    async with drive(cluster) as (program, coordinator):
        owned = await program.owns()
        program.connection.cut = True
        await program.driver.leave()
        await passes(coordinator, DEATH)
        assert (await job_now(coordinator.core, owned.id)).status == "stopped"


async def test_a_driver_that_comes_back_from_the_dead_owns_nothing_and_begins_anew(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with drive(cluster) as (program, coordinator):
        owned, dead = await program.owns(), await program.driver.job()
        served = Served(program.core)
        await program.driver.host(served)
        program.connection.cut = True
        await passes(coordinator, 2 * DEATH)
        with pytest.raises(StoreUnavailable):
            await program.driver.job()
        program.connection.cut = False
        back = await program.driver.job()
        assert back != dead
        await passes(coordinator, DEATH)
        assert (await job_now(program.core, dead)).status == "failed"
        assert (await job_now(program.core, owned.id)).status == "stopped"
        assert (await job_now(program.core, (await program.owns()).id)).status == "pending"
        assert [found.job for found in await naming.lookup(program.core, "ns", "a")] == [back]
        assert await program.driver.job() == back
        assert f"driver {dead} counted as dead because this program wrote no heartbeat" in caplog.text


async def test_jobs_that_a_dead_driver_submits_are_not_started(cluster: Cluster) -> None:
    async with drive(cluster) as (program, coordinator):
        dead = await program.driver.job()
        await program.driver.close()
        await passes(coordinator, DEATH)
        late = await launch(program.core, attempt_of_parent=1, parent=dead)
        other = await join(cluster, "b")
        await other.try_claim()
        assert (await job_now(program.core, late.id)).status == "stopped"
        with pytest.raises(ParentNotRunning, match=dead):
            await launch(program.core, parent=dead)


async def test_a_driver_whose_job_is_created_after_its_death_is_dead_too(cluster: Cluster) -> None:
    async with drive(cluster) as (program, coordinator):

        async def frozen() -> None:
            await passes(coordinator, DEATH)
            assert cluster.keys(JobKeys.area) == [], "its record comes only now"

        program.connection.before["put", JobKeys.area] = frozen
        job = await program.driver.job()
        await program.driver.close()
        await coordinator.repair.run(coordinator.detector.live())
        assert (await job_now(program.core, job)).status == "failed"


async def test_stopping_a_driver_ends_its_jobs_and_it_can_own_no_more(cluster: Cluster) -> None:
    async with drive(cluster) as (program, coordinator):
        owned, job = await program.owns(), await program.driver.job()
        await stopping.stop(coordinator.core, job, "it is too much")
        await asyncio.sleep(SETTINGS.beat_interval + 1.0)
        assert (await job_now(program.core, job)).status == "stopped"
        assert (await job_now(program.core, owned.id)).status == "stopped"
        with pytest.raises(ParentNotRunning, match="it is too much"):
            await program.driver.job()


@pytest.mark.parametrize("body", [b"{", b'{"recent_ops":[' + b"1," * 10**5 + b'""]}', b"[" * 10**5])
@pytest.mark.parametrize("spoilt", ["agent", "job"])
async def test_an_odd_record_buries_no_driver_and_stops_no_pass(cluster: Cluster, spoilt: str, body: bytes) -> None:
    async with drive(cluster) as (program, coordinator):
        owned, agent, job = await program.owns(), await program.agent(), await program.driver.job()
        other = Program(cluster, await cluster.core())
        others, key = await other.owns(), AgentKeys.key(agent.id) if spoilt == "agent" else JobKeys.key(job)
        await coordinator.core.store.put(key, body, ANY)
        await other.driver.close()
        await passes(coordinator, DEATH)
        assert (await job_now(program.core, others.id)).status == "stopped", "the others are served"
        assert (await job_now(program.core, owned.id)).status == "pending"
        assert key in (await pass_now(program.core)).problems


async def test_a_driver_whose_agents_record_stays_overwritten_counts_as_dead_in_the_end(cluster: Cluster) -> None:
    async with drive(cluster) as (program, coordinator):
        owned, agent, job = await program.owns(), await program.agent(), await program.driver.job()
        await coordinator.core.store.put(AgentKeys.key(agent.id), b"{", ANY)
        for _ in range(25):
            await coordinator.repair.run(coordinator.detector.live())
            await passes(coordinator, 60.0)
        assert (await job_now(program.core, job)).status == "failed"
        assert (await job_now(program.core, owned.id)).status == "stopped"
        assert await program.driver.job() != job


async def test_a_driver_that_a_later_version_knows_more_of_is_left_as_it_is(cluster: Cluster) -> None:
    async with drive(cluster) as (program, coordinator):
        agent = await program.agent()
        haunted = replace(agent, id="later", state="haunted", holdings={})
        await program.core.store.put(AgentKeys.key("later"), codec.encode(haunted), ABSENT)
        await passes(coordinator, DEATH)
        assert (await agent_now(program.core, "later")).state == "haunted"


async def test_the_requests_of_an_idle_driver(cluster: Cluster) -> None:
    async with drive(cluster) as (program, coordinator):
        await program.owns()
        before, seen = len(program.connection.asked), len(cluster.connections[0].asked)
        await passes(coordinator, 3600.0, every=7.5)
        asked = Counter(verb for verb, _ in program.connection.asked[before:])
        assert asked["put"] <= 3600 / SETTINGS.beat_interval
        assert asked["get_if_changed"] + asked["unchanged"] <= 2 * 2, "its own job, once a repair interval"
        assert asked["list"] == asked["get"] == asked["delete"] == 0
        passed = Counter(cluster.connections[0].asked[seen:])
        assert passed["get", AgentKeys.key((await program.agent()).id)] <= 3600 / SETTINGS.beat_interval
