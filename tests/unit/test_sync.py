"""The synchronous front: threads, running loops, forks, interrupts."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pkgutil import resolve_name as resolve
from types import SimpleNamespace
from typing import Any

import pytest

from fray import sync
from fray_coordinator.errors import StoreRefused, StoreUnavailable
from fray_coordinator.per_process import PerLoop
from tests.support.waiting import PATIENCE


async def thread_name() -> str:
    return threading.current_thread().name


async def double(x: int) -> int:
    await asyncio.sleep(0)
    return 2 * x


def test_many_threads_share_one_loop() -> None:
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda x: sync.run(double(x)), range(100))) == [2 * x for x in range(100)]
        assert len(set(pool.map(lambda _: sync.run(thread_name()), range(8)))) == 1


async def test_it_works_inside_a_running_loop() -> None:
    assert sync.run(double(4)) == 8


def test_an_exception_comes_back_with_its_type() -> None:
    async def fail() -> None:
        raise LookupError("here")

    with pytest.raises(LookupError, match="here"):
        sync.run(fail())


def test_calling_from_the_own_loop_raises_instead_of_hanging() -> None:
    async def inside() -> int:
        return sync.run(double(1))

    with pytest.raises(sync.WouldDeadlock, match="another thread"):
        sync.run(inside())


@pytest.mark.parametrize("step", ["running_future", "LoopThread._started"])
def test_a_call_that_is_interrupted_before_it_begins_leaves_no_coroutine_behind(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Python would complain of it at the end of the program."""
    interruptions, healthy = iter([KeyboardInterrupt()]), resolve(f"fray.sync:{step}")

    def interrupted(*args: object) -> object:
        for interruption in interruptions:
            raise interruption
        return healthy(*args)

    coroutine = double(1)
    monkeypatch.setattr(f"fray.sync.{step}", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sync.run(coroutine)
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


def test_a_fork_gets_a_loop_and_resources_of_its_own() -> None:
    async def pid() -> int:
        return os.getpid()

    resource = PerLoop(pid)
    assert sync.run(resource.get()) == os.getpid()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, f"{resource.opened()} {sync.run(resource.get())}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100).decode() == f"None {child}"
    assert sync.run(resource.get()) == resource.opened() == os.getpid()


def test_a_resource_is_opened_once_and_again_after_a_failure() -> None:
    opened: list[int] = []

    async def opener() -> int:
        await asyncio.sleep(0)
        opened.append(1)
        if len(opened) == 1:
            raise OSError("not yet")
        return len(opened)

    resource = PerLoop(opener)
    with pytest.raises(OSError, match="not yet"):
        sync.run(resource.get())

    async def twice() -> tuple[int, int]:
        first, second = await asyncio.gather(resource.get(), resource.get())
        return first, second

    assert sync.run(twice()) == (2, 2)
    assert sync.run(resource.take()) == 2
    assert sync.run(resource.take()) is None


INTERRUPTED = """
import asyncio, sys
from fray import sync

async def work():
    print("begun", flush=True)
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.05)
        print("cleaned up", flush=True)

try:
    sync.run(work())
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_cancels_the_coroutine_and_waits_for_its_end() -> None:
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=200)[0].splitlines() == ["cleaned up", "interrupted"]


async def test_a_call_that_is_cancelled_before_it_began_never_runs() -> None:
    ran: list[bool] = []

    async def work() -> None:
        ran.append(True)

    call = sync._LoopCall(work())
    call.cancel()
    call.start()
    await asyncio.sleep(0)
    assert isinstance(call.outcome.exception(), CancelledError)
    assert ran == []


async def note_its_course(begun: threading.Event, cleaned: threading.Event) -> None:
    begun.set()
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0)
        cleaned.set()


async def test_a_cancelled_awaiter_cancels_the_coroutine_without_complaints() -> None:
    begun, cleaned = threading.Event(), threading.Event()
    complaints: list[dict[str, Any]] = []

    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    waiting = asyncio.ensure_future(sync.awaited(note_its_course(begun, cleaned)))
    assert await asyncio.to_thread(begun.wait, PATIENCE)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await asyncio.to_thread(cleaned.wait, PATIENCE)
    await sync.awaited(double(1))
    del waiting
    gc.collect()
    assert complaints == []


def test_steps_that_are_written_once_run_in_both_fronts() -> None:
    """Code between the steps runs in the caller's thread; the steps run in the loop's."""

    async def steps(way: Callable[[Coroutine[Any, Any, str]], Awaitable[str]]) -> tuple[str, str]:
        return await thread_name(), await way(thread_name())

    caller = threading.current_thread().name
    assert sync.run_unsuspended(steps(sync.blocking)) == (caller, "fray")
    assert asyncio.run(steps(sync.awaited)) == (caller, "fray")


def test_a_coroutine_that_suspends_cannot_be_run_unsuspended() -> None:
    with pytest.raises(RuntimeError, match="other than the background loop"):
        sync.run_unsuspended(double(1))


def test_a_request_that_the_storage_refuses_or_does_not_answer_is_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[Exception | str] = [StoreRefused("HTTP 403"), StoreUnavailable("away"), StoreRefused("again"), "done"]
    pauses: list[float] = []
    monkeypatch.setattr(sync, "time", SimpleNamespace(sleep=pauses.append))

    def act() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert sync.persist_in_thread(act, "the checkpoint") == "done"
    assert len(pauses) == 3
    for pause, middle in zip(pauses, (1.0, 2.0, 4.0), strict=True):
        assert 0.8 * middle <= pause <= 1.2 * middle
    assert "the checkpoint waits for the storage: HTTP 403" in caplog.text
