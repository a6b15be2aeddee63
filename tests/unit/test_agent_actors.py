"""An agent with actors: restarts in place, the end of trust, and endpoints that a task leaves published."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fray_agents.agent.agent import Agent, AgentOptions
from fray_agents.tasks.task_handle import TaskHandle, TaskSpec
from fray_coordinator.actors import naming
from fray_coordinator.core import Core
from fray_coordinator.jobs import notifications
from fray_coordinator.jobs.lookup import live_agents, read_agents
from fray_coordinator.jobs.stopping import stop
from fray_coordinator.jobs.why_waiting import why_waiting
from fray_layouts.object_keys import AgentKeys, EndpointKey, JobKeys
from fray_layouts.records import EndpointRecord, JobRecord, Resources
from fray_runtime.current_task import note_endpoint
from fray_runtime.network import NetworkSettings
from tests.support.fake_tasks import FakeTask
from tests.support.scripted_agents import agent_now, job_now, launch
from tests.support.virtual import Cluster
from tests.support.waiting import eventually

HOST = Resources(cpu=4000, memory=2**33, disk=2**33)


@dataclass
class Stage:
    """An agent in virtual time whose tasks run until the test ends them."""

    core: Core
    agent: Agent
    folder: Path
    tasks: list[FakeTask] = field(default_factory=list)
    specs: list[TaskSpec] = field(default_factory=list)

    async def start(self, spec: TaskSpec, deadline: float, lock_fd: int | None) -> TaskHandle:
        spec.directory.mkdir(parents=True, exist_ok=True)
        self.tasks.append(FakeTask(spec, self.folder, 1e9, b"", None))
        self.tasks[-1].set_deadline(deadline)
        self.specs.append(spec)
        return self.tasks[-1]

    async def started(self, count: int) -> FakeTask:
        """The `count`-th task that was started. Waits until there is one."""

        async def look() -> FakeTask | None:
            return self.tasks[count - 1] if len(self.tasks) >= count else None

        return await eventually(look)

    def crash(self, task: FakeTask) -> None:
        task._end("exited")


@asynccontextmanager
async def staged(cluster: Cluster, tmp_path: Path, local: bool = True, **options: Any) -> AsyncIterator[Stage]:
    """Run `main` beside an agent."""

    user, core = await cluster.core(), await cluster.core(local)
    stages: list[Stage] = []

    async def start(spec: TaskSpec, deadline: float, lock_fd: int | None) -> TaskHandle:
        return await stages[0].start(spec, deadline, lock_fd)

    wanted = AgentOptions(capacity=HOST, work_dir=tmp_path, start_task=start, **options)
    stages.append(Stage(user, Agent(core, wanted), tmp_path))
    running = asyncio.create_task(stages[0].agent.run())
    yield stages[0]
    running.cancel()
    for task in stages[0].tasks:
        task.kill()
    await asyncio.gather(running, return_exceptions=True)


async def actor(core: Core, **spec: Any) -> JobRecord:
    wanted: dict[str, Any] = {"actor": True, "max_retries_failure": 5, **spec}
    return await launch(core, **wanted)


async def test_a_crashed_actor_is_started_again_within_two_seconds_and_its_lease_stays(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with staged(cluster, tmp_path) as stage:
        job = await actor(stage.core)
        for count in range(1, 5):
            task = await stage.started(count)
            crashed_at = cluster.clock.boottime()
            stage.crash(task)
            await stage.started(count + 1)
            assert cluster.clock.boottime() - crashed_at < 2.0
        now = await job_now(stage.core, job.id)
        assert (now.status, now.attempt, now.failures, now.preemptions) == ("running", 5, 4, 0)
        assert now.lease is not None
        assert now.lease.agent == stage.agent.id
        assert [past.attempt for past in now.history] == [1, 2, 3, 4]
        assert [spec.env["FRAY_ATTEMPT"] for spec in stage.specs] == ["1", "2", "3", "4", "5"]
        await asyncio.sleep(10)
        listed = (await agent_now(stage.core, stage.agent.id)).holdings[job.id]
        assert (listed.attempt, listed.phase) == (5, "running")
        assert cluster.keys("pending/") == []


async def test_when_its_budget_is_spent_it_fails(cluster: Cluster, tmp_path: Path) -> None:
    async with staged(cluster, tmp_path) as stage:
        job = await actor(stage.core, max_retries_failure=1)
        stage.crash(await stage.started(1))
        stage.crash(await stage.started(2))
        await asyncio.sleep(5)
        assert (await job_now(stage.core, job.id)).status == "failed"
        assert (await agent_now(stage.core, stage.agent.id)).holdings == {}


async def test_a_job_that_is_no_actor_goes_back_to_the_index(cluster: Cluster, tmp_path: Path) -> None:
    async with staged(cluster, tmp_path) as stage:
        job = await launch(stage.core, max_retries_failure=1)
        stage.crash(await stage.started(1))
        await asyncio.sleep(0.5)
        now = await job_now(stage.core, job.id)
        assert (now.status, now.attempt, now.lease) == ("pending", 2, None)


async def test_until_a_beat_lists_it_the_entry_of_a_restarted_job_stays(cluster: Cluster, tmp_path: Path) -> None:
    """The agent may die before anybody else knows that it holds the job."""

    async with staged(cluster, tmp_path) as stage:
        await asyncio.sleep(0.1)
        crashed: list[list[str]] = []

        async def before_the_beat() -> None:
            stage.crash(await stage.started(1))
            await stage.started(2)
            crashed.append(cluster.keys("pending/"))

        cluster.connections[1].before["put", AgentKeys.area] = before_the_beat
        job = await actor(stage.core)
        await asyncio.sleep(10)
        assert [len(keys) for keys in crashed] == [1]
        assert cluster.keys("pending/") == []
        assert (await job_now(stage.core, job.id)).attempt == 2


async def test_a_stopped_actor_is_not_restarted_even_if_it_crashes_before_its_agent_hears_of_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with staged(cluster, tmp_path) as stage:
        job = await actor(stage.core)
        task = await stage.started(1)
        cluster.connections[1].before["put", JobKeys.key(job.id)] = lambda: stop(stage.core, job.id, "enough")
        stage.crash(task)
        await asyncio.sleep(5)
        assert (await job_now(stage.core, job.id)).status == "stopped"
        assert len(stage.tasks) == 1


async def test_an_agent_that_is_told_to_leave_while_an_actor_waits_for_its_restart_gives_it_back(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with staged(cluster, tmp_path) as stage:
        job = await actor(stage.core)
        for count in range(1, 5):
            stage.crash(await stage.started(count))
        await eventually(lambda: runs_at(stage.core, job.id, 5))
        stage.agent.terminate()
        await asyncio.sleep(5)
        now = await job_now(stage.core, job.id)
        assert (now.status, now.attempt, len(stage.tasks)) == ("pending", 6, 4)
        assert now.history[-1].exit.kind == "preempted"


async def test_an_agent_that_is_told_to_leave_while_a_restart_is_written_does_not_start_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with staged(cluster, tmp_path) as stage:
        job = await actor(stage.core)
        task = await stage.started(1)

        async def leave() -> None:
            stage.agent.terminate()

        cluster.connections[1].before["put", JobKeys.key(job.id)] = leave
        stage.crash(task)
        await asyncio.sleep(5)
        now = await job_now(stage.core, job.id)
        assert [past.exit.kind for past in now.history] == ["exited", "preempted"]
        assert (now.status, len(stage.tasks)) == ("pending", 1)


async def runs_at(core: Core, job_id: str, attempt: int) -> bool:
    return (await job_now(core, job_id)).attempt == attempt


async def test_a_draining_agent_leaves_the_restart_to_others(cluster: Cluster, tmp_path: Path) -> None:
    async with staged(cluster, tmp_path) as stage:
        job = await actor(stage.core)
        task = await stage.started(1)
        await notifications.drain(stage.core, stage.agent.id)
        await asyncio.sleep(10)
        stage.crash(task)
        await asyncio.sleep(5)
        now = await job_now(stage.core, job.id)
        assert (now.status, now.attempt) == ("pending", 2)


async def test_in_an_outage_actors_end_with_the_trust_in_their_leases_and_other_tasks_go_on_unless_they_chose_otherwise(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with staged(cluster, tmp_path, local=False) as stage:
        specs: list[dict[str, Any]] = [{"actor": True}, {"actor": True, "outage": "run"}, {}, {"outage": "stop"}]
        for number, spec in enumerate(specs):
            await launch(stage.core, resources={"cpu": 0.5}, **spec)
            await stage.started(number + 1)
        await asyncio.sleep(30)
        cluster.cut()
        cut_at = cluster.clock.boottime()
        await asyncio.sleep(100)
        goes_on = [task.deadline > cut_at + 100 for task in stage.tasks]
        ends = [task.deadline <= cut_at + 15 for task in stage.tasks]
        assert goes_on == [False, True, True, False] == [not it for it in ends]
        cluster.cut(False)


async def test_an_actor_that_ended_in_an_outage_says_why_and_what_it_could_have_chosen(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with staged(cluster, tmp_path, local=False) as stage:
        job = await actor(stage.core)
        task = await stage.started(1)
        await asyncio.sleep(30)
        cluster.cut()
        await asyncio.sleep(20)
        task._end("preempted")
        cluster.cut(False)
        await stage.started(2)
        (ended,) = (await job_now(stage.core, job.id)).history
        assert ended.exit.kind == "preempted"
        assert "no outage grace" in ended.exit.message
        assert "outage='run'" in ended.exit.message


async def test_a_tasks_endpoint_is_removed_when_it_ends_and_its_next_attempts_stays(
    cluster: Cluster, tmp_path: Path
) -> None:
    def published(job: str, attempt: int) -> EndpointRecord:
        return EndpointRecord(
            namespace="ns", name="a", actor_id="a", job=job, attempt=attempt, nonce=f"n{attempt}", address="host:1"
        )

    async with staged(cluster, tmp_path) as stage:
        job = await actor(stage.core)
        for attempt in (1, 2):
            task = await stage.started(attempt)
            note_endpoint(str(stage.specs[-1].directory), EndpointKey("ns", "a", "a").key())
            await naming.publish(stage.core, published(job.id, attempt), singleton=False)
            (found,) = await naming.lookup(stage.core, "ns", "a")
            assert found.attempt == attempt
            stage.crash(task)
            await stage.started(attempt + 1)
            assert await naming.lookup(stage.core, "ns", "a") == []


async def test_actors_are_not_placed_where_nobody_can_call_them_and_status_says_so(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with staged(cluster, tmp_path, network=NetworkSettings(inbound=False)) as stage:
        serving, working = await actor(stage.core), await launch(stage.core)
        await stage.started(1)
        await asyncio.sleep(30)
        assert (await job_now(stage.core, working.id)).status == "running"
        waiting = await job_now(stage.core, serving.id)
        assert waiting.status == "pending"
        live = live_agents(await read_agents(stage.core, {}), stage.core.now())
        assert "accepts connections" in why_waiting(waiting, live, stage.core.now())


@pytest.mark.parametrize(
    ("network", "bind", "advertise"),
    [
        (NetworkSettings(), "127.0.0.1", "127.0.0.1"),
        (NetworkSettings(bind="10.0.0.7"), "10.0.0.7", "10.0.0.7"),
        (NetworkSettings(bind="0.0.0.0", advertise="host.example"), "0.0.0.0", "host.example"),
        (NetworkSettings(bind="0.0.0.0"), "0.0.0.0", "127.0.0.1"),
    ],
)
async def test_tasks_learn_their_address_to_listen_on_and_to_advertise(
    cluster: Cluster, tmp_path: Path, network: NetworkSettings, bind: str, advertise: str
) -> None:
    async with staged(cluster, tmp_path, network=network) as stage:
        await actor(stage.core)
        await stage.started(1)
        env = stage.specs[0].env
        assert (env["FRAY_BIND_HOST"], env["FRAY_ADVERTISE_HOST"]) == (bind, advertise)
        record = await agent_now(stage.core, stage.agent.id)
        assert (record.bind, record.advertise, record.inbound) == (bind, advertise, True)
