"""What runs tasks on a worker: an actor that is given functions."""

from __future__ import annotations

import functools
import inspect
import pickle
import time
from collections.abc import Callable, Mapping
from typing import Any


class TaskRunner:
    """Runs what it is given, one call after the other. It ends with whoever made the pool."""

    def __init__(self) -> None:
        self._large: dict[str, Callable[..., Any]] = {}

    def run(
        self, function: Callable[..., Any] | bytes | str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[float, Any]:
        """Seconds that the call took, and what it returned, of a generator all its values. Raises what it raised."""
        call = self._large[function] if isinstance(function, str) else _loaded(function)
        begin = time.perf_counter()
        value = call(*args, **kwargs)
        if inspect.isgenerator(value):
            value = list(value)
        return time.perf_counter() - begin, value

    def define(self, key: str, pickled: bytes) -> None:
        """Keep a large function; tasks will name it by `key`."""
        self._large[key] = pickle.loads(pickled)


def _loaded(function: Callable[..., Any] | bytes) -> Callable[..., Any]:
    return _unpickled(function) if isinstance(function, bytes) else function


@functools.lru_cache(maxsize=64)
def _unpickled(pickled: bytes) -> Callable[..., Any]:
    call: Callable[..., Any] = pickle.loads(pickled)
    return call
