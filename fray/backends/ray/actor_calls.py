"""Calls to actors on Ray: their names, their handles, and how results become values and errors.

Ray carries the calls and, if that is allowed, makes them again.

The status of an actor is what its host answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from fray.actor.create import GRACE
from fray.actor.handle import ActorHandle
from fray.backends.ray.connection import NAMESPACE, asked_inside, check_streams, connected, import_ray
from fray.display import ShownTable
from fray.errors import ActorUnavailableError, CallInterrupted
from fray.futures import TaskFuture
from fray.pool.dispatcher import TaskKillsWorkers
from fray.rpc.calling import MethodCaller, RetryPolicy, died_during_call
from fray.rpc.future import ActorFuture, RetryQueue, SentCall, UnsentCall
from fray.types import JobStatus
from fray_layouts.spec_parsing import check_name
from fray_rpc.client.client_calls import STREAM_WINDOW
from fray_rpc.errors import ConnectionLost, RemoteError, RemoteTraceback
from fray_runtime.threads import new_thread, nobody_waits

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


@dataclass(frozen=True)
class RayActorAddress:
    """The address of one actor.

    Attributes:
        root: root of the Ray that it is on.
        ray_name: its name in Ray's namespace for Fray. For an actor that owns its name, it follows from that name.
        name: the name that it was created with.
        policy: which of its calls are made again.
        detached: whether it outlives the program that creates it.
    """

    root: str
    ray_name: str
    name: str
    policy: RetryPolicy
    detached: bool = False

    def __str__(self) -> str:
        return f"actor {self.name!r} ({self.ray_name})"


def exclusive_name(namespace: str, name: str) -> str:
    """Ray's name for the actor that owns a name in a namespace. Raises InvalidInput if the name is not valid."""
    check_name("name", name)
    return f"{namespace}/{name}"


class RayCaller(MethodCaller):
    """Makes the calls of one handle to its actor.

    Args:
        actor: Ray's own handle, if it is known.
    """

    def __init__(self, address: RayActorAddress, actor: Any = None) -> None:
        self.name = address.name
        self.what = str(address)
        self._address = address
        self._actor = actor
        self._queue = RetryQueue(lambda: f"{self.what} is being restarted")
        self._ended: ActorUnavailableError | None = None

    def start(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], policy: RetryPolicy | None = None
    ) -> ActorFuture[Any]:
        policy = policy or self._address.policy
        retries = -1 if method in policy.idempotent else policy.retries

        def send() -> RayCall:
            call = self.actor().call.options(max_task_retries=retries)
            return RayCall(call.remote(method, args, kwargs), self.what)

        def send_again(error: ConnectionError, since: float) -> RayCall:
            value_of(self.control("ready"), self.what)
            return send()

        try:
            sent: SentCall = send()
        except ActorUnavailableError as error:
            sent = UnsentCall(error)
        return ActorFuture(sent, send_again, self._queue)

    def stream(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], policy: RetryPolicy | None = None
    ) -> Generator[Any, None, None]:
        check_streams(method)
        streaming = {"num_returns": "streaming", "_generator_backpressure_num_objects": STREAM_WINDOW}
        items = self.actor().stream.options(**streaming).remote(method, args, kwargs)
        try:
            for item in items:
                yield value_of(item, self.what)
        finally:
            connected(self._address.root).cancel(items)

    def end(self, why: str) -> None:
        """Record that the actor was asked to end: from now on calls of this handle raise ActorUnavailableError."""
        self._ended = self._ended or ActorUnavailableError(f"{self._address} {why}")

    @property
    def actor_id(self) -> str | None:
        """Ray's own id of the actor, if it is known."""
        return None if self._actor is None else str(self._actor._actor_id.hex())

    @property
    def was_ended(self) -> bool:
        """Whether the actor was asked to end through this handle."""
        return self._ended is not None

    def actor(self) -> Any:
        """Ray's handle of the actor's host. Raises ActorUnavailableError if it has ended or was asked to end."""
        if self._ended is not None:
            raise ActorUnavailableError(*self._ended.args)
        return self._found()

    def _found(self) -> Any:
        if self._actor is None:
            try:
                self._actor = connected(self._address.root).get_actor(self._address.ray_name, namespace=NAMESPACE)
            except ValueError:
                raise ActorUnavailableError(f"{self._address} has ended; Ray no longer knows the reason") from None
        return self._actor

    def control(self, method: str) -> Any:
        """Call a method of the actor's host, again after each restart. Returns Ray's object reference of the result.

        Raises ActorUnavailableError if the actor has ended.
        """
        return getattr(self._found(), method).options(max_task_retries=-1).remote()


class RayCall:
    """A call that Ray carries. It is a `SentCall`."""

    def __init__(self, ref: Any, what: str) -> None:
        self._ref = ref
        self._what = what
        self._when_done: Callable[[Any], object] | None = None

    def result(self, timeout: float | None = None) -> Any:
        return value_of(self._ref, self._what, timeout)

    def done(self) -> bool:
        ready, _ = connected().wait([self._ref], timeout=0)
        return bool(ready)

    def exception(self) -> BaseException | None:
        try:
            self.result()
        except BaseException as error:
            return error
        return None

    def add_done_callback(self, function: Callable[[Any], object], /) -> None:
        self._when_done = function

    def hasten(self) -> None:
        when_done, self._when_done = self._when_done, None
        if when_done is not None:
            self._ref.future().add_done_callback(lambda _: when_done(self))


T = TypeVar("T")


class RayActorHandle(ActorHandle[T]):
    """A handle of an actor on Ray. Pickles as its address."""

    def __init__(self, address: RayActorAddress, actor: Any = None) -> None:
        self._address = address
        self._own_caller = RayCaller(address, actor)
        self._probe = ActorProbe(self._own_caller)

    def _caller(self) -> RayCaller:
        return self._own_caller

    def _shut_down(self, why: str) -> None:
        try:
            actor, idle = self._own_caller.actor(), self._own_caller.control("stop")
        except ActorUnavailableError:
            return
        self._own_caller.end(why)
        ray = connected(self._address.root)

        def end() -> None:
            with suppress(Exception, SystemExit):  # Ray raises either if this process disconnects from it meanwhile
                ray.wait([idle], timeout=GRACE)
                ray.kill(actor)

        new_thread(end, "fray-stop", nobody_waits, daemon=not self._address.detached).start()

    def _kill(self, why: str) -> None:
        """End the actor at once, even during calls. Its name is free."""
        with suppress(ActorUnavailableError):
            connected(self._address.root).kill(self._own_caller.actor())
        self._own_caller.end(why)

    def _status(self) -> JobStatus:
        return statuses([self._probe])[0]

    def _identity(self) -> RayActorAddress:
        return self._address

    def __reduce__(self) -> tuple[Any, ...]:
        return RayActorHandle, (self._address,)

    def __repr__(self) -> str:
        return f"ActorHandle({self._address.name!r}, {self._address.ray_name!r})"

    def _shown(self) -> ShownTable:
        return ShownTable.of(f"{self._address}", {"status": self._status().value})


_ANSWERS_WITHIN = 5.0
"""Seconds in which an actor that has answered before must answer again, also on a busy host. If it does not, it counts
as being restarted."""

_STARTS_WITHIN = 0.2
"""Seconds to wait for an actor's first answer. The request stays open, so a later answer is seen at the next check."""

_ENDED_BY_OTHERS = {"OWNER_DIED", "RAY_KILL", "OUT_OF_SCOPE", "REF_DELETED"}
"""Ray's reasons (`ActorDiedErrorContext.Reason`) for the end of an actor that was ended by others and did not fail."""


class ActorProbe:
    """Asks one actor whether it serves calls. The request stays open until it is answered.

    Attributes:
        patience: seconds to wait for the answer.
        ended: the error that says why the actor has ended, once that is known.
    """

    def __init__(self, caller: RayCaller) -> None:
        self.patience = _STARTS_WITHIN
        self.ended: ActorUnavailableError | None = None
        self._caller = caller
        self._asked: Any = None
        self._has_failed: bool | None = None

    def ask(self) -> Any:
        """Ray's object reference of the answer; None if the actor has ended."""
        if self.ended is None and self._asked is None:
            try:
                self._asked = self._caller.control("ready")
            except ActorUnavailableError as error:
                self.ended = error
        return None if self.ended is not None else self._asked

    def status(self) -> JobStatus:
        """The actor's status by the answer, if it has arrived; without an answer PENDING."""
        asked = self.ask()
        if asked is not None:
            try:
                value_of(asked, self._caller.what, timeout=0)
            except TimeoutError:
                return JobStatus.PENDING
            except ActorUnavailableError as error:
                self.ended = error
            else:
                self._asked, self.patience = None, _ANSWERS_WITHIN
                return JobStatus.RUNNING
        if self._has_failed is None:
            self._has_failed = not self._caller.was_ended and asked_inside(_has_failed, self._caller.actor_id)
        return JobStatus.FAILED if self._has_failed else JobStatus.STOPPED


def _has_failed(actor_id: str | None) -> bool:
    """Whether an actor that has ended did fail. If Ray does not know it any more, it was ended by others."""
    known = import_ray()._private.state.actors(actor_id) if actor_id is not None else {}
    if not known:
        return False
    end = known["DeathCause"].actor_died_error_context
    return end.Reason.Name(end.reason) not in _ENDED_BY_OTHERS


def statuses(probes: Sequence[ActorProbe]) -> list[JobStatus]:
    """Ask all actors at once. An actor that is being restarted or does not answer in time is PENDING."""
    for patience in (_ANSWERS_WITHIN, _STARTS_WITHIN):
        asked = [probe.ask() for probe in probes if probe.patience == patience]
        if unanswered := [answer for answer in asked if answer is not None]:
            connected().wait(unanswered, num_returns=len(unanswered), timeout=patience)
    return [probe.status() for probe in probes]
