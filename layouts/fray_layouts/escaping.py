"""Text from other people, made harmless for the terminal that shows it.

Names, messages and output come from whoever may write to the bucket. A terminal obeys some of their characters: ESC and
the C1 controls begin commands, a carriage return hides what stands before it, and the bidirectional controls of Unicode
show a text in another order than it has (CVE-2021-42574).
"""

import re

_TERMINAL_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters but tab and newline, line and paragraph separators, bidirectional controls, lone surrogates."""


def escaped(text: str) -> str:
    r"""`text` with each character that a terminal would obey written as Python writes it (``\x1b``, ``\u202e``)."""
    return _TERMINAL_CONTROLS.sub(_as_python, text)


def escaped_bytes(data: bytes) -> str:
    r"""Bytes as text that is `escaped`; what is not UTF-8 as ``\xff``."""
    return escaped(data.decode(errors="backslashreplace"))


def one_line(text: str) -> str:
    r"""`escaped`, with newlines written as ``\n``: for names and cells of tables."""
    return escaped(text).replace("\n", "\\n")


def escaped_json(document: str) -> str:
    """A JSON document with the same characters written as JSON writes them, so that it still says the same."""
    return _TERMINAL_CONTROLS.sub(_as_json, document)


def _as_python(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def _as_json(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
