"""Agents that are killed, frozen or told to leave: no job is lost, and none runs twice at once."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from fray_coordinator.jobs import stopping
from fray_coordinator.store.interface import ANY
from fray_layouts.object_keys import AgentKeys, JobKeys
from tests.support.agents import (
    MORTAL,
    AgentProcess,
    agent_record,
    agents,
    ended,
    job,
    launch,
    lines,
    quick_core,
    running,
)
from tests.support.freezing import freeze
from tests.support.processes import is_alive
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

# Notes its process, waits for the file "go", notes that it ended.
WORKER = """
import os, pathlib, sys, time
folder = pathlib.Path({folder!r})
attempt = os.environ["FRAY_ATTEMPT"]
def note(what):
    with open(folder / "effects", "a") as file:
        file.write(f"{{what}} {{attempt}} {{os.getpid()}} {{time.clock_gettime(time.CLOCK_BOOTTIME)}}\\n")
note("begin")
while not (folder / "go").exists():
    time.sleep(0.02)
note("end")
"""


def worker(tmp_path: Path) -> str:
    return WORKER.format(folder=str(tmp_path))


def effects(tmp_path: Path, what: str) -> list[tuple[int, int, float]]:
    """The (attempt, pid, boot time) rows that the workers recorded."""
    notes = [line.split() for line in lines(tmp_path / "effects")]
    return [(int(attempt), int(pid), float(when)) for kind, attempt, pid, when in notes if kind == what]


async def _begun(tmp_path: Path, count: int) -> list[tuple[int, int, float]]:
    async def look() -> list[tuple[int, int, float]] | None:
        begun = effects(tmp_path, "begin")
        return begun if len(begun) >= count else None

    return await eventually(look)


async def test_a_killed_agents_job_runs_again_elsewhere(tmp_path: Path) -> None:
    async with quick_core(tmp_path / "root") as core:
        with agents(core.root, tmp_path / "work", count=2) as both:
            job_id = await launch(core, worker(tmp_path))
            (_, pid, _), *_ = await _begun(tmp_path, 1)
            holder = (await job(core, job_id)).lease
            assert holder is not None
            next(agent for agent in both if agent.id == holder.agent).kill()
            await running(core, job_id, attempt=2)
            assert not is_alive(pid)
            (tmp_path / "go").touch()
            record = await ended(core, job_id)
            assert (record.status, record.attempt, record.failures, record.preemptions) == ("succeeded", 2, 0, 1)
            assert [attempt for attempt, *_ in effects(tmp_path, "end")] == [2]
            assert (await agent_record(core, holder.agent)).state == "dead"


async def test_a_frozen_agents_task_is_gone_before_the_next_copy_starts_and_waking_changes_nothing(
    tmp_path: Path,
) -> None:
    async with quick_core(tmp_path / "root", MORTAL) as core:
        with agents(core.root, tmp_path / "work") as (frozen,):
            job_id = await launch(core, worker(tmp_path))
            (_, pid, _), *_ = await _begun(tmp_path, 1)
            freeze(frozen.process.pid)

            async def gone() -> bool:
                return not is_alive(pid)

            await eventually(gone)
            with agents(core.root, tmp_path / "work") as (second,):
                record = await running(core, job_id, attempt=2)
                assert record.lease is not None
                assert record.lease.agent == second.id
                (tmp_path / "go").touch()
                done = await ended(core, job_id)
                frozen.send(signal.SIGCONT)
                assert frozen.process.stdout is not None
                assert frozen.process.stdout.readline().strip() != frozen.id  # it joins anew, under another name
                assert await job(core, job_id) == done
                assert (await agent_record(core, frozen.id)).state == "dead"
        assert [attempt for attempt, *_ in effects(tmp_path, "end")] == [2]


async def test_an_agent_told_to_leave_requeues_its_job_and_spends_no_failure(tmp_path: Path) -> None:
    async with quick_core(tmp_path / "root") as core:
        with agents(core.root, tmp_path / "work") as (first,):
            job_id = await launch(core, worker(tmp_path))
            await _begun(tmp_path, 1)
            assert first.end() == 0
            record = await job(core, job_id)
            assert (record.status, record.attempt, record.failures, record.preemptions) == ("pending", 2, 0, 1)
            assert (await agent_record(core, first.id)).state == "left"
        (tmp_path / "go").touch()
        with agents(core.root, tmp_path / "work"):
            assert (await ended(core, job_id)).status == "succeeded"


async def test_a_task_that_ends_in_the_grace_of_a_preemption_is_a_success(tmp_path: Path) -> None:
    code = f"""
import signal, sys, time, pathlib
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
pathlib.Path({str(tmp_path / "effects")!r}).write_text("begin 1 1 1\\n")
time.sleep(60)
"""

    async with quick_core(tmp_path / "root") as core:
        with agents(core.root, tmp_path / "work") as (agent,):
            job_id = await launch(core, code, grace=60.0)
            await _begun(tmp_path, 1)
            assert agent.end() == 0
            record = await job(core, job_id)
            assert (record.status, record.attempt) == ("succeeded", 1)


async def test_a_second_sigterm_does_not_wait_for_the_grace(tmp_path: Path) -> None:
    code = f"""
import signal, time, pathlib
def note(what):
    with open({str(tmp_path / "effects")!r}, "a") as file:
        file.write(f"{{what}} 1 1 1\\n")
signal.signal(signal.SIGTERM, lambda *_: note("told"))
note("begin")
while True:
    time.sleep(600)
"""

    async with quick_core(tmp_path / "root") as core:
        with agents(core.root, tmp_path / "work") as (agent,):
            job_id = await launch(core, code, grace=500.0)
            await _begun(tmp_path, 1)
            agent.send(signal.SIGTERM)

            async def told() -> bool:
                return bool(effects(tmp_path, "told"))

            await eventually(told)
            agent.send(signal.SIGTERM)
            assert agent.process.wait(200) == 0
            assert (await job(core, job_id)).status == "pending"


async def test_a_job_that_kills_its_hosts_is_given_up_after_three(tmp_path: Path) -> None:
    code = """
import os, pathlib, signal
runner = os.getppid()
agent = int(pathlib.Path(f"/proc/{runner}/stat").read_text().rsplit(")", 1)[1].split()[1])
os.kill(agent, signal.SIGKILL)
"""

    async with quick_core(tmp_path / "root") as core:
        job_id = await launch(core, code)
        for _ in range(3):  # each declares its predecessor dead at once: the host's lock shows that it has ended
            agent = AgentProcess(core.root, tmp_path / "work")
            assert agent.process.wait(200) == -signal.SIGKILL
        with agents(core.root, tmp_path / "work") as (survivor,):
            record = await ended(core, job_id)
            assert (record.status, record.failures, record.preemptions) == ("failed", 1, 2)
            assert record.exit is not None
            assert record.exit.kind == "lost"
            assert "perhaps the job kills its hosts" in record.exit.message
            assert survivor.process.poll() is None


async def test_a_stop_ends_a_task_that_ignores_sigterm(tmp_path: Path) -> None:
    code = f"""
import signal, time, pathlib, os
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path({str(tmp_path / "effects")!r}).write_text(f"begin 1 {{os.getpid()}} 1\\n")
time.sleep(600)
"""

    async with quick_core(tmp_path / "root") as core:
        with agents(core.root, tmp_path / "work"):
            job_id = await launch(core, code, grace=0.5, max_retries_failure=3)
            (_, pid, _), *_ = await _begun(tmp_path, 1)
            await stopping.stop(core, job_id, "enough")
            record = await ended(core, job_id)
            assert record.status == "stopped"
            assert record.exit is not None
            assert (record.exit.kind, record.exit.message) == ("stopped", "enough")
            assert not is_alive(pid)


async def test_a_job_that_cannot_be_read_keeps_no_agent_from_joining_where_its_holder_died(tmp_path: Path) -> None:
    async with quick_core(tmp_path / "root") as core:
        with agents(core.root, tmp_path / "work") as (dead,):
            odd, sound = await launch(core, worker(tmp_path)), await launch(core, worker(tmp_path))
            await _begun(tmp_path, 2)
            dead.kill()
            await core.store.put(JobKeys.key(odd), b"{}", ANY)
            (tmp_path / "go").touch()
            with agents(core.root, tmp_path / "work"):
                assert (await ended(core, sound)).status == "succeeded"
                assert not (await agent_record(core, dead.id)).reaped


async def test_an_agent_that_cannot_be_read_keeps_no_other_from_joining_on_its_host(tmp_path: Path) -> None:
    async with quick_core(tmp_path / "root") as core:
        with agents(core.root, tmp_path / "work") as (dead,):
            dead.kill()
        await core.store.put(AgentKeys.key(dead.id), b"{}", ANY)
        with agents(core.root, tmp_path / "work"):
            assert (await ended(core, await launch(core, "pass"))).status == "succeeded"
