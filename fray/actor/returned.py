"""Runs an actor's method in processes where Ray or Iris carries calls and replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fray.sync import LoopThread
from fray_rpc.errors import RemoteError


def returned(instance: object, method: str, args: Sequence[Any], kwargs: Mapping[str, Any], loop: LoopThread) -> Any:
    """Call the method and return its value. A coroutine is run in the loop until it ends.

    Raises:
        Exception: what the method raised.
        RemoteError: the method raised SystemExit or another BaseException; that fails the call but not the process.
    """
    try:
        value = getattr(instance, method)(*args, **kwargs)
        return loop.run(value) if hasattr(value, "__await__") else value
    except Exception:
        raise
    except BaseException as error:
        raise RemoteError(f"{method}() raised {error!r}") from error


def without_generator(value: Any, remedy: str) -> Any:
    """Return the value. Raises RemoteError with the remedy if it is a generator, since replies cannot carry one."""
    if hasattr(value, "__next__") or hasattr(value, "__anext__"):
        raise RemoteError(f"it is a generator{remedy}")
    return value
