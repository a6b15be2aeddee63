"""What a method of an actor returns, in processes where Ray or Iris carries calls and replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fray.sync import LoopThread
from fray_agents.rpc.errors import RemoteError


def returned(instance: object, method: str, args: Sequence[Any], kwargs: Mapping[str, Any], loop: LoopThread) -> Any:
    """What the method returns; a coroutine runs in the loop, to its end.

    Raises:
        Exception: what the method raised.
        RemoteError: it raised SystemExit or the like, which is its caller's and ends nobody.
    """
    try:
        value = getattr(instance, method)(*args, **kwargs)
        return loop.run(value) if hasattr(value, "__await__") else value
    except Exception:
        raise
    except BaseException as error:
        raise RemoteError(f"{method}() raised {error!r}") from error


def without_generator(value: Any, remedy: str) -> Any:
    """The value. Raises RemoteError with the remedy: it is a generator, which no reply carries."""
    if hasattr(value, "__next__") or hasattr(value, "__anext__"):
        raise RemoteError(f"it is a generator{remedy}")
    return value
