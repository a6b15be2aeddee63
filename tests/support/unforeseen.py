"""Errors that nobody foresaw: a plain function raises for one object, and works for all others."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock


@contextmanager
def raising_for(odd: str, owner: object, function: str) -> Iterator[None]:
    """The function `function` of a module or a class raises KeyError when an argument has the id or name `odd`."""
    real = getattr(owner, function)

    @functools.wraps(real)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        if any(odd in _ids(argument) for argument in (*arguments, *named.values())):
            raise KeyError("unforeseen")
        return real(*arguments, **named)

    with mock.patch.object(owner, function, wrapped):
        yield


def _ids(argument: object) -> set[object]:
    record = getattr(argument, "record", argument)
    named = {getattr(record, "id", None), getattr(record, "name", None)}
    return {argument, *named} if isinstance(argument, str) else named
