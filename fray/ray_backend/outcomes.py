"""Converts the results of Ray's objects to values, exceptions of user code, and Fray's errors."""

from __future__ import annotations

import re
from concurrent.futures import Future
from typing import Any

from fray.cluster.ray.connection import import_ray
from fray.errors import ActorUnavailableError, CallInterrupted
from fray.futures import TaskFuture
from fray.pool.dispatcher import TaskKillsWorkers
from fray.rpc.calling import died_during_call
from fray_agents.rpc.errors import ConnectionLost, RemoteError, RemoteTraceback

_REFUSED = "The actor is restarting"
"""Part of Ray's error for a call that it did not send because the actor is being restarted."""


def value_of(ref: Any, what: str, timeout: float | None = None) -> Any:
    """Wait for an object, and return its value.

    Args:
        what: the name of the task or actor that makes it, for messages.
        timeout: seconds to wait; None waits for ever.

    Raises:
        TimeoutError: the object is not ready in time; it can be asked for again.
        Exception: what the user's code raised, with the remote traceback as its cause.
        ActorUnavailableError, CallInterrupted, RemoteError: there is no value.
        ConnectionLost: the call was not made, because its actor is being restarted.
    """
    ray = import_ray()
    try:
        return ray.get(ref, timeout=timeout)
    except ray.exceptions.GetTimeoutError:
        late = f"no result of {what} after {round(timeout or 0, 3):g} s"
    except ray.exceptions.RayError as error:
        failure = fray_error(error, what)
        raise failure from failure.__cause__
    raise TimeoutError(late)


def fray_error(error: Exception, what: str) -> BaseException:
    """Convert one of Ray's errors to the exception that the caller sees. Other errors are returned unchanged."""
    errors = import_ray().exceptions
    match error:
        case errors.RayTaskError(cause=cause) if not isinstance(cause, errors.RayError):
            cause.__cause__ = RemoteTraceback(_plain(error))
            return cause  # type: ignore[no-any-return]
        case errors.ActorDiedError():
            return ActorUnavailableError(f"{what} has ended: {_plain(error)}")
        case errors.RayActorError() if _REFUSED in str(error):
            return ConnectionLost(f"{what} is being restarted", started=False)
        case errors.RayActorError():
            return died_during_call(what, "the call")
        case errors.WorkerCrashedError() | errors.OutOfMemoryError():
            return TaskKillsWorkers(f"{what} was given up: each worker that ran it died; it may need more memory")
        case errors.RayTaskError():
            return RemoteError(f"the exception of {what} cannot be pickled: {_plain(error.cause)}")
        case errors.RayError():
            return CallInterrupted(f"the result of {what} was lost: {error}")
    return error


def _plain(error: BaseException) -> str:
    """The text of one of Ray's errors without its terminal colours."""
    return re.sub(r"\x1b\[\d+m", "", str(error))


def future_of(ref: Any, what: str) -> TaskFuture[Any]:
    """A future of an object's value, which Ray completes."""
    future = TaskFuture[Any]()
    future.set_running_or_notify_cancel()

    def settle(done: Future[Any]) -> None:
        error = done.exception()
        if error is None:
            future.set_result(done.result())
        else:
            future.set_exception(fray_error(error, what))  # type: ignore[arg-type]  # Ray raises Exceptions

    ref.future().add_done_callback(settle)
    return future
