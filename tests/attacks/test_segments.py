"""Shared memory from a caller who does not keep to the protocol harms his own connection only."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fray_agents.rpc import BadMessage, ConnectionLost, connect
from fray_agents.rpc.client.connect import open_connection
from fray_agents.rpc.client.remote_channel import RemoteChannel
from fray_agents.rpc.wire import shared_memory
from fray_agents.rpc.wire.shared_memory import (
    MAX_SHARED_BYTES,
    REQUIRED_SEALS,
    SegmentReceiver,
    SegmentSender,
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


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


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
def test_what_could_change_its_size_is_refused_and_let_go_of(odd: str) -> None:
    made, before = ODD[odd](), descriptors()
    with pytest.raises(BadMessage):
        SegmentReceiver().add([made, os.dup(made), os.dup(made)])
    assert descriptors() == before - 1


def test_no_more_segments_are_mapped_than_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "MAX_SHARED_BYTES", 4 * SIZE)
    receiver = SegmentReceiver()
    for _ in range(4):
        receiver.add([segment(REQUIRED_SEALS)])
    with pytest.raises(BadMessage, match="bytes"):
        receiver.add([segment(REQUIRED_SEALS)])


def test_a_segment_that_was_sent_never_shrinks() -> None:
    sender = SegmentSender()
    assert sender.send(bytes(500_000)) is not None
    (descriptor,) = sender.new_descriptors()
    for size in (0, 2**30):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, size)
    os.close(descriptor)


class Shrinking(SegmentSender):
    """Its segments are no longer there when the receiver looks into them a second time."""

    def _make(self, size: int) -> int | None:
        descriptor = os.memfd_create("shrinking")
        os.ftruncate(descriptor, SIZE)
        self._segments.append(mmap.mmap(descriptor, SIZE))
        self._new.append(os.dup(descriptor))
        self._descriptor = descriptor
        return len(self._segments) - 1

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
