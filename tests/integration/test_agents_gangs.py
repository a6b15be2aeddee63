"""Gangs on agents that are processes: all replicas run at once, and the end of one ends all."""

from __future__ import annotations

from pathlib import Path

import pytest

from fray_coordinator.jobs import stopping
from tests.support.agents import agents, ended, job, launch, quick_core, running
from tests.support.waiting import eventually

MEET = """
import os, pathlib, sys, time
folder = pathlib.Path({folder!r}, os.environ["FRAY_ATTEMPT"])
folder.mkdir(exist_ok=True)
(folder / os.environ["FRAY_REPLICA"]).write_text(os.environ["FRAY_AGENT_ID"])
while len(list(folder.iterdir())) < int(os.environ["FRAY_REPLICAS"]):
    time.sleep(0.02)
"""
"""Each replica waits for all others, so nothing ends unless all run at once."""


def meet(folder: Path, then: str = "") -> str:
    folder.mkdir()
    return MEET.format(folder=str(folder)) + then


async def test_all_replicas_of_a_gang_run_at_once_on_several_agents(tmp_path: Path) -> None:
    async with quick_core(tmp_path / "root") as core:
        with agents(core.root, tmp_path / "work", count=2):
            job_id = await launch(core, meet(tmp_path / "met"), replicas=4, resources={"cpu": 1})
            record = await ended(core, job_id)
            assert record.status == "succeeded", record.exit
            assert record.attempt == 1
            places = {file.read_text() for file in (tmp_path / "met" / "1").iterdir()}
            assert len(places) == 2


@pytest.mark.slow
async def test_a_gang_waits_for_room_and_then_runs(tmp_path: Path) -> None:
    async with quick_core(tmp_path / "root") as core:
        with agents(core.root, tmp_path / "work", count=1):
            single = await launch(core, "import time; time.sleep(600)")
            await running(core, single)
            gang = await launch(core, meet(tmp_path / "met"), replicas=2, resources={"cpu": 1})

            async def assigned() -> bool:
                placement = (await job(core, gang)).placement
                return placement is not None and placement.members != []

            await eventually(assigned)
            assert (await job(core, gang)).status == "gathering"
            await stopping.stop(core, single, "room is wanted")
            assert (await ended(core, gang)).status == "succeeded"


@pytest.mark.slow
async def test_a_killed_agent_costs_a_gang_one_attempt_and_no_failure(tmp_path: Path) -> None:
    code = meet(tmp_path / "met", 'while os.environ["FRAY_ATTEMPT"] == "1": time.sleep(1)')
    async with quick_core(tmp_path / "root") as core:
        with agents(core.root, tmp_path / "work", count=3) as processes:
            job_id = await launch(core, code, replicas=4, resources={"cpu": 1})
            record = await running(core, job_id)
            assert record.placement is not None
            chosen = record.placement.members[0].agent
            next(process for process in processes if process.id == chosen).kill()
            record = await ended(core, job_id)
            assert (record.status, record.attempt, record.failures, record.preemptions) == ("succeeded", 2, 0, 1)


@pytest.mark.slow
async def test_an_agent_that_leaves_requeues_its_gang(tmp_path: Path) -> None:
    code = meet(tmp_path / "met", 'while os.environ["FRAY_ATTEMPT"] == "1": time.sleep(1)')
    async with quick_core(tmp_path / "root") as core:
        with agents(core.root, tmp_path / "work", count=3) as processes:
            job_id = await launch(core, code, replicas=4, resources={"cpu": 1})
            record = await running(core, job_id)
            assert record.placement is not None
            chosen = record.placement.members[0].agent
            next(process for process in processes if process.id == chosen).end()
            record = await ended(core, job_id)
            assert (record.status, record.attempt, record.failures, record.preemptions) == ("succeeded", 2, 0, 1)
