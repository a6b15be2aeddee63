"""The actor that runs a directly called pool's tasks on a worker."""

import functools
import inspect
import pickle
import time
from collections.abc import Callable, Mapping
from typing import Any


class TaskRunner:
    """Runs functions one after the other. Its job ends with the pool's driver."""

    def __init__(self) -> None:
        self._large: dict[str, Callable[..., Any]] = {}

    def run(
        self, function: Callable[..., Any] | bytes | str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[float, Any]:
        """Call a function; returns the seconds that it took and its value, of a generator all values."""
        call = self._large[function] if isinstance(function, str) else _loaded(function)
        begin = time.perf_counter()
        value = call(*args, **kwargs)
        if inspect.isgenerator(value):
            value = list(value)
        return time.perf_counter() - begin, value

    def define(self, key: str, pickled: bytes) -> None:
        """Keep a large function that tasks will name by `key`."""
        self._large[key] = pickle.loads(pickled)


def _loaded(function: Callable[..., Any] | bytes) -> Callable[..., Any]:
    return _unpickled(function) if isinstance(function, bytes) else function


@functools.lru_cache(maxsize=64)
def _unpickled(pickled: bytes) -> Callable[..., Any]:
    call: Callable[..., Any] = pickle.loads(pickled)
    return call
