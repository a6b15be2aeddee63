"""What a file of vectors is, and the values that its cases are made of."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from fray_layouts import codec

NOW = 1_767_225_600.0
"""2026-01-01T00:00:00Z, on the storage's clock."""


@dataclass(frozen=True)
class File:
    """One file of vectors.

    Attributes:
        about: what the inputs and the expected values are.
        cases: by name: (input, expected).
    """

    about: str
    cases: Mapping[str, tuple[Any, Any]]

    def content(self) -> bytes:
        """As it is checked in."""
        cases = [{"case": name, "input": given, "expected": expected} for name, (given, expected) in self.cases.items()]
        return json.dumps({"about": self.about, "cases": cases}, indent=1, ensure_ascii=False).encode() + b"\n"


def plain(record: msgspec.Struct | None) -> Any:
    """A record as JSON holds it: what has its default is left out."""
    return None if record is None else json.loads(codec.encode(record))


def base64_of(data: bytes) -> str:
    """Bytes as JSON can hold them."""
    return base64.b64encode(data).decode()
