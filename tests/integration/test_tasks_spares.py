"""Callables that are started in a process that was there before them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from fray_agents.tasks import prestart as spares_module
from fray_agents.tasks.prestart import Prestarter
from fray_agents.tasks.process_task import TaskExit, TaskSpec, start_runner
from tests.support.tasks import FAR, alive, boottime, spec, until

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spares_module, "PRESTART_DELAY", 0.0)


async def run(spares: Prestarter, what: TaskSpec) -> TaskExit:
    task = await spares.start(what, boottime() + FAR, None)
    end = await task.exit
    async for _, path in task.chunks():
        path.unlink()
    await task.gone()
    return end


async def ready(spares: Prestarter) -> int:
    """The process id of the spare's runner, once it waits."""
    await until(lambda: spares._spare is not None, "a spare")
    assert spares._spare is not None
    runner = spares._spare.runner.pid
    await until(lambda: bool(child(runner)), "the spare's own process")
    return runner


def child(pid: int) -> int:
    words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(words[0]) if words else 0


def with_spares(act: Callable[[Prestarter], Awaitable[None]], *modules: str) -> None:
    async def main() -> None:
        spares = Prestarter(modules)
        try:
            await act(spares)
        finally:
            await spares.close()

    asyncio.run(main())


def tell() -> list[Any]:
    """Where this call runs, what it was given, and what its process had imported before it."""
    return [os.getpid(), os.getcwd(), sys.path[0], os.environ.get("GIVEN"), "colorsys" in sys.modules, sys.stdin.read()]


def result(end: TaskExit) -> Any:
    assert end.result is not None, end.exit
    return json.loads(end.result.path.read_bytes())


def test_the_next_callable_runs_in_the_spare_as_if_it_had_been_started_for_it(tmp_path: Path) -> None:
    async def act(spares: Prestarter) -> None:
        cold = result(await run(spares, spec(tmp_path / "a", call=tell)))
        process = child(await ready(spares))
        what = spec(tmp_path / "b", call=tell)
        warm = result(await run(spares, replace(what, env={**what.env, "GIVEN": "this"})))
        assert (cold[3:5], warm[3:5]) == ([None, False], ["this", True])
        assert warm[0] == process
        for directory, told in (("a", cold), ("b", warm)):
            assert told[1:3] == [str(tmp_path / directory / "work")] * 2
            assert told[5] == ""

    with_spares(act, "colorsys")


def test_a_callable_that_needs_another_interpreter_gets_one_of_its_own(tmp_path: Path) -> None:
    async def act(spares: Prestarter) -> None:
        await run(spares, spec(tmp_path / "a", call=tell))
        runner = await ready(spares)
        what = spec(tmp_path / "b", call=tell)
        told = result(await run(spares, replace(what, env={**what.env, "PYTHONHASHSEED": "7"})))
        assert told[4] is False
        await until(lambda: not alive(runner), "the end of the spare that did not fit")

    with_spares(act, "colorsys")


@pytest.mark.parametrize("victim", ["spare", "runner"])
def test_a_spare_that_died_is_no_harm_and_is_replaced(tmp_path: Path, victim: str) -> None:
    async def act(spares: Prestarter) -> None:
        await run(spares, spec(tmp_path / "a", call=tell))
        runner = await ready(spares)
        process = child(runner)
        os.kill(process if victim == "spare" else runner, signal.SIGKILL)
        await until(lambda: not alive(process), "its death")
        dead = spares._spare
        assert dead is not None
        await until(lambda: victim == "spare" or dead.runner.returncode is not None, "the news of it")
        assert result(await run(spares, spec(tmp_path / "b", call=tell)))[0] != process
        assert await ready(spares) != runner

    with_spares(act)


def test_a_spare_that_cannot_import_is_no_harm(tmp_path: Path) -> None:
    async def act(spares: Prestarter) -> None:
        await run(spares, spec(tmp_path / "a", call=tell))
        process = child(await ready(spares))
        await until(lambda: not alive(process), "its end")
        assert (await run(spares, spec(tmp_path / "b", call=tell))).exit.kind == "success"

    with_spares(act, "there_is_no_such_module")


def test_a_task_in_a_spare_is_stopped_killed_and_measured_like_any_other(tmp_path: Path) -> None:
    async def act(spares: Prestarter) -> None:
        await run(spares, spec(tmp_path / "a", call=tell))
        await ready(spares)
        task = await spares.start(spec(tmp_path / "b", call=lambda: time.sleep(100)), boottime() + FAR, None)
        task.stop(5.0, "stopped")
        end = (await task.exit).exit
        assert (end.kind, end.signal) == ("stopped", signal.SIGTERM)
        await task.gone()

    with_spares(act)


def test_an_idle_spare_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spares_module, "IDLE_TIMEOUT", 0.05)
    runners: list[int] = []

    async def noted(*args: Any) -> asyncio.subprocess.Process:
        process = await start_runner(*args)
        runners.append(process.pid)
        return process

    monkeypatch.setattr(spares_module, "start_runner", noted)

    async def act(spares: Prestarter) -> None:
        await run(spares, spec(tmp_path / "a", call=tell))
        await until(lambda: bool(runners) and not alive(runners[0]), "the end of an idle spare")

    with_spares(act)


def test_no_spare_outlives_its_agent(tmp_path: Path) -> None:
    processes: list[int] = []

    async def act(spares: Prestarter) -> None:
        await run(spares, spec(tmp_path / "a", call=tell))
        processes.append(child(await ready(spares)))

    with_spares(act)
    asyncio.run(until(lambda: not alive(processes[0]), "the end of the spare's process"))


def test_a_spare_whose_runner_is_frozen_keeps_nobody_from_leaving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spares_module, "RUNNER_TIMEOUT", 0.1)

    async def act(spares: Prestarter) -> None:
        await run(spares, spec(tmp_path, call=lambda: None))
        runner = await ready(spares)
        processes.extend([runner, child(runner)])
        os.kill(runner, signal.SIGSTOP)

    processes: list[int] = []
    with_spares(act)
    asyncio.run(until(lambda: not any(map(alive, processes)), "the spare has gone"))
