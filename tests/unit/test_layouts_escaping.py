"""No control sequence reaches a terminal."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given, strategies as st

from fray_layouts.errors import InvalidInput, Permanent
from fray_layouts.escaping import escaped, escaped_bytes, escaped_json, one_line

OBEYED = [*"\x07\x08\r\x7f\u202e\u2066\u200f\u061c\u2028\ud800", "\x1b[2J", "\x9b31m"]


@pytest.mark.parametrize("text", OBEYED)
def test_terminal_control_characters_are_escaped(text: str) -> None:
    assert escaped(f"a{text}b").isprintable()
    assert escaped(f"a{text}b").startswith("a\\")


def test_ordinary_text_of_any_language_stays() -> None:
    text = "é 漢字 👩‍👩‍👧 עברית\tnext\nline"
    assert escaped(text) == text
    assert one_line("two\nlines") == r"two\nlines"


def test_bytes_that_are_no_text_are_written_out() -> None:
    assert escaped_bytes(b"caf\xe9 \x9b caf\xc3\xa9") == r"caf\xe9 \x9b café"


@given(st.text())
def test_nothing_that_is_left_commands_a_terminal(text: str) -> None:
    left = {unicodedata.category(c) for c in escaped(text) if c not in "\t\n"}
    assert not left & {"Cc", "Cs", "Zl", "Zp"}
    assert not {unicodedata.bidirectional(c) for c in escaped(text)} & {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI"}


@given(st.recursive(st.text() | st.integers(), lambda inner: st.dictionaries(st.text(), inner), max_leaves=5))
def test_escaped_json_says_the_same(data: object) -> None:
    document = escaped_json(json.dumps(data, ensure_ascii=False))
    assert json.loads(document) == data
    document.encode()


def test_errors_quote_others_harmlessly() -> None:
    assert str(Permanent("a job named \x1b]0;title\x07")) == r"a job named \x1b]0;title\x07"
    assert "\u202e" not in str(InvalidInput("field\u202e", "\u202e", "write something else"))
