"""Bytes that no program of ours wrote: good examples that were damaged, and documents that are odd from the start."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from hypothesis import strategies as st

NUMBERS = [0, -1, 1, 2**31, 2**53, 2**63, 2**64, 10**30, -(10**30), 1e306, -1e306, 1e-320, 0.1]
TEXTS = [
    "",
    "\0",
    "\n",
    "../..",
    "a/b",
    "~",
    "x" * 5000,
    "\x1b[2J",
    "\u202e",
    "é" * 100,
    "2GB",
    "1e306",
    "null",
    "%s",
    "-",
]
LITERALS = [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"1" * 5000, b"-0", b'"\\ud800"', b'"\xff"', b"[", b"{}{}"]

scalars = (
    st.sampled_from([None, True, False, *NUMBERS, *TEXTS]) | st.integers() | st.floats(allow_nan=False) | st.text()
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)


def nested(depth: int, inner: bytes = b"", opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    """A document that is `depth` levels deep."""
    return opening * depth + inner + closing * depth


deep = st.builds(
    lambda depth, pair: nested(depth, b"1", *pair),
    st.sampled_from([10, 90, 110, 900, 1100, 3000]),
    st.sampled_from([(b"[", b"]"), (b'{"a":', b"}")]),
)


@st.composite
def documents(draw: st.DrawFn, good: Any) -> bytes:
    """JSON of `good` in which something, at any depth, is missing, added, or another value."""
    paths = list(_paths(good))
    marker = "\ue000odd\ue001"
    document = json.loads(json.dumps(good))
    parent, key = draw(st.sampled_from(paths)) if paths else ((), None)
    here = document
    for step in parent:
        here = here[step]
    what = draw(st.sampled_from(["drop", "add", "value", "literal", "deep"]))
    if key is None or what == "add":
        if not isinstance(here, dict):
            return json.dumps(draw(values)).encode()
        here[draw(st.text(max_size=6))] = marker
    elif what == "drop":
        del here[key]
    else:
        here[key] = marker
    odd = {"literal": st.sampled_from(LITERALS), "deep": deep}.get(what, values.map(lambda v: json.dumps(v).encode()))
    return (
        json.dumps(document, ensure_ascii=False)
        .encode()
        .replace(json.dumps(marker, ensure_ascii=False).encode(), draw(odd))
    )


def _paths(value: Any, before: tuple[Any, ...] = ()) -> Any:
    """(path of the container, key) of everything inside `value`."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        yield before, key
        yield from _paths(part, (*before, key))


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """`good` cut off, with some bytes changed, repeated or left out, or behind other bytes."""
    if not good:
        return draw(st.binary(max_size=50))
    begin = draw(st.integers(0, len(good)))
    end = draw(st.integers(begin, len(good)))
    middle = draw(
        st.sampled_from([b"", good[begin:end] * 2, b"\0", b"\xff", b"\n", b'"', b"-1", b"9" * 30, b"\r\n\r\n"])
        | st.binary(max_size=20)
    )
    return draw(st.sampled_from([good[:begin] + middle + good[end:], good[:begin], middle + good, good + middle]))


def around(example: bytes) -> st.SearchStrategy[bytes]:
    """Odd bytes like the good `example`, of every kind that suits it."""
    kinds = [damaged(example), st.binary(max_size=200), deep, values.map(lambda value: json.dumps(value).encode())]
    try:
        kinds.append(documents(json.loads(example)))
    except ValueError:
        head, newline, rest = example.partition(b"\n")
        with contextlib.suppress(ValueError):
            kinds.append(documents(json.loads(head)).map(lambda line: line + newline + rest))
    return st.one_of(kinds)
