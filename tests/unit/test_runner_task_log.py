"""The log lines and chunk files of a task: exact bytes, in order, in bounded pieces."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from fray_agents.runner.task_log import (
    CHUNK_BYTES,
    LINE_BYTES,
    LogChunks,
    OutputStream,
)

LINE = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z (stdout|stderr) ([FP]) ([^\n]*)\n")


def content(formatted: bytes, stream: bytes = b"stdout") -> bytes:
    """The bytes that the task printed, joined as the format says; fails if a line is not of the format."""
    assert LINE.sub(b"", formatted) == b""
    return b"".join(
        text + (b"\n" if kind == b"F" else b"") for name, kind, text in LINE.findall(formatted) if name == stream
    )


def printed(*pieces: bytes) -> tuple[bytes, OutputStream]:
    """The log lines of a stream that reads `pieces` one by one."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    stream = OutputStream("stdout", read)
    out = b""
    for piece in pieces:
        os.write(write, piece)
        out += stream.read() or b""
    os.close(write)
    return out, stream


@pytest.mark.parametrize(
    "pieces",
    [
        (b"a\nb\n",),
        (b"no newline",),
        (b"half", b" and half\n"),
        (b"\n\n\n",),
        (b"\x00\xff\r\x1b[0m\n\x80",),
        (b"x" * (3 * LINE_BYTES + 7) + b"\ny",),
        (b"x" * LINE_BYTES + b"\n",),
        tuple(bytes([i]) for i in range(256)),
    ],
)
def test_the_exact_bytes_come_back(pieces: tuple[bytes, ...]) -> None:
    out, stream = printed(*pieces)
    assert content(out + stream.flush()) == b"".join(pieces)


def test_no_line_is_longer_than_its_bound() -> None:
    out, stream = printed(b"x" * 60_000)
    assert all(len(text) <= LINE_BYTES for _, _, text in LINE.findall(out + stream.flush()))


def test_an_unfinished_line_is_a_piece_and_its_newline_comes_later() -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    stream = OutputStream("stderr", read)
    os.write(write, b"10%")
    assert stream.read() == b""
    first = stream.flush()
    os.write(write, b"\n")
    second = stream.read() or b""
    os.close(write)
    assert [match[1:] for match in LINE.findall(first + second)] == [(b"P", b"10%"), (b"F", b"")]


def test_the_end_of_a_pipe_closes_the_stream() -> None:
    _, stream = printed(b"last")
    assert stream.read() is None
    assert not stream.open


def chunk_files(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())


def test_chunks_are_bounded_and_cut_between_lines(tmp_path: Path) -> None:
    sealed: list[int] = []
    chunks = LogChunks(str(tmp_path), 1 << 30, sealed.append)
    lines = b"".join(b"2026-01-01T00:00:00.000000Z stdout F %07d %s\n" % (i, b"x" * (i % 900)) for i in range(3000))
    for start in range(0, 3000, 3):
        block = lines.splitlines(keepends=True)[start : start + 3] if start < 9 else []
        chunks.append(b"".join(block))
    chunks.append(b"".join(lines.splitlines(keepends=True)[9:]))
    chunks.seal()
    files = chunk_files(tmp_path)
    assert [file.name for file in files] == [f"{number:08d}" for number in sealed]
    assert sealed == list(range(1, len(files) + 1))
    assert all(file.stat().st_size <= CHUNK_BYTES and file.read_bytes().endswith(b"\n") for file in files)
    assert b"".join(file.read_bytes() for file in files) == lines


def test_a_chunk_is_visible_under_its_name_only_when_complete(tmp_path: Path) -> None:
    chunks = LogChunks(str(tmp_path), 1 << 30, lambda number: None)
    chunks.append(b"line\n")
    assert [file.name for file in chunk_files(tmp_path)] == ["00000001.part"]
    chunks.seal()
    assert [file.name for file in chunk_files(tmp_path)] == ["00000001"]


def test_silence_makes_no_chunk(tmp_path: Path) -> None:
    chunks = LogChunks(str(tmp_path), 1 << 30, lambda number: None)
    chunks.append(b"")
    chunks.seal()
    assert chunk_files(tmp_path) == []
    assert chunks.due() is None


def test_the_spool_is_full_until_the_agent_removes_chunks(tmp_path: Path) -> None:
    chunks = LogChunks(str(tmp_path), 3 * CHUNK_BYTES, lambda number: None)
    for _ in range(4):
        assert not chunks.full()
        chunks.append(b"x" * (CHUNK_BYTES - 1) + b"\n")
        chunks.seal()
    assert chunks.full()
    chunk_files(tmp_path)[0].unlink()
    assert not chunks.full()


def test_writes_that_a_full_disk_refused_are_made_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = LogChunks(str(tmp_path), 1 << 30, lambda number: None)
    room = 40

    def write(fd: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = os_write(fd, data[:room])
        room -= written
        return written

    os_write = os.write
    monkeypatch.setattr(os, "write", write)
    lines = [b"2026-01-01T00:00:00.000000Z stderr F %03d\n" % number for number in range(20_000)]
    for number in range(0, len(lines), 100):
        chunks.append(b"".join(lines[number : number + 100]))
    chunks.seal()
    assert chunks.lacks_room
    assert [file.name for file in chunk_files(tmp_path)] == ["00000001.part"]
    room = 1 << 30
    chunks.find_room()
    chunks.seal()
    text = b"".join(file.read_bytes() for file in chunk_files(tmp_path))
    assert b"".join(lines).startswith(text)
    assert CHUNK_BYTES - 100 < len(text) <= CHUNK_BYTES + 40
    assert text.endswith(b"\n")


@pytest.mark.parametrize("call", ["open", "write"])
def test_a_disk_that_stays_full_costs_the_rest_of_the_log_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    chunks = LogChunks(str(tmp_path), 1 << 30, lambda number: None)
    monkeypatch.setattr(os, call, full)
    chunks.begin()
    chunks.append(b"line\n")
    chunks.find_room()
    chunks.seal()
    assert (chunks.count, chunks.lacks_room, chunk_files(tmp_path)) == (0, False, [])
