"""Callables that run in a prestarted process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from fray_agents.tasks import prestart
from fray_agents.tasks.prestart import Prestarter
from fray_agents.tasks.process_task import start_runner
from fray_agents.tasks.task_handle import TaskExit, TaskSpec
from tests.support.processes import is_alive
from tests.support.tasks import (
    FAR,
    boottime,
    spec,
)
from tests.support.waiting import eventually

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prestart, "PRESTART_DELAY", 0.0)


async def run(prestarter: Prestarter, what: TaskSpec) -> TaskExit:
    task = await prestarter.start(what, boottime() + FAR, None)
    end = await task.exit
    async for _, path in task.chunks():
        path.unlink()
    await task.wait()
    return end


async def ready(prestarter: Prestarter) -> int:
    """The process id of the prestarted process's runner. Waits until the runner is ready."""
    await eventually(lambda: prestarter._prestarted is not None)
    assert prestarter._prestarted is not None
    runner = prestarter._prestarted.runner.pid
    await eventually(lambda: bool(child(runner)))
    return runner


def child(pid: int) -> int:
    words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(words[0]) if words else 0


@asynccontextmanager
async def with_prestarter(*modules: str) -> AsyncIterator[Prestarter]:
    prestarter = Prestarter(modules)
    try:
        yield prestarter
    finally:
        await prestarter.close()


def tell() -> list[Any]:
    """The process of this call, its arguments, and the modules that its process had imported before it."""
    return [os.getpid(), os.getcwd(), sys.path[0], os.environ.get("GIVEN"), "colorsys" in sys.modules, sys.stdin.read()]


def result(end: TaskExit) -> Any:
    assert end.result is not None, end.exit
    return json.loads(end.result.path.read_bytes())


async def test_the_next_callable_runs_in_the_prestarted_process_as_if_that_was_started_for_it(
    tmp_path: Path,
) -> None:
    async with with_prestarter("colorsys") as prestarter:
        cold = result(await run(prestarter, spec(tmp_path / "a", call=tell)))
        process = child(await ready(prestarter))
        what = spec(tmp_path / "b", call=tell)
        warm = result(await run(prestarter, replace(what, env={**what.env, "GIVEN": "this"})))
        assert (cold[3:5], warm[3:5]) == ([None, False], ["this", True])
        assert warm[0] == process
        for directory, told in (("a", cold), ("b", warm)):
            assert told[1:3] == [str(tmp_path / directory / "work")] * 2
            assert told[5] == ""


async def test_a_callable_that_needs_another_interpreter_gets_one_of_its_own(tmp_path: Path) -> None:
    async with with_prestarter("colorsys") as prestarter:
        await run(prestarter, spec(tmp_path / "a", call=tell))
        runner = await ready(prestarter)
        what = spec(tmp_path / "b", call=tell)
        told = result(await run(prestarter, replace(what, env={**what.env, "PYTHONHASHSEED": "7"})))
        assert told[4] is False
        await eventually(lambda: not is_alive(runner))


@pytest.mark.parametrize("victim", ["process", "runner"])
async def test_a_prestarted_process_that_died_is_no_harm_and_is_replaced(tmp_path: Path, victim: str) -> None:
    async with with_prestarter() as prestarter:
        await run(prestarter, spec(tmp_path / "a", call=tell))
        runner = await ready(prestarter)
        process = child(runner)
        os.kill(process if victim == "process" else runner, signal.SIGKILL)
        await eventually(lambda: not is_alive(process))
        dead = prestarter._prestarted
        assert dead is not None
        await eventually(lambda: victim == "process" or dead.runner.returncode is not None)
        assert result(await run(prestarter, spec(tmp_path / "b", call=tell)))[0] != process
        assert await ready(prestarter) != runner


async def test_a_prestarted_process_that_cannot_import_is_no_harm(tmp_path: Path) -> None:
    async with with_prestarter("there_is_no_such_module") as prestarter:
        await run(prestarter, spec(tmp_path / "a", call=tell))
        process = child(await ready(prestarter))
        await eventually(lambda: not is_alive(process))
        assert (await run(prestarter, spec(tmp_path / "b", call=tell))).exit.kind == "success"


async def test_a_task_in_a_prestarted_process_is_stopped_killed_and_measured_like_any_other(tmp_path: Path) -> None:
    async with with_prestarter() as prestarter:
        await run(prestarter, spec(tmp_path / "a", call=tell))
        await ready(prestarter)
        task = await prestarter.start(spec(tmp_path / "b", call=lambda: time.sleep(100)), boottime() + FAR, None)
        task.stop(5.0, "stopped")
        end = (await task.exit).exit
        assert (end.kind, end.signal) == ("stopped", signal.SIGTERM)
        await task.wait()


async def test_an_idle_prestarted_process_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prestart, "IDLE_TIMEOUT", 0.05)
    runners: list[int] = []

    async def noted(*args: Any) -> asyncio.subprocess.Process:
        process = await start_runner(*args)
        runners.append(process.pid)
        return process

    monkeypatch.setattr(prestart, "start_runner", noted)

    async with with_prestarter() as prestarter:
        await run(prestarter, spec(tmp_path / "a", call=tell))
        await eventually(lambda: bool(runners) and not is_alive(runners[0]))


async def test_no_prestarted_process_outlives_its_agent(tmp_path: Path) -> None:
    async with with_prestarter() as prestarter:
        await run(prestarter, spec(tmp_path / "a", call=tell))
        process = child(await ready(prestarter))
    await eventually(lambda: not is_alive(process))


async def test_a_prestarted_process_whose_runner_is_frozen_keeps_nobody_from_leaving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prestart, "RUNNER_TIMEOUT", 0.1)
    async with with_prestarter() as prestarter:
        await run(prestarter, spec(tmp_path, call=lambda: None))
        runner = await ready(prestarter)
        processes = [runner, child(runner)]
        os.kill(runner, signal.SIGSTOP)
    await eventually(lambda: not any(map(is_alive, processes)))
