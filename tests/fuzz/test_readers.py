"""Every reader of bytes, fed with odd ones: only its documented error comes out, at a bounded cost per byte.

`make fuzz` draws fresh examples for minutes; the default run draws the same few each time.
"""

from __future__ import annotations

import contextlib
import sys
import tracemalloc
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.fuzz.odd import around, nested
from tests.fuzz.readers import OWN, READERS, Reader

STEPS_PER_BYTE = 20
"""Python calls (of C functions too) that a reader may make for each byte, beyond what it makes for an empty one."""

MEMORY_PER_BYTE = 120
"""Bytes of memory for each byte that is read: a document of nested lists of one element takes most."""

FIXED_MEMORY = 2 * 1024**2
SIZE = 20_000
OWN_SIZE = 5_000

each_reader = pytest.mark.parametrize("reader", [*READERS, *OWN], ids=lambda reader: reader.name)


@each_reader
def test_the_example_is_accepted(reader: Reader) -> None:
    reader.read(reader.example)


@each_reader
@given(data=st.data())
def test_odd_bytes_raise_only_the_documented_error(reader: Reader, data: st.DataObject) -> None:
    odd = data.draw(around(reader.example))
    odd = odd[:OWN_SIZE] if reader in OWN else odd
    with contextlib.suppress(*reader.raises):
        reader.read(odd)


LARGE = {
    "brackets": nested(SIZE // 2),
    "objects": nested(SIZE // 6, b"1", b'{"a":', b"}"),
    "fields": b"{" + b",".join(b'"f%d":1' % n for n in range(SIZE // 10)) + b"}",
    "empty lists": b"[" + b"[]," * (SIZE // 3) + b"[]]",
    "numbers": b"[" + b"1," * (SIZE // 2) + b"1]",
    "text": b'{"name":"' + b"x" * SIZE + b'"}',
    "field's name": b'{"' + b"n" * SIZE + b'":1}',
    "digits": b'{"attempt":' + b"9" * SIZE + b"}",
    "newlines": b"\n" * SIZE,
    "headers": b"POST / HTTP/1.1\r\n" + b"a: b\r\n" * (SIZE // 6),
    "not UTF-8": b"\xff" * SIZE,
}


@pytest.mark.parametrize("shape", LARGE)
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_the_cost_of_a_byte_is_bounded(reader: Reader, shape: str) -> None:
    data = LARGE[shape]
    usual = steps(reader, b"")
    assert steps(reader, data) <= usual + STEPS_PER_BYTE * len(data)
    assert peak_memory(reader, data) <= FIXED_MEMORY + MEMORY_PER_BYTE * len(data)


def steps(reader: Reader, data: bytes) -> int:
    """Calls made while `data` is read: a count, so that it is the same on a busy machine."""
    count = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        attempt(reader, data)
    finally:
        sys.setprofile(None)
    return count


def peak_memory(reader: Reader, data: bytes) -> int:
    """Bytes."""
    tracemalloc.start()
    try:
        attempt(reader, data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def attempt(reader: Reader, data: bytes) -> None:
    with contextlib.suppress(*reader.raises):
        reader.read(data)
