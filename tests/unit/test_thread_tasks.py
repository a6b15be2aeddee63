"""A task in a thread ends with a reason, whatever its callable does to the process."""

from __future__ import annotations

import asyncio
import ctypes
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fray_agents.tasks.task_handle import StartFailed, TaskExit
from fray_agents.tasks.thread_task import ThreadTask
from fray_runtime.current_task import on_stop
from tests.support.tasks import FAR, spec


async def started(directory: Path, call: Callable[[], Any]) -> ThreadTask:
    what = spec(directory, call=call)
    what.env["FRAY_JOB_ID"] = "job"
    task = await ThreadTask.start(what, FAR, None)
    assert isinstance(task, ThreadTask)
    return task


def end_of(directory: Path, call: Callable[[], Any]) -> TaskExit:
    async def main() -> TaskExit:
        task = await started(directory, call)
        shipped = [file.read_bytes() async for _, file in task.chunks()]
        assert all(shipped)
        return await task.exit

    return asyncio.run(main())


def test_a_result_that_cannot_be_written_blames_the_host(tmp_path: Path) -> None:
    directory = tmp_path / "task"
    end = end_of(directory, lambda: shutil.rmtree(directory)).exit
    assert end.kind == "host-failed"
    assert "result.json" in end.message


def test_a_log_that_cannot_be_completed_blames_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("fray_agents.runner.task_log.LogChunks.seal", full)
    assert asyncio.run(exit_of(tmp_path)).exit.kind == "host-failed"


async def exit_of(directory: Path) -> TaskExit:
    return await (await started(directory, lambda: 1)).exit


async def test_a_stop_after_the_thread_has_ended_interrupts_no_thread_that_has_its_identity_by_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await started(tmp_path, lambda: 1)
    task._thread.join()  # the event loop has not run, and does not know
    interrupted: list[object] = []
    monkeypatch.setattr(ctypes.pythonapi, "PyThreadState_SetAsyncExc", lambda *given: interrupted.append(given))
    task.stop(0.1, "stopped")
    assert interrupted == []
    assert (await task.exit).exit.kind == "success"


async def test_a_thread_that_does_not_listen_is_stopped_all_the_same(tmp_path: Path) -> None:
    task = await started(tmp_path, deaf)
    await asyncio.to_thread(listens.wait)
    task.stop(0.1, "stopped")
    end = await task.exit
    released.set()
    await asyncio.to_thread(thread_of("job").join)
    assert end.exit.kind == "stopped"


def thread_of(job: str) -> threading.Thread:
    return next(thread for thread in threading.enumerate() if thread.name == job)


listens, released = threading.Event(), threading.Event()


def deaf() -> None:
    """Pickled by name, as events cannot be pickled."""

    def broken() -> None:
        raise ValueError("odd")

    on_stop(broken)
    listens.set()
    released.wait()


def test_a_thread_that_cannot_be_started_is_a_failed_start_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none_left)
        with pytest.raises(StartFailed, match="can't start new thread"):
            asyncio.run(exit_of(tmp_path))
    assert asyncio.run(exit_of(tmp_path / "next")).exit.kind == "success"
