"""A caller that breaks the protocol of shared memory harms only its own connection."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from fray_rpc import BadMessage, ConnectionLost, connect
from fray_rpc.client.connect import open_connection
from fray_rpc.client.remote_channel import RemoteChannel
from fray_rpc.wire import shared_memory
from fray_rpc.wire.buffers import OwnedDescriptor
from fray_rpc.wire.shared_memory import (
    MAX_SHARED_BYTES,
    PIECE_BYTES,
    REQUIRED_SEALS,
    SegmentReceiver,
    SegmentSender,
    _SentSegment,
)
from tests.support.rpc import Keys, serving

SIZE = 2**20
ARRAY = np.arange(40_000.0)


def segment(seals: int, size: int = SIZE) -> int:
    descriptor = os.memfd_create("odd", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def file() -> int:
    with tempfile.TemporaryFile() as opened:
        opened.truncate(SIZE)
        return os.dup(opened.fileno())


def pipe() -> int:
    reader, writer = os.pipe()
    os.close(writer)
    return reader


def files(descriptors: Iterable[int]) -> set[tuple[int, int]]:
    """Device and inode of each open descriptor; closed ones are left out. Event counters all look the same."""
    found = set()
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            status = os.fstat(descriptor)
            found.add((status.st_dev, status.st_ino))
    return found


def open_files() -> set[tuple[int, int]]:
    return files(map(int, os.listdir("/proc/self/fd")))


ODD: dict[str, Callable[[], int]] = {
    "no seals": lambda: segment(0),
    "may shrink": lambda: segment(fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL),
    "may not be written": lambda: segment(REQUIRED_SEALS | fcntl.F_SEAL_WRITE),
    "a file": file,
    "a pipe": pipe,
    "empty": lambda: segment(REQUIRED_SEALS, 0),
    "too short": lambda: segment(REQUIRED_SEALS, 63),
    "too large": lambda: segment(REQUIRED_SEALS, MAX_SHARED_BYTES + SIZE),
    "sparse and huge": lambda: segment(REQUIRED_SEALS, 2**50),
}


@pytest.mark.parametrize("odd", ODD)
def test_a_file_that_could_change_its_size_is_refused_and_closed(odd: str) -> None:
    made = ODD[odd]()
    given = [made, pipe(), os.dup(made), pipe()]
    known = files(given)
    with pytest.raises(BadMessage):
        SegmentReceiver(-1).add(given)
    assert not known & open_files()


def test_a_segment_without_a_counter_of_its_pieces_is_refused_and_let_go_of() -> None:
    given = [segment(REQUIRED_SEALS), pipe(), segment(REQUIRED_SEALS)]
    known = files(given)
    with pytest.raises(BadMessage):
        SegmentReceiver(-1).add(given)
    assert not known & open_files()


@pytest.fixture
def pair() -> Iterator[tuple[SegmentSender, SegmentReceiver, socket.socket]]:
    """Both ends of a connection, and the sender's socket."""
    near, far = socket.socketpair()
    with near, far:
        yield SegmentSender(), SegmentReceiver(far.fileno()), near


LARGE = bytes(range(256)) * (3 * PIECE_BYTES // 256) + b"the rest"


def test_a_buffer_arrives_piece_by_piece(pair: tuple[SegmentSender, SegmentReceiver, socket.socket]) -> None:
    sender, receiver, _ = pair
    for _ in range(4):
        reference = sender.send(LARGE)
        assert reference is not None
        receiver.add(sender.new_descriptors())
        with ThreadPoolExecutor(1) as beside:
            taken = beside.submit(receiver.take, reference)
            assert not taken.done()
            sender.finish()
            assert bytes(taken.result()) == LARGE
        del taken
    assert len(sender._segments) == 2, "in turns: one is returned when the next buffer arrives"


def test_a_sender_that_leaves_within_a_buffer_delays_nobody(
    pair: tuple[SegmentSender, SegmentReceiver, socket.socket],
) -> None:
    sender, receiver, near = pair
    reference = sender.send(LARGE)
    assert reference is not None
    receiver.add(sender.new_descriptors())
    near.close()
    with pytest.raises(ConnectionResetError):
        receiver.take(reference)


def test_a_sender_that_stops_within_a_buffer_is_disconnected(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[SegmentSender, SegmentReceiver, socket.socket]
) -> None:
    monkeypatch.setattr(shared_memory, "STALL_TIMEOUT", 0.05)
    sender, receiver, _ = pair
    reference = sender.send(LARGE)
    assert reference is not None
    receiver.add(sender.new_descriptors())
    with pytest.raises(BadMessage, match="did not continue"):
        receiver.take(reference)


def test_a_segment_that_is_used_again_before_its_return_ends_the_connection(
    pair: tuple[SegmentSender, SegmentReceiver, socket.socket],
) -> None:
    sender, receiver, _ = pair
    reference = sender.send(bytes(SIZE))
    assert reference is not None
    receiver.add(sender.new_descriptors())
    used = receiver.take(reference)
    with pytest.raises(BadMessage, match="not returned"):
        receiver.take(reference)
    assert used == bytes(SIZE)


@pytest.mark.parametrize("odd", [lambda: os.open("/dev/null", os.O_RDONLY), pipe, lambda: segment(0, 4)])
def test_a_counter_that_is_none_ends_the_connection(
    odd: Callable[[], int], pair: tuple[SegmentSender, SegmentReceiver, socket.socket]
) -> None:
    _, receiver, _ = pair
    receiver.add([segment(REQUIRED_SEALS, 4 * PIECE_BYTES), odd()])
    with pytest.raises(BadMessage, match="cannot be counted"):
        receiver.take((0).to_bytes(4, "little") + (3 * PIECE_BYTES).to_bytes(8, "little"))


def test_no_more_segments_are_mapped_than_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "MAX_SHARED_BYTES", 4 * SIZE)
    receiver = SegmentReceiver(-1)
    for _ in range(4):
        receiver.add([segment(REQUIRED_SEALS), os.eventfd(0)])
    with pytest.raises(BadMessage, match="bytes"):
        receiver.add([segment(REQUIRED_SEALS), os.eventfd(0)])


def test_a_segment_that_was_sent_never_shrinks() -> None:
    sender = SegmentSender()
    assert sender.send(bytes(500_000)) is not None
    descriptor, pieces = sender.new_descriptors()
    for size in (0, 2**30):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, size)
    os.close(descriptor)
    os.close(pieces)


class Shrinking(SegmentSender):
    """Its segments are gone when the receiver looks into them a second time."""

    def _make(self, size: int) -> int | None:
        descriptor = os.memfd_create("shrinking")
        os.ftruncate(descriptor, SIZE)
        pieces = OwnedDescriptor(os.eventfd(0))
        self._segments[0] = _SentSegment(mmap.mmap(descriptor, SIZE), pieces, 0.0)
        self._new += [os.dup(descriptor), os.dup(pieces.number)]
        self._descriptor = descriptor
        return 0

    def send(self, buffer: bytes | bytearray | memoryview) -> bytes | None:
        if not self._segments:
            return super().send(buffer)
        os.ftruncate(self._descriptor, 0)
        return (0).to_bytes(4, "little") + len(buffer).to_bytes(8, "little")


def test_a_segment_that_shrinks_does_not_end_the_server(tmp_path: Path) -> None:
    with serving(unix_dir=tmp_path) as target:
        link, _ = open_connection(target, Keys())
        link._segment_sender = Shrinking()
        channel = RemoteChannel(target, Keys(), "odd", link, lambda channel: None)
        for _ in range(2):
            with contextlib.suppress(ConnectionLost):
                channel.call("subject", "keep", (ARRAY,), {})
        channel.close()
        assert connect(target, Keys()).call("subject", "keep", (ARRAY,), {}) == ARRAY.sum()
