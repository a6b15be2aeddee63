"""Room beyond an agent's slots: who gets it, and that odd objects harm only themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from msgspec.structs import replace

from fray_agents.agent.held import HeldLease
from fray_agents.agent.overcommit import Overcommit
from fray_agents.tasks.task_handle import TaskHandle
from fray_coordinator.core import Core
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.store.interface import ANY
from fray_layouts.index_keys import ChildKey, PendingKey
from fray_layouts.object_keys import JobKeys
from fray_layouts.records import AttemptExit, JobRecord, PastAttempt, Resources
from fray_runtime.current_task import CHILDREN_MARKER, ENDPOINTS_FILE
from tests.support.members import trusted_member
from tests.support.scripted_agents import ScriptedAgent, join, launch
from tests.support.virtual import Cluster


class Task:
    """The files in a task's directory that overcommitting reads."""

    def __init__(self, *names: str, broken: bool = False) -> None:
        self.names, self.broken = names, broken

    def read_file(self, name: str) -> bytes | None:
        if self.broken:
            raise IsADirectoryError(name)
        return b"" if name in self.names else None


class Stage:
    """An agent of one slot with a parent in it, and the jobs that it claims beyond that."""

    def __init__(self, core: Core) -> None:
        self.core = core
        member = trusted_member(core, Resources(cpu=1000, memory=2**40, disk=2**40))
        self.leases = member.leases
        self.claimed: list[str] = []
        self.overcommit = Overcommit(member, self.claim)

    async def claim(self, entry: PendingKey) -> bool:
        self.leases.add(entry)
        self.claimed.append(entry.job)
        return True

    async def holds(self, agent: ScriptedAgent, task: Task) -> JobRecord:
        """Claim and run the first job that waits."""
        job = await agent.claim()
        held = self.leases.add(entry_of(job.record))
        held.job, held.phase, held.task = job, "running", cast(TaskHandle, task)
        return job.record

    async def looks(self) -> None:
        await self.overcommit._poll()


@asynccontextmanager
async def on_stage(cluster: Cluster, task: Task) -> AsyncIterator[tuple[Stage, JobRecord]]:
    core = await cluster.core()
    stage = Stage(core)
    await launch(core, name="parent")
    yield stage, await stage.holds(await join(cluster, "a"), task)


async def test_one_child_runs_in_its_parents_room_and_the_next_when_that_has_ended(cluster: Cluster) -> None:
    async with on_stage(cluster, Task(CHILDREN_MARKER)) as (stage, parent):
        await stage.looks()
        assert stage.claimed == []
        children = [await launch(stage.core, name=name, parent=parent.id) for name in ("a", "b")]
        await launch(stage.core, name="stranger")
        await stage.looks()
        assert stage.claimed == [children[0].id]
        first = stage.leases.held[children[0].id]
        first.job = await stage.core.records.read(JobKeys.key(children[0].id), JobRecord)
        await stage.looks()
        assert stage.claimed == [children[0].id]
        stage.leases.remove(first)
        await stage.core.records.update(JobKeys.key(first.entry.job), JobRecord, _ended)
        await stage.looks()
        assert stage.claimed == [child.id for child in children]
        assert await stage.core.store.get(ChildKey(parent.id, 1, children[0].id).key()) is None


def _ended(job: JobRecord | None) -> JobRecord | None:
    assert job is not None
    job.status, job.ended_at = "failed", 1.0
    return job


async def test_a_child_that_the_agent_claims_meanwhile_is_not_claimed_twice(cluster: Cluster) -> None:
    async with on_stage(cluster, Task(CHILDREN_MARKER)) as (stage, parent):
        child = await launch(stage.core, name="child", parent=parent.id)
        read = stage.core.store.get

        async def read_while_it_is_claimed(key: str, *more: Any, **others: Any) -> Any:
            stage.leases.add(entry_of(child))
            return await read(key, *more, **others)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stage.core.store, "get", read_while_it_is_claimed)
            await stage.looks()
        assert stage.claimed == []


async def test_children_that_cannot_be_read_and_those_that_are_tried_again_later_keep_no_other_from_its_room(
    cluster: Cluster,
) -> None:
    async with on_stage(cluster, Task(CHILDREN_MARKER)) as (stage, parent):
        names = ("a-odd", "b-early", "c-gone", "d-due")
        odd, early, gone, due = [await launch(stage.core, name=name, parent=parent.id) for name in names]
        await stage.core.store.put(JobKeys.key(odd.id), b"no record", ANY)
        await stage.core.records.update(JobKeys.key(early.id), JobRecord, lambda job: _early(job, stage.core.now()))
        await stage.core.store.delete(JobKeys.key(gone.id))
        await stage.looks()
        assert stage.claimed == [due.id]


async def test_a_child_is_due_once_a_clock_was_set_back_after_its_last_attempt(cluster: Cluster) -> None:
    async with on_stage(cluster, Task(CHILDREN_MARKER)) as (stage, parent):
        child = await launch(stage.core, name="child", parent=parent.id)
        ahead = stage.core.now() + 7200
        past = PastAttempt(
            attempt=1, agent="a", host="h", started_at=ahead, ended_at=ahead, exit=AttemptExit(kind="lost")
        )
        await stage.core.records.change(
            JobKeys.key(child.id), JobRecord, lambda job: replace(job, history=[past], not_before=ahead + 5)
        )
        await stage.looks()
        assert stage.claimed == [child.id]


def _early(job: JobRecord | None, now: float) -> JobRecord | None:
    assert job is not None
    job.not_before = now + 60
    return job


async def test_an_actor_that_serves_calls_takes_no_room_until_it_is_restarted(cluster: Cluster) -> None:
    async with on_stage(cluster, Task(ENDPOINTS_FILE)) as (stage, parent):
        held: HeldLease = stage.leases.held[parent.id]
        assert stage.leases.free().cpu == 0
        await stage.looks()
        assert stage.leases.free().cpu == 1000
        assert held.job is not None
        held.restart(held.job)
        assert stage.leases.free().cpu == 0


async def test_a_broken_file_in_a_tasks_directory_harms_nobody(cluster: Cluster) -> None:
    async with on_stage(cluster, Task(broken=True)) as (stage, _parent):
        await stage.looks()
        assert stage.leases.free().cpu == 1000
