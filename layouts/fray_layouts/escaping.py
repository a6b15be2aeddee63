"""Escapes text from other people so that it cannot control the terminal that shows it.

Anybody who may write to the bucket can choose names, messages and output. A terminal obeys some characters: ESC and the
C1 controls begin commands, a carriage return overwrites the text before it, and Unicode's bidirectional controls
display a text in another order than it has (CVE-2021-42574).
"""

import re

_TERMINAL_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Controls except tab and newline, line and paragraph separators, bidirectional controls, lone surrogates."""


def escaped(text: str) -> str:
    r"""`text` with each character that a terminal would obey written as Python writes it (``\x1b``, ``\u202e``)."""
    return _TERMINAL_CONTROLS.sub(_as_python, text)


def escaped_bytes(data: bytes) -> str:
    r"""Decode bytes and escape the text; bytes that are not UTF-8 become ``\xff``."""
    return escaped(data.decode(errors="backslashreplace"))


def one_line(text: str) -> str:
    r"""Like `escaped`, with newlines written as ``\n`` too: for names and cells of tables."""
    return escaped(text).replace("\n", "\\n")


def escaped_json(document: str) -> str:
    """Escape the same characters in a JSON document as JSON does, so that it still has the same meaning."""
    return _TERMINAL_CONTROLS.sub(_as_json, document)


def _as_python(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def _as_json(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
