"""The current actor: what an actor's own code can ask about it, in `__init__`, in calls and in threads they start."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fray.actor.handle import ActorHandle

_current: ContextVar[CurrentActor | None] = ContextVar("fray_current_actor", default=None)
_of_process: CurrentActor | None = None


class CurrentActor:
    """The actor that this code belongs to.

    Attributes:
        handle: the actor's own handle; calls through it wait until the actor serves calls.
        index: the actor's number in its group, from 0.
        group_name: the name of the group that it was created in; its own name if it was created alone.
        shutdown_event: set when the actor is asked to end; running calls then have the job's grace period.
        failure: the error that the actor ends with, if it failed.
    """

    def __init__(self, handle: ActorHandle[Any], index: int, group_name: str) -> None:
        self.handle = handle
        self.index = index
        self.group_name = group_name
        self.shutdown_event = threading.Event()
        self.failure: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """End the actor: running calls have the grace period, then the actor's job fails with `error`."""
        self.failure = self.failure or error
        self.shutdown_event.set()


ActorContext = CurrentActor


def current_actor() -> CurrentActor:
    """The actor that this code runs in. Works in `__init__`, in calls, and in all threads of an actor's own process.

    Raises:
        RuntimeError: this code does not run in an actor.
    """
    actor = _found()
    if actor is None:
        raise RuntimeError("current_actor() was called outside of an actor; only its __init__ and its methods have one")
    return actor


def in_actor() -> bool:
    return _found() is not None


def _found() -> CurrentActor | None:
    return _current.get() or _of_process


def set_current_actor(actor: CurrentActor, owns_process: bool) -> None:
    """Make `actor` the current one of this thread, and with `owns_process` of all threads of the process."""
    global _of_process
    _current.set(actor)
    if owns_process:
        _of_process = actor
