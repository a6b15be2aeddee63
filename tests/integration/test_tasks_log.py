"""The log of a running task: visible while it runs, complete at its end, and within bounds of memory and disk."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from pathlib import Path

import pytest

from fray_agents.runner.task_log import CHUNK_BYTES
from fray_agents.tasks.process_task import ProcessTask
from fray_agents.tasks.task_handle import TaskSpec
from fray_coordinator.jobs.logs import parse_chunk
from tests.support.tasks import (
    FAR,
    boottime,
    run,
    sh,
    spec,
)
from tests.support.waiting import eventually


def content(log: bytes, stream: bytes) -> bytes:
    lines = parse_chunk("log", log, 1, 0) if log else []
    return b"".join(line.data + b"\n" * line.complete for line in lines if line.stream == stream.decode())


def peak_memory(pid: int) -> int:
    """Bytes; 0 if the process has ended."""
    path = Path(f"/proc/{pid}/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", path.read_text() if path.exists() else "")
    return int(found[1]) * 1024 if found else 0


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_binary_output_of_both_streams_comes_back_exactly(tmp_path: Path) -> None:
    script = "import os\nfor i in range(200): os.write(1 + i % 2, bytes(range(256)) * i)"
    _, log = asyncio.run(run(spec(tmp_path, [sys.executable, "-c", script])))
    for stream, parity in ((b"stdout", 0), (b"stderr", 1)):
        assert content(log, stream) == b"".join(bytes(range(256)) * i for i in range(parity, 200, 2))


async def test_output_is_seen_while_the_task_runs(tmp_path: Path) -> None:
    task = await ProcessTask.start(
        sh(tmp_path, "printf 'so far'; while ! [ -e go ]; do sleep 0.02; done"), boottime() + FAR, None
    )
    chunks = task.chunks()
    number, path = await anext(chunks)
    assert (number, task.exit.done()) == (1, False)
    assert path.read_bytes().endswith(b" stdout P so far\n")
    (tmp_path / "work/go").touch()
    assert [number async for number, _ in chunks] == []


async def test_a_callables_prints_are_lines_at_once(tmp_path: Path) -> None:
    """They appear before the process ends, which it does not do by itself, and before Python's buffer is full."""

    def talk() -> None:
        import os
        import time

        print("one")
        while not os.path.exists("go"):
            time.sleep(0.02)

    task = await ProcessTask.start(spec(tmp_path, call=talk), boottime() + FAR, None)
    _, path = await anext(task.chunks())
    assert path.read_bytes().endswith(b" stdout F one\n")
    (tmp_path / "work/go").touch()
    assert (await task.exit).exit.kind == "success"


LOUD = """
import sys
line = b"x" * 99 + b"\\n"
for _ in range(int(sys.argv[1])): sys.stdout.buffer.write(line * 1000)
"""
"""Prints a thousand lines of 100 bytes, as often as its argument says."""


@pytest.mark.slow
async def test_a_hundred_megabytes_grow_neither_agent_nor_runner(tmp_path: Path) -> None:
    before = peak_memory(os.getpid())
    task = await ProcessTask.start(spec(tmp_path, [sys.executable, "-c", LOUD, "1000"]), boottime() + FAR, None)
    seen, runner_peak = 0, 0
    async for _, path in task.chunks():
        log = path.read_bytes()
        assert len(log) <= CHUNK_BYTES
        lines = content(log, b"stdout")
        assert lines == (b"x" * 99 + b"\n") * lines.count(b"\n")
        seen += lines.count(b"\n")
        path.unlink()
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # it may be gone at the last chunks
            runner_peak = max(runner_peak, peak_memory(task.runner_pid))
    assert seen == 1_000_000
    assert 0 < runner_peak < 30_000_000
    assert peak_memory(os.getpid()) - before < 30_000_000


async def test_a_task_waits_when_nobody_ships_its_log(tmp_path: Path) -> None:
    loud = spec(tmp_path, [sys.executable, "-c", LOUD, "100"], spool_limit=3 * CHUNK_BYTES)

    task = await ProcessTask.start(loud, boottime() + FAR, None)
    await eventually(lambda: len(list((tmp_path / "log").iterdir())) >= 3)
    task.usage = None
    await eventually(lambda: task.usage is not None or task.exit.done())  # reported every other second
    assert len(list((tmp_path / "log").iterdir())) <= 6
    assert cpu_seconds(task.runner_pid) < 0.5  # it waits, too
    lines = 0
    async for _, path in task.chunks():
        lines += content(path.read_bytes(), b"stdout").count(b"\n")
        path.unlink()
    assert (lines, (await task.exit).exit.kind) == (100_000, "success")


SLOW = """
import os
for number in range(3000):
    os.write(1, b"%d\\n" % (number % 10))
    os.sched_yield()
"""
"""Prints short lines one by one."""


async def test_short_lines_that_are_printed_one_by_one_share_their_headers(tmp_path: Path) -> None:
    end, log = await run(spec(tmp_path, [sys.executable, "-c", SLOW]))
    assert end.exit.kind == "success"
    assert content(log, b"stdout") == b"".join(b"%d\n" % (number % 10) for number in range(3000))
    assert log.count(b" stdout ") < 300


async def test_a_full_spool_does_not_keep_a_task_from_being_stopped(tmp_path: Path) -> None:
    loud = TaskSpec(tmp_path, ["yes"], None, dict(os.environ), None, 1.0, spool_limit=CHUNK_BYTES)
    task = await ProcessTask.start(loud, boottime() + FAR, None)
    await eventually(lambda: len(list((tmp_path / "log").iterdir())) > 1)
    task.stop(FAR, "stopped")
    assert (await task.exit).exit.kind == "stopped"
