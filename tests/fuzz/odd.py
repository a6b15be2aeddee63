"""Malformed bytes for a reader: the grammar of malformed objects around a good example, and random bytes."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from tests.support.malformed_objects import odd_body

draws = st.randoms(use_true_random=False)


def nested(depth: int, inner: bytes = b"", opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    """A document that is `depth` levels deep."""
    return opening * depth + inner + closing * depth


def around(example: bytes) -> st.SearchStrategy[bytes]:
    """Malformed bytes similar to the good `example`: as a whole, or only in its first line, if that is a header."""
    head, newline, rest = example.partition(b"\n")
    return st.one_of(
        draws.map(lambda draw: odd_body(draw, example)),
        draws.map(lambda draw: odd_body(draw, head) + newline + rest),
        draws.map(lambda draw: _patched(draw, example)),
        st.binary(max_size=300),
    )


def _patched(draw: random.Random, good: bytes) -> bytes:
    """`good` with a part of it left out, repeated or replaced."""
    begin, end = sorted(draw.randint(0, len(good)) for _ in range(2))
    middle = draw.choice([b"", good[begin:end] * 2, b"\0", b"\xff", b"\n", b'"', b"-1", b"9" * 30, b"\r\n\r\n"])
    return good[:begin] + middle + good[end:]
