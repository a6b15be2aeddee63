"""The real code with one rule switched off: each variant must be caught."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def applied(name: str) -> Iterator[None]:
    yield
