"""Logs above a job's limit: the first and the last part are kept, and readers say what is left out."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from fray.cli.cost_model import spent
from fray_agents.runner.task_log import CHUNK_BYTES, LineFormatter, LogChunks, chunk_name
from fray_agents.tasks.task_handle import TaskFile
from fray_agents.tasks.upload import upload_logs
from fray_coordinator.core import Core, open_core
from fray_coordinator.fsck.checker import check
from fray_coordinator.jobs.logs import LogLine, follow_chunks, read_logs
from fray_coordinator.store.interface import ANY
from fray_layouts.object_keys import JobKeys
from fray_layouts.records import AgentRecord, AttemptExit, JobRecord
from fray_layouts.spec import SMALLEST_LOG
from fray_layouts.spec_parsing import parse_spec
from fray_layouts.work_keys import WorkKeys

SPEC = parse_spec({"name": "loud", "entrypoint": {"command": ["true"]}, "log_limit": "10MB"})
RUNNING = JobRecord(id="loud-1", spec=SPEC, status="running", attempt=1, started_at=1.0)


@pytest.fixture
async def core() -> Core:
    core = await open_core(f"memory://{uuid.uuid4()}")
    await core.records.write(JobKeys.key(RUNNING.id), JobRecord, RUNNING, None)
    return core


async def request_once(request: Callable[[], Awaitable[object]]) -> object:
    return await request()


async def printed(core: Core, folder: Path, lines: int) -> JobRecord:
    """Upload a log of as many numbered lines of a kilobyte; returns the job that has ended with it."""
    chunks = LogChunks(str(folder), 2**40, lambda number: None)
    formatter = LineFormatter("stdout")
    for number in range(lines):
        chunks.append(formatter.format(b"%08d" % number + b"." * 990 + b"\n"))
    chunks.seal()

    async def sealed() -> AsyncIterator[tuple[int, TaskFile]]:
        for number in range(1, chunks.count + 1):
            yield number, TaskFile(folder / chunk_name(number), 2 * CHUNK_BYTES)

    count = await upload_logs(core, RUNNING, 0, sealed(), request_once)
    ended = replace(RUNNING, status="succeeded", exit=AttemptExit(kind="success", log_chunks=count))
    found = await core.records.read(JobKeys.key(RUNNING.id), JobRecord)
    await core.records.write(JobKeys.key(RUNNING.id), JobRecord, ended, found)
    return ended


async def stored_bytes(core: Core) -> int:
    rows = await core.store.list(WorkKeys.prefix(RUNNING.id))
    return sum([len(found.data) for row in rows if (found := await core.store.get(row.key)) is not None])


def numbers(lines: list[LogLine]) -> list[int]:
    return [int(line.data[:8]) for line in lines if line.stream == "stdout"]


async def test_of_a_log_above_the_limit_the_first_and_the_last_part_are_kept(core: Core, tmp_path: Path) -> None:
    job = await printed(core, tmp_path, 30_000)
    assert SMALLEST_LOG - 2 * CHUNK_BYTES < await stored_bytes(core) <= SMALLEST_LOG
    lines = await read_logs(core, job)
    (mark,) = [line for line in lines if line.stream == "stderr"]
    gap = lines.index(mark)
    first, last = numbers(lines[:gap]), numbers(lines[gap:])
    assert first == list(range(len(first)))
    assert last == list(range(30_000 - len(last), 30_000))
    assert min(len(first), len(last)) > 4_000
    assert b" chunks of output are left out here: the log has more than the 10 MB that log_limit keeps" in mark.data
    followed: list[LogLine] = []
    async for chunk in follow_chunks(core, job.id):
        followed += chunk
    assert followed == lines
    assert numbers(await read_logs(core, job, 3)) == [29_997, 29_998, 29_999]


@pytest.mark.parametrize("lines", [0, 100, 9_500])
async def test_of_a_log_within_the_limit_nothing_is_left_out_and_nothing_listed(
    core: Core, tmp_path: Path, lines: int
) -> None:
    job = await printed(core, tmp_path, lines)
    before = core.store.usage.snapshot()
    assert numbers(await read_logs(core, job)) == list(range(lines))
    assert (core.store.usage - before).lists == 0


async def test_a_follower_in_the_first_part_of_a_running_job_lists_nothing(core: Core, tmp_path: Path) -> None:
    await printed(core, tmp_path, 2_000)
    before = core.store.usage.snapshot()
    assert len(await read_logs(core, RUNNING)) == 2_000
    assert (core.store.usage - before).lists == 0


async def test_a_chunk_that_the_task_removed_is_told_in_its_place(core: Core, tmp_path: Path) -> None:
    async def sealed() -> AsyncIterator[tuple[int, TaskFile]]:
        yield 1, TaskFile(tmp_path / chunk_name(1), 2 * CHUNK_BYTES)

    assert await upload_logs(core, RUNNING, 0, sealed(), request_once) == 1
    [line] = await read_logs(core, RUNNING)
    assert b"fray: a part of the output is lost here, because the task changed its log: No such file" in line.data


async def test_fsck_takes_what_is_left_out_for_no_loss(core: Core, tmp_path: Path) -> None:
    job = await printed(core, tmp_path, 30_000)
    assert not [each for each in await check(core) if "of the log" in each.what]
    await core.store.delete(WorkKeys.log(job.id, 1, 0, job.exit.log_chunks or 0), ANY)  # type: ignore[union-attr]
    assert [each for each in await check(core) if "of the log" in each.what]


async def test_stored_logs_are_in_the_costs(core: Core, tmp_path: Path) -> None:
    await printed(core, tmp_path, 3_000)
    agent = AgentRecord(id="a-1", host="a", pool="default", requests={"log_bytes": core.store.usage.log_bytes})
    line = spent([agent])[1]
    assert line.what.startswith("the 3.1 MB of logs")
    assert line.dollars == pytest.approx(3e-3 * 0.02, rel=0.05)
