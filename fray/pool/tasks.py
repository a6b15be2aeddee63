"""Tasks of a worker pool: a function and its arguments, pickled, and the future that the caller holds."""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from fray.errors import InvalidInput

LARGE_FUNCTION = 64 * 1024
"""Bytes from which on a pickled function travels once to each worker, not with every task."""


@dataclass(frozen=True, slots=True)
class Function:
    """A pickled function. `key` tells equal ones apart from others; "" for one that travels with its tasks."""

    key: str
    pickled: bytes


@dataclass(slots=True, eq=False)
class Task:
    """One call. deaths: workers that died while it ran."""

    function: Function
    arguments: bytes
    future: Future[Any] = field(default_factory=Future)
    deaths: int = 0


def function_of(call: Callable[..., Any]) -> Function:
    """`call`, pickled as it is now.

    Raises:
        InvalidInput: it cannot be pickled.
    """
    pickled = _by_name(call) or _dumps("fn", call)
    key = hashlib.blake2b(pickled, digest_size=16).hexdigest() if len(pickled) > LARGE_FUNCTION else ""
    return Function(key, pickled)


def arguments_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """Arguments, pickled. Raises InvalidInput for those that cannot be."""
    try:
        return pickle.dumps((args, kwargs), protocol=5)
    except Exception:  # what pickle cannot, cloudpickle often can
        return _dumps("args", (args, kwargs))


def _by_name(call: Callable[..., Any]) -> bytes | None:
    """The quick way for what a worker can import under the same name."""
    module = getattr(call, "__module__", None)
    if (
        module in (None, "__main__")
        or getattr(sys.modules.get(module), getattr(call, "__qualname__", ""), None) is not call
    ):
        return None
    return pickle.dumps(call, protocol=5)


def _dumps(field_name: str, value: object) -> bytes:
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(value, protocol=5)
    except Exception as error:  # pickling runs the users' own __reduce__, which may raise anything
        remedy = f"it cannot be pickled ({error}); make it inside the task instead"
        raise InvalidInput(field_name, value, remedy) from error
    return data
