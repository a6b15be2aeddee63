"""Agents whose requests the store refuses: no joined agent ends, each reports it, and each recovers by itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

import pytest

from fray_agents.agent.agent import Agent, AgentOptions, ExitReason
from fray_agents.agent.attempt_runner import JobWatch
from fray_agents.agent.claimer import Claimer
from fray_agents.agent.membership import Heartbeat
from fray_coordinator.core import Core
from fray_coordinator.errors import StoreRefused
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import Resources
from tests.support.fake_tasks import fake
from tests.support.scripted_agents import agent_now, job_now, launch
from tests.support.virtual import Cluster, StoreConnection

HOST = Resources(cpu=4000, memory=2**33, disk=2**33)
REFUSED = [
    ("put", "agents/"),
    ("put", "jobs/"),
    ("list", "pending/"),
]
ALSO_REFUSED = [
    ("list", "agents/"),
    ("get_if_changed", "jobs/"),
    ("delete", "pending/"),
    ("put", "coordinator/"),
    ("put", "work/"),
    ("get", "agents/"),
    ("get_if_changed", "agents/"),
    ("get", "jobs/"),
    ("list", "jobs/"),
    ("put", "pending/"),
    ("list", "children/"),
    ("list", "inbox/"),
    ("list", "actors/"),
    ("get", "pools/"),
    ("get_if_changed", "pools/"),
    ("put", "pools/"),
    ("get", "coordinator/"),
    ("get_if_changed", "coordinator/"),
    ("list", "work/"),
]


class Scene:
    """Two agents at work and a user. Only the agents' requests are refused."""

    def __init__(self, cluster: Cluster, tmp_path: Path) -> None:
        self._cluster = cluster
        self._tmp_path = tmp_path
        self.agents: list[Agent] = []
        self.running: list[asyncio.Task[ExitReason]] = []

    async def begin(self, local: bool = True) -> Core:
        user = await self._cluster.core()
        for _ in range(2):
            tasks = fake(self._tmp_path, {"long": 250.0, "short": 5.0})
            options = AgentOptions(capacity=HOST, work_dir=self._tmp_path, start_task=tasks)
            self.agents.append(Agent(await self._cluster.core(local), options))
            self.running.append(asyncio.create_task(self.agents[-1].run()))
        return user

    @property
    def connections(self) -> list[StoreConnection]:
        return self._cluster.connections[1:]

    def refuse(self, *refused: tuple[str, str]) -> None:
        for connection in self.connections:
            connection.refused = list(refused)

    async def problems(self, user: Core) -> list[str]:
        return [(await agent_now(user, agent.id)).problem for agent in self.agents]

    async def leave(self) -> list[ExitReason]:
        for agent in self.agents:
            agent.terminate()
        return await asyncio.gather(*self.running)


@pytest.mark.parametrize(
    "refused",
    [*REFUSED, *(pytest.param(refused, marks=pytest.mark.slow) for refused in ALSO_REFUSED)],
    ids=" ".join,
)
async def test_a_refusal_ends_no_agent_and_loses_no_job(
    cluster: Cluster, refused: tuple[str, str], tmp_path: Path
) -> None:
    """The request is refused once, and then for a while."""

    scene = Scene(cluster, tmp_path)
    user = await scene.begin()
    jobs = [(await launch(user, name="long")).id for _ in range(3)]
    await asyncio.sleep(60)
    for seconds in (0.5, 200.0):
        scene.refuse(refused)
        jobs.append((await launch(user, name="short")).id)
        await asyncio.sleep(seconds)
        assert not any(task.done() for task in scene.running)
        scene.refuse()
        jobs.append((await launch(user, name="short")).id)
        await asyncio.sleep(20)
    await asyncio.sleep(280)
    assert [(await job_now(user, job)).status for job in jobs] == ["succeeded"] * 7
    assert await scene.problems(user) == ["", ""]
    assert await scene.leave() == [ExitReason.LEFT] * 2


@pytest.mark.parametrize(
    "prefix",
    [
        "blobs/",
        *(
            pytest.param(prefix, marks=pytest.mark.slow)
            for prefix in ("actors/", "inbox/", "pools/", "queues/", "secrets/")
        ),
    ],
)
async def test_missing_rights_on_one_prefix_concern_only_its_objects(
    cluster: Cluster, prefix: str, tmp_path: Path
) -> None:
    """An agent dies all the same, its job is requeued, and others run."""

    scene = Scene(cluster, tmp_path)
    user = await scene.begin()
    scene.refuse(*[(verb, prefix) for verb in ("get", "get_if_changed", "put", "delete", "withdraw", "list")])
    job = await launch(user, name="long")
    await asyncio.sleep(user.settings.repair_interval * 1.5)
    (holder,) = [number for number, agent in enumerate(scene.agents) if agent.member.leases.held]
    scene.running[holder].cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await scene.running[holder]
    later = await launch(user, name="short")
    await asyncio.sleep(900)
    assert not scene.running[1 - holder].done()
    assert [(await job_now(user, each.id)).status for each in (job, later)] == ["succeeded"] * 2
    assert (await job_now(user, job.id)).attempt == 2
    scene.agents[1 - holder].terminate()
    await scene.running[1 - holder]


async def test_a_refusal_is_reported_while_it_lasts(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "fray")
    scene = Scene(cluster, tmp_path)
    user = await scene.begin()
    await asyncio.sleep(60)
    scene.refuse(("get_if_changed", "pools/"), ("get", "pools/"))
    await asyncio.sleep(300)
    for problem in await scene.problems(user):
        assert "pools/default/" in problem
        assert "HTTP 403: the test says so" in problem
    scene.refuse()
    await asyncio.sleep(300)
    assert await scene.problems(user) == ["", ""]
    await scene.leave()
    assert len([record for record in caplog.records if "the test says so" in record.message]) == 2


@pytest.mark.parametrize("kind", ["refused", "unanswered", pytest.param("spoilt", marks=pytest.mark.slow)])
async def test_an_agent_that_cannot_read_the_doorbell_finds_work_on_the_repair_interval(
    cluster: Cluster, kind: str, tmp_path: Path
) -> None:
    """The agent also reports it. Once an agent listed nothing for minutes and reported no problem."""

    scene = Scene(cluster, tmp_path)
    user = await scene.begin(local=False)
    for connection in scene.connections:
        setattr(connection, kind, [(verb, "pools/") for verb in ("get", "get_if_changed")])
    for _ in range(3):
        job = await launch(user, name="short")
        await asyncio.sleep(user.settings.repair_interval * 1.2 + 20)
        assert (await job_now(user, job.id)).status == "succeeded"
    for problem in await scene.problems(user):
        assert "pools/default/" in problem
        assert "the test says so" in problem
    await scene.leave()


@pytest.mark.parametrize("kind", ["refused", pytest.param("spoilt", marks=pytest.mark.slow)])
async def test_submissions_and_requeues_work_although_the_doorbell_cannot_be_rung(
    cluster: Cluster, kind: str, tmp_path: Path
) -> None:
    scene = Scene(cluster, tmp_path)
    user = await scene.begin()
    for connection in cluster.connections:
        setattr(connection, kind, [("put", "pools/")])
    job = await launch(user, name="long")
    await asyncio.sleep(user.settings.repair_interval * 1.2 + 20)
    (holder,) = [number for number, agent in enumerate(scene.agents) if agent.member.leases.held]
    scene.agents[holder].terminate()
    assert await scene.running[holder] is ExitReason.LEFT
    await asyncio.sleep(600)
    now = await job_now(user, job.id)
    assert (now.status, now.attempt) == ("succeeded", 2)
    scene.agents[1 - holder].terminate()
    await scene.running[1 - holder]


async def test_an_agent_whose_beats_are_refused_puts_its_tasks_down_as_in_an_outage(
    cluster: Cluster, tmp_path: Path
) -> None:
    scene = Scene(cluster, tmp_path)
    user = await scene.begin()
    await asyncio.sleep(20)
    job = (await launch(user, name="long")).id
    await asyncio.sleep(20)
    (holder,) = [number for number, agent in enumerate(scene.agents) if agent.member.leases.held]
    scene.connections[holder].refused = [(verb, "agents/") for verb in ("put", "get", "get_if_changed")]
    await asyncio.sleep(120)
    requeued = await job_now(user, job)
    assert (requeued.attempt, requeued.lease and requeued.lease.agent) == (2, scene.agents[1 - holder].id)
    assert not scene.running[holder].done()
    scene.refuse()
    await asyncio.sleep(600)
    assert scene.running[holder].done(), "it is told that it was declared dead"
    assert (await job_now(user, job)).status == "succeeded"
    scene.agents[1 - holder].terminate()
    await scene.running[1 - holder]


@pytest.mark.parametrize(
    ("loop", "method", "problem"),
    [
        (Heartbeat, "_beat", ""),
        (Claimer, "_poll", "cannot look for work: ValueError: odd"),
        *(
            pytest.param(loop, method, f"cannot {does}: ValueError: odd", marks=pytest.mark.slow)
            for loop, method, does in (
                (Heartbeat, "_look_for_mail", "look for mail"),
                (JobWatch, "check", "look at what it holds"),
                (Reconciler, "try_pass", "run the coordinator's pass"),
            )
        ),
    ],
)
async def test_no_error_in_a_loop_ends_the_agent(
    cluster: Cluster, loop: type, method: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in the heartbeat is like an outage: trust runs out. Each error is reported once an hour."""
    real, failing, reported = getattr(loop, method), False, list[str]()

    async def look(self: object, *given: object) -> object:
        if failing:
            raise ValueError("odd")
        return await real(self, *given)

    monkeypatch.setattr(loop, method, look)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["message"]))
    scene = Scene(cluster, tmp_path)
    user = await scene.begin()
    job = await launch(user, name="long")
    await asyncio.sleep(60)
    (holder,) = [agent for agent in scene.agents if agent.member.leases.held]
    failing = True
    await asyncio.sleep(100)
    assert not any(task.done() for task in scene.running)
    assert await scene.problems(user) == [problem] * 2
    assert holder.member.trusts() == (loop is not Heartbeat or method != "_beat")
    failing = False
    await asyncio.sleep(300)
    assert await scene.problems(user) == ["", ""]
    assert (await job_now(user, job.id)).status == "succeeded"
    await scene.leave()
    assert len(reported) == 2


async def test_an_agent_that_is_refused_before_it_joined_fails_at_once(cluster: Cluster, tmp_path: Path) -> None:
    core = await cluster.core()
    cluster.connections[0].refused = [("put", "agents/")]
    with pytest.raises(StoreRefused, match=r"put .*agents/.*HTTP 403"):
        await Agent(core, AgentOptions(capacity=HOST, work_dir=tmp_path)).run()
    assert core.clock.boottime() < 10


async def test_an_agent_that_has_joined_before_waits_until_it_may_join_again(cluster: Cluster, tmp_path: Path) -> None:
    core = await cluster.core()
    cluster.connections[0].refused = [("put", "agents/")]
    agent = Agent(core, AgentOptions(capacity=HOST, work_dir=tmp_path, rejoins=True))
    running = asyncio.create_task(agent.run())
    await asyncio.sleep(300)
    assert not running.done()
    cluster.connections[0].refused = []
    await asyncio.sleep(20)
    assert (await agent_now(core, agent.id)).state == "live"
    agent.terminate()
    assert await running is ExitReason.LEFT


async def test_what_the_store_refuses_an_idle_agent_is_in_its_record_within_seconds(
    cluster: Cluster, tmp_path: Path
) -> None:
    agent = Agent(await cluster.core(), AgentOptions(capacity=HOST, work_dir=tmp_path))
    running, connection = asyncio.create_task(agent.run()), cluster.connections[0]
    user = await cluster.core()
    await asyncio.sleep(100)
    connection.refused = [("list", "inbox/")]
    connection.asked.clear()
    await asyncio.sleep(20)
    problem = (await agent_now(user, agent.id)).problem
    await asyncio.sleep(300)
    beats = connection.asked.count(("put", AgentKeys.key(agent.id)))
    running.cancel()
    assert "inbox/" in problem
    assert beats <= 8, "one more for the problem, and then one a minute"
