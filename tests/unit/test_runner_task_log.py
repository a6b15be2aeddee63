"""The log lines and chunk files of a task: exact bytes, in order, in bounded pieces."""

from __future__ import annotations

import errno
import os
import re
from itertools import pairwise
from pathlib import Path

import pytest

from fray_agents.runner.task_log import (
    CHUNK_BYTES,
    PIECE_BYTES,
    LogChunks,
    OutputStream,
)

HEADER = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z (stdout|stderr) ([FPL]) ([^\n]*)\n")


def content(pieces: list[bytes], stream: bytes = b"stdout") -> bytes:
    """The bytes that the task printed, joined as the format says; fails if a piece is not of the format."""
    out = b""
    for piece in pieces:
        header = HEADER.match(piece)
        assert header is not None
        name, kind, text = header.groups()
        block = piece[header.end() :]
        if kind == b"L":
            assert (len(block), block[-1:]) == (int(text), b"\n")
            text = block
        else:
            assert block == b""
        if name == stream:
            out += text + (b"\n" if kind == b"F" else b"")
    return out


def printed_masked(text: bytes, *cuts: int) -> bytes:
    """What the log has of a text that is read in parts that end at these places."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    stream = OutputStream(
        "stdout", read, kept=1000, secrets=["password", "pass\nphrase\n", "passwords!", "abcabc", "tiny"]
    )
    pieces: list[bytes] = []
    for start, end in pairwise([0, *cuts, len(text)]):
        os.write(write, text[start:end])
        pieces += stream.read() or []
        pieces += stream.flush(is_last=False)  # as when a chunk is sealed between two reads
    os.close(write)
    pieces += stream.read() or []
    pieces += stream.flush()
    found = content(pieces).replace(b"\n", b"") if b"\n" not in text else content(pieces)
    assert stream.last == found
    return found


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"the password is password", b"the *** is ***"),
        (b"passwords!passwords?", b"******s?"),
        (b"xabcabcabc", b"x***abc"),
        (b"abcab", b"abcab"),
        (b"tiny", b"tiny"),
        (b"=cGFzc3dvcmQ=", b"=***="),
        (b"passpasspassword", b"passpass***"),
    ],
)
def test_secrets_are_masked_wherever_a_read_ends(text: bytes, shown: bytes) -> None:
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1):
            assert printed_masked(text, first, second) == shown


def test_a_secret_of_several_lines_is_masked() -> None:
    assert printed_masked(b"a pass\nphrase b\n", 4, 9) == b"a *** b\n"


def printed(*pieces: bytes) -> tuple[list[bytes], OutputStream]:
    """The pieces of the log of a stream that reads `pieces` one by one."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    stream = OutputStream("stdout", read)
    out: list[bytes] = []
    for piece in pieces:
        os.write(write, piece)
        out += stream.read() or []
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
        (b"x" * (3 * PIECE_BYTES + 7) + b"\ny",),
        (b"x" * PIECE_BYTES + b"\n",),
        tuple(bytes([i]) for i in range(256)),
    ],
)
def test_the_exact_bytes_come_back(pieces: tuple[bytes, ...]) -> None:
    out, stream = printed(*pieces)
    assert content(out + stream.flush()) == b"".join(pieces)


def test_no_piece_is_longer_than_its_bound() -> None:
    out, stream = printed(b"x" * 40_000 + b"\n" + b"y\n" * 10_000)
    assert all(len(piece) <= PIECE_BYTES + 50 for piece in out + stream.flush())


@pytest.mark.parametrize("width", [2, 10, 79, 1000])
def test_stored_lines_cost_at_most_twice_their_bytes(width: int) -> None:
    text = (b"x" * (width - 1) + b"\n") * (60_000 // width)
    out, _ = printed(text)
    assert content(out) == text
    assert sum(map(len, out)) <= 2 * len(text)


@pytest.mark.parametrize("character", ["ä", "€", "😀"])
@pytest.mark.parametrize("before", range(4))
def test_no_piece_ends_inside_a_character(character: str, before: int) -> None:
    text = ("a" * before + character * 12_000).encode()
    out, stream = printed(text[:20_001])
    pieces = [*out, *stream.flush(is_last=False)]
    pieces += stream.format(text[20_001:] + b"\n")
    assert content(pieces) == text + b"\n"
    assert all(HEADER.match(piece)[3].decode() for piece in pieces)  # type: ignore[index]


def test_bytes_that_are_no_character_are_kept_at_the_end() -> None:
    out, stream = printed(b"half \xf0\x9f")
    assert content([*out, *stream.flush(is_last=False)]) == b"half "
    assert content(stream.flush()) == b"\xf0\x9f"


def test_an_unfinished_line_is_a_piece_and_its_newline_comes_later() -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    stream = OutputStream("stderr", read)
    os.write(write, b"10%")
    assert stream.read() == []
    first = stream.flush()
    os.write(write, b"\n")
    second = stream.read() or []
    os.close(write)
    assert [HEADER.fullmatch(piece).groups()[1:] for piece in first + second] == [  # type: ignore[union-attr]
        (b"P", b"10%"),
        (b"F", b""),
    ]


def test_lines_of_one_read_share_a_header_and_a_single_line_is_in_the_cri_format() -> None:
    out, _ = printed(b"a\nb\n", b"c\n")
    assert [re.sub(rb"^[^ ]* ", b"", piece) for piece in out] == [b"stdout L 4\na\nb\n", b"stdout F c\n"]


def test_the_end_of_a_pipe_closes_the_stream() -> None:
    _, stream = printed(b"last")
    assert stream.read() is None
    assert not stream.open


def chunk_files(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())


def test_chunks_are_bounded_and_cut_between_pieces(tmp_path: Path) -> None:
    sealed: list[int] = []
    chunks = LogChunks(str(tmp_path), 1 << 30, sealed.append)
    pieces = [b"2026-01-01T00:00:00.000000Z stdout F %07d %s\n" % (i, b"x" * (i % 900)) for i in range(3000)]
    chunks.append(pieces[:3])
    chunks.append([])
    chunks.append(pieces[3:])
    chunks.seal()
    files = chunk_files(tmp_path)
    assert [file.name for file in files] == [f"{number:08d}" for number in sealed]
    assert sealed == list(range(1, len(files) + 1))
    assert all(file.stat().st_size <= CHUNK_BYTES and file.read_bytes().endswith(b"\n") for file in files)
    assert b"".join(file.read_bytes() for file in files) == b"".join(pieces)


def test_a_chunk_is_visible_under_its_name_only_when_complete(tmp_path: Path) -> None:
    chunks = LogChunks(str(tmp_path), 1 << 30, lambda number: None)
    chunks.append([b"line\n"])
    assert [file.name for file in chunk_files(tmp_path)] == ["00000001.part"]
    chunks.seal()
    assert [file.name for file in chunk_files(tmp_path)] == ["00000001"]


def test_silence_makes_no_chunk(tmp_path: Path) -> None:
    chunks = LogChunks(str(tmp_path), 1 << 30, lambda number: None)
    chunks.append([])
    chunks.seal()
    assert chunk_files(tmp_path) == []
    assert chunks.due() is None


def test_the_spool_is_full_until_the_agent_removes_chunks(tmp_path: Path) -> None:
    chunks = LogChunks(str(tmp_path), 3 * CHUNK_BYTES, lambda number: None)
    for _ in range(4):
        assert not chunks.full()
        chunks.append([b"x" * (CHUNK_BYTES - 1) + b"\n"])
        chunks.seal()
    assert chunks.full()
    chunk_files(tmp_path)[0].unlink()
    assert not chunks.full()


class SmallDisk:
    """A disk on which `room` bytes are left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
        self.room = room
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, fd: int, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._write(fd, data[: self.room])
        self.room -= written
        return written


LINES = [b"2026-01-01T00:00:00.000000Z stderr F %05d\n" % number for number in range(20_000)]


def test_pieces_that_a_full_disk_refused_are_written_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = LogChunks(str(tmp_path), 1 << 30, lambda number: None)
    disk = SmallDisk(monkeypatch, room=3 * len(LINES[0]) // 2)
    chunks.append(LINES[:5000])
    chunks.seal()
    assert chunks.lacks_room
    assert [file.name for file in chunk_files(tmp_path)] == ["00000001.part"]
    assert not chunks.recover()
    disk.room = 1 << 30
    assert chunks.recover()
    chunks.seal()
    assert b"".join(file.read_bytes() for file in chunk_files(tmp_path)) == b"".join(LINES[:5000])


def test_what_a_full_disk_has_cost_is_said_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = LogChunks(str(tmp_path), 1 << 30, lambda number: None)
    disk = SmallDisk(monkeypatch, room=0)
    for number in range(0, len(LINES), 100):
        chunks.append(LINES[number : number + 100])
    disk.room = 1 << 30
    assert not chunks.recover()
    lost = chunks.give_up()
    chunks.seal()
    text = b"".join(file.read_bytes() for file in chunk_files(tmp_path))
    *kept, mark = text.splitlines(keepends=True)
    assert kept == LINES[: len(kept)]
    assert CHUNK_BYTES - 100 < sum(map(len, kept)) <= CHUNK_BYTES
    assert lost == sum(map(len, LINES[len(kept) :]))
    assert mark.endswith(b"stderr F fray: %d bytes of the output are lost here, because the disk was full\n" % lost)


@pytest.mark.parametrize("call", ["open", "write"])
def test_a_disk_that_stays_full_costs_the_rest_of_the_log_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    chunks = LogChunks(str(tmp_path), 1 << 30, lambda number: None)
    monkeypatch.setattr(os, call, full)
    chunks.begin()
    chunks.append([b"line\n"])
    assert chunks.give_up() == 5
    chunks.seal()
    assert (chunks.count, chunks.lacks_room, chunk_files(tmp_path)) == (0, False, [])
