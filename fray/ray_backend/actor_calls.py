"""Calls to an actor on Ray. Ray carries them and, if that is allowed, makes them again."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from fray.cluster.ray.connection import NAMESPACE, check_streams, connected
from fray.errors import ActorUnavailableError
from fray.ray_backend.actor_address import RayActorAddress
from fray.ray_backend.outcomes import value_of
from fray.rpc.calling import MethodCaller, RetryPolicy
from fray.rpc.future import ActorFuture, RetryQueue, SentCall, UnsentCall
from fray_agents.rpc.client.client_calls import STREAM_WINDOW


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
