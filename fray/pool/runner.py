"""What runs tasks on a worker: an actor that is given functions."""

from __future__ import annotations

import functools
import inspect
import pickle
import time
from collections.abc import Callable, Mapping
from typing import Any

from fray.pool.contact import Contact


class TaskRunner:
    """Runs what it is given, one call after the other. It ends itself when its driver has not called for long."""

    def __init__(self) -> None:
        self._large: dict[str, Callable[..., Any]] = {}
        self._contact = Contact()

    def run(
        self, function: Callable[..., Any] | bytes | str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[float, Any]:
        """Seconds that the call took, and what it returned, of a generator all its values. Raises what it raised."""
        with self._contact:
            call = self._large[function] if isinstance(function, str) else _loaded(function)
            begin = time.perf_counter()
            value = call(*args, **kwargs)
            if inspect.isgenerator(value):
                value = list(value)
            return time.perf_counter() - begin, value

    def define(self, key: str, pickled: bytes) -> None:
        """Keep a large function; tasks will name it by `key`."""
        self._large[key] = pickle.loads(pickled)

    def alive(self) -> None:
        """The driver still is there."""
        with self._contact:
            pass


def _loaded(function: Callable[..., Any] | bytes) -> Callable[..., Any]:
    return _unpickled(function) if isinstance(function, bytes) else function


@functools.lru_cache(maxsize=64)
def _unpickled(pickled: bytes) -> Callable[..., Any]:
    call: Callable[..., Any] = pickle.loads(pickled)
    return call
