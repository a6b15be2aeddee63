"""Owners of placements and jobs that wait for one another, on real agents in virtual time: all end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fray_agents.agent.agent import Agent, AgentOptions
from fray_agents.tasks.task_handle import TaskExit, TaskHandle, TaskSpec
from fray_coordinator.core import Core
from fray_coordinator.jobs.submission import submit
from fray_coordinator.placements import launching, reservations
from fray_coordinator.placements.launching import GroupWish
from fray_coordinator.protocol.transitions import is_terminal
from fray_layouts.object_keys import JobKeys
from fray_layouts.records import AttemptExit, JobRecord, ReservationRecord, ReservedPart, Resources
from fray_layouts.spec import GangSpec, JobSpec, ResourceSpec
from fray_layouts.spec_parsing import parse_spec
from tests.support.fake_tasks import FakeTask
from tests.support.virtual import Cluster

TWO_CORES = Resources(cpu=2000, memory=2**33, disk=2**33)
BOUND = 1200.0
"""Virtual seconds in which everything has ended: a turn lasts at least two repair intervals, of 60 s, and each circle
here needs one or two."""

Work = Callable[["Circle", JobRecord], Awaitable[None]]


def a_spec(name: str, cpu: float = 1.0, **fields: Any) -> JobSpec:
    return parse_spec({"name": name, "entrypoint": {"command": ["x"]}, "resources": {"cpu": cpu}, **fields})


@dataclass
class Circle:
    """Two agents of two cores.

    Attributes:
        work: by name of a job, what its first replica does; other jobs take a second.
        jobs: ids of all jobs by name.
    """

    core: Core
    folder: Path
    work: dict[str, Work] = field(default_factory=dict)
    jobs: dict[str, str] = field(default_factory=dict)
    running: dict[str, list[FakeTask]] = field(default_factory=dict)
    _doing: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self, spec: TaskSpec, deadline: float, lock_fd: int | None) -> TaskHandle:
        name, job = spec.env["FRAY_JOB_NAME"], spec.env["FRAY_JOB_ID"]
        works = name in self.work and spec.env["FRAY_REPLICA"] == "0"
        task = FakeTask(spec, self.folder, 1e6 if name in self.work else 1.0, b"", None)
        self.running.setdefault(name, []).append(task)
        if works:
            doing = asyncio.create_task(self._do(name, job, task))
            self._doing.add(doing)
        return task

    async def _do(self, name: str, job: str, task: FakeTask) -> None:
        record = await self.now(job)
        assert record is not None
        await self.work[name](self, record)
        if not task.exit.done():
            task.exit.set_result(TaskExit(AttemptExit(kind="success"), None, True))

    async def now(self, job: str) -> JobRecord | None:
        found = await self.core.records.read(JobKeys.key(job), JobRecord)
        return found.record if found is not None else None

    async def launch(self, spec: JobSpec, parent: JobRecord | None = None, above: tuple[str, ...] = ()) -> str:
        attempt, ancestors = (parent.attempt, parent.ancestors) if parent is not None else (None, list(above))
        (done,) = await submit(self.core, [spec], attempt, ancestors=ancestors)
        self.jobs[spec.name] = done.job.id
        return done.job.id

    async def ended(self, job: str) -> None:
        while (record := await self.now(job)) is not None and not is_terminal(record):
            await self.core.clock.sleep(1.0)

    async def statuses(self) -> dict[str, str]:
        found = {name: await self.now(job) for name, job in self.jobs.items()}
        return {name: record.status for name, record in found.items() if record is not None}

    async def runs(self, name: str) -> None:
        while not self.running.get(name):
            await self.core.clock.sleep(0.5)


async def waits_for_child(circle: Circle, me: JobRecord) -> None:
    """Launch a child, once the gang waits, and wait for its end."""
    await circle.core.clock.sleep(20.0)
    await circle.ended(await circle.launch(a_spec("child", parent=me.id), me))


async def waits_for_large_child(circle: Circle, me: JobRecord) -> None:
    await circle.core.clock.sleep(20.0)
    await circle.ended(await circle.launch(a_spec("child", 2.0, parent=me.id), me))


async def waits_for_grandchild(circle: Circle, me: JobRecord) -> None:
    await circle.ended(await circle.launch(a_spec("grandchild", parent=me.id), me))


async def waits_for_detached(circle: Circle, me: JobRecord) -> None:
    await circle.core.clock.sleep(20.0)
    await circle.ended(await circle.launch(a_spec("child", parent=me.id, detached=True), me))


async def waits_for_gang(circle: Circle, me: JobRecord) -> None:
    await circle.core.clock.sleep(20.0)
    await circle.ended(await circle.launch(a_spec("crew", parent=me.id, replicas=2), me))


async def waits_for_group(circle: Circle, me: JobRecord) -> None:
    await circle.core.clock.sleep(20.0)
    specs = [a_spec(name, parent=me.id) for name in ("server", "client")]
    done = await launching.launch(circle.core, specs, GroupWish("group"), me.attempt, me.ancestors)
    circle.jobs |= {one.job.spec.name: one.job.id for one in done}
    for one in done:
        await circle.ended(one.job.id)


async def waits_in_reservation(circle: Circle, me: JobRecord) -> None:
    await circle.core.clock.sleep(20.0)
    part = ReservedPart(gang=GangSpec(resources=ResourceSpec(cpu=1.0), count=1))
    now = circle.core.now()
    record = ReservationRecord(
        id="room-0-1", kind="reservation", namespace=me.id, submitted_at=now, parts=[part], low=1, parent=me.id,
        parent_attempt=me.attempt, ancestors=[*me.ancestors, me.id],
    )  # fmt: skip
    await reservations.create(circle.core, record)
    await circle.ended(await circle.launch(a_spec("guest", parent=me.id, namespace=me.id, pool="~room-0-1"), me))


async def circle_of(cluster: Cluster, folder: Path, work: dict[str, Work]) -> tuple[Circle, list[asyncio.Task[Any]]]:
    circle = Circle(await cluster.core(local=False), folder, work)
    options = AgentOptions(capacity=TWO_CORES, work_dir=folder, start_task=circle.start)
    agents = [Agent(await cluster.core(local=False), options) for _ in range(2)]
    return circle, [asyncio.create_task(agent.run()) for agent in agents]


async def all_end(circle: Circle, agents: list[asyncio.Task[Any]], wanted: int, how: str = "succeeded") -> None:
    """All jobs, so many, succeed within the bound, or end in this other way."""
    try:
        async with asyncio.timeout(BOUND):
            while True:
                statuses = await circle.statuses()
                if len(statuses) >= wanted and set(statuses.values()) <= {"succeeded", how}:
                    return
                await circle.core.clock.sleep(5.0)
    except TimeoutError:
        pytest.fail(f"after {BOUND:.0f} s: {await circle.statuses()}")
    finally:
        for agent in agents:
            agent.cancel()
        await asyncio.gather(*agents, return_exceptions=True)


WAITS: dict[str, tuple[dict[str, Work], int]] = {
    "child": ({"parent": waits_for_child}, 3),
    "child where a vote is": ({"parent": waits_for_large_child}, 3),
    "detached child": ({"parent": waits_for_detached}, 3),
    "grandchild": ({"parent": waits_for_child, "child": waits_for_grandchild}, 4),
    "child gang": ({"parent": waits_for_gang}, 3),
    "launch group": ({"parent": waits_for_group}, 4),
    "reservation": ({"parent": waits_in_reservation}, 3),
}


@pytest.mark.parametrize(
    "what", [name if name == "child" else pytest.param(name, marks=pytest.mark.slow) for name in WAITS]
)
async def test_a_gang_and_a_job_that_waits_for_what_it_launched_both_end(
    cluster: Cluster, tmp_path: Path, what: str
) -> None:
    work, count = WAITS[what]
    circle, agents = await circle_of(cluster, tmp_path, work)
    await circle.launch(a_spec("parent"))
    await circle.runs("parent")
    await circle.launch(a_spec("gang", 2.0, replicas=2))
    await all_end(circle, agents, count)


@pytest.mark.slow
async def test_a_driver_s_actor_and_its_next_task_end(cluster: Cluster, tmp_path: Path) -> None:
    async def serves_until_the_task_has_ended(circle: Circle, me: JobRecord) -> None:
        while "task" not in circle.jobs:
            await circle.core.clock.sleep(1.0)
        await circle.ended(circle.jobs["task"])

    circle, agents = await circle_of(cluster, tmp_path, {"actor": serves_until_the_task_has_ended})
    await circle.launch(a_spec("actor"), above=("driver-0-1",))
    await circle.runs("actor")
    await circle.launch(a_spec("gang", 2.0, replicas=2))
    await circle.core.clock.sleep(20.0)
    await circle.launch(a_spec("task", 2.0), above=("driver-0-1",))
    await all_end(circle, agents, 3)


@pytest.mark.slow
async def test_a_requeued_parent_gets_the_room_of_its_own_endless_child(cluster: Cluster, tmp_path: Path) -> None:
    """Nothing is kept for anybody: another job took the parent's room meanwhile, and waits for the parent."""

    async def has_an_endless_child(circle: Circle, me: JobRecord) -> None:
        await circle.launch(a_spec("child", 2.0, parent=me.id, id="own"), me)
        if me.attempt == 1:
            await circle.core.clock.sleep(1e6)

    async def waits_for_the_parent(circle: Circle, me: JobRecord) -> None:
        await circle.ended(circle.jobs["parent"])

    async def never_ends(circle: Circle, me: JobRecord) -> None:
        await circle.core.clock.sleep(1e6)

    work: dict[str, Work] = {"parent": has_an_endless_child, "other": waits_for_the_parent, "child": never_ends}
    circle, agents = await circle_of(cluster, tmp_path, work)
    await circle.launch(a_spec("parent", 2.0))
    await circle.runs("child")
    await circle.launch(a_spec("other", 2.0))
    parent = await circle.now(circle.jobs["parent"])
    assert parent is not None
    circle.running["parent"][0].exit.set_result(TaskExit(AttemptExit(kind="preempted"), None, True))
    await circle.runs("other")
    await all_end(circle, agents, 3, "stopped")
    ended = await circle.now(circle.jobs["child"])
    assert ended is not None
    assert ended.history[0].exit.kind == "yielded"
    assert ended.preemptions == 0
