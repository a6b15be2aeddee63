"""The logs of a gang: each replica's own, and all of them as one."""

from __future__ import annotations

import uuid

import pytest

from fray.cluster.driver_log import LineDisplay
from fray.cluster.log_printer import LONGEST_LINE, ReplicaLines
from fray_coordinator.core import Core, open_core
from fray_coordinator.jobs.logs import LogCursor, LogLine, follow_chunks, read_logs
from fray_coordinator.store.interface import ABSENT
from fray_layouts.errors import InvalidInput
from fray_layouts.object_keys import JobKeys
from fray_layouts.records import AttemptExit, JobRecord
from fray_layouts.spec_parsing import parse_spec
from fray_layouts.work_keys import WorkKeys

SPEC = parse_spec({"name": "train", "entrypoint": {"command": ["true"]}, "replicas": 3})
ENDED = JobRecord(
    id="train-1",
    spec=SPEC,
    status="succeeded",
    attempt=2,
    started_at=1.0,
    exit=AttemptExit(kind="success", log_chunks=1),
)


@pytest.fixture
async def core() -> Core:
    core = await open_core(f"memory://{uuid.uuid4()}")
    await core.records.write(JobKeys.key(ENDED.id), JobRecord, ENDED, None)
    return core


async def print_chunk(core: Core, replica: int, number: int, *lines: tuple[int, str], attempt: int = 2) -> None:
    """Store a chunk of lines, each with its time in seconds."""
    data = b"".join(f"2026-01-02T03:04:{at:02}.000000Z stdout F {text}\n".encode() for at, text in lines)
    await core.store.put(WorkKeys.log(ENDED.id, attempt, replica, number), data, ABSENT)


async def printed(core: Core) -> None:
    """A first attempt with output of one replica, and a second one with output of two."""
    await print_chunk(core, 1, 1, (0, "before"), attempt=1)
    await print_chunk(core, 0, 1, (1, "a"), (4, "d"))
    await print_chunk(core, 2, 1, (2, "b"))
    await print_chunk(core, 2, 2, (3, "c"), (5, "e"))


async def test_lines_of_all_replicas_are_merged_by_time(core: Core) -> None:
    await printed(core)
    lines = await read_logs(core, ENDED)
    assert [(line.replica, line.data) for line in lines] == [(0, b"a"), (2, b"b"), (2, b"c"), (0, b"d"), (2, b"e")]
    assert [line.data for line in await read_logs(core, ENDED, 2)] == [b"d", b"e"]


async def test_one_replica_is_read_alone(core: Core) -> None:
    await printed(core)
    assert [line.data for line in await read_logs(core, ENDED, replica=2)] == [b"b", b"c", b"e"]
    assert await read_logs(core, ENDED, replica=1) == []
    followed = [line.data async for chunk in follow_chunks(core, ENDED.id, replica=1) for line in chunk]
    assert followed == [b"before"]


async def test_followers_get_the_output_of_every_replica(core: Core) -> None:
    await printed(core)
    lines = [line async for chunk in follow_chunks(core, ENDED.id) for line in chunk]
    assert sorted(line.data for line in lines) == [b"a", b"b", b"before", b"c", b"d", b"e"]
    assert [line.data for line in lines if line.replica == 2] == [b"b", b"c", b"e"]


async def test_a_late_reader_begins_with_the_last_chunk_of_each_replica(core: Core) -> None:
    await printed(core)
    cursor = LogCursor(core, ENDED, attempt=2)
    assert await cursor.skip_to_last(ENDED)
    chunk = await cursor.next_chunk(ENDED)
    assert chunk is not None
    assert [line.data for line in chunk] == [b"a", b"c", b"d", b"e"]


@pytest.mark.parametrize("replica", [-1, 3])
async def test_an_unknown_replica_is_refused_with_the_known_ones(core: Core, replica: int) -> None:
    with pytest.raises(InvalidInput, match=rf"replica: {replica} .*the replicas of train-1 are 0 to 2"):
        await read_logs(core, ENDED, replica=replica)
    with pytest.raises(InvalidInput, match=rf"replica: {replica} .*the replicas of train-1 are 0 to 2"):
        await anext(follow_chunks(core, ENDED.id, replica=replica))


def a_line(replica: int, data: bytes, complete: bool = True) -> LogLine:
    return LogLine(1, replica, "2026-01-02T03:04:05.000000Z", "stdout", data, complete)


def test_pieces_of_several_replicas_become_whole_lines_with_their_numbers() -> None:
    merged = ReplicaLines()
    pieces = [a_line(0, b"on", False), a_line(1, b"two"), a_line(0, b"e"), a_line(1, b"thr", False)]
    assert [line.data for line in merged.whole(pieces)] == [b"[1] two", b"[0] one"]
    assert [(line.data, line.complete) for line in merged.rest()] == [(b"[1] thr", True)]
    assert list(merged.rest()) == []


def test_a_line_that_never_ends_is_shown_in_parts() -> None:
    merged = ReplicaLines()
    shown = list(merged.whole([a_line(0, b"x" * LONGEST_LINE, False), a_line(0, b"y", False)]))
    assert [line.data for line in shown] == [b"[0] " + b"x" * LONGEST_LINE + b"y"]


async def test_a_driver_shows_which_replica_a_line_is_of(core: Core) -> None:
    display = LineDisplay(ENDED.id, core.clock, names_replicas=True)
    lines = display.lines([a_line(0, b"one"), a_line(2, b"two")])
    assert lines == [("stdout", "(train-1 [0]) one"), ("stdout", "(train-1 [2]) two")]
