"""The process of an actor on Ray: it holds the user's object and runs the calls."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from fray.actor.create import GRACE
from fray.actor.returned import returned, without_generator
from fray.actor.running_actor import CurrentActor, set_current_actor
from fray.backends.ray.actor_calls import RayActorAddress, RayActorHandle
from fray.backends.ray.connection import import_ray
from fray.sync import LoopThread
from fray_runtime.threads import end_process, start_thread

_IDLE_GRACE = GRACE - 2.0
"""Seconds of the grace period for running calls. The rest is for their replies and the exit of the process."""

_FLUSH = 1.0
"""Seconds to wait for the last call's reply, which Ray sends after the call has returned. It takes far less."""

F = TypeVar("F", bound=Callable[..., Any])

CONTROL = "control"
"""The concurrency group of the host's own methods, so that running calls do not block them."""

_control: Callable[[F], F] = import_ray().method(concurrency_group=CONTROL)


class ActorHost:
    """A Ray actor that runs the methods of the user's object.

    Args:
        address: the address of this actor.
        index: the actor's number in its group.
        secrets: variables of the process that Ray must not show.
        cls, args, kwargs: the class of the user's object and its arguments. If the constructor raises, the actor ends.
    """

    def __init__(
        self,
        address: RayActorAddress,
        index: int,
        secrets: Mapping[str, str],
        cls: type,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> None:
        os.environ.update(secrets)
        self._address = address
        self._current = CurrentActor(RayActorHandle(address), index, address.name)
        self._loop = LoopThread()
        self._state = threading.Condition()
        self._running = 0
        set_current_actor(self._current, owns_process=True)
        self._instance = cls(*args, **kwargs)
        start_thread(self._end_when_asked, "fray-stop", end_process)

    def call(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a call. Ray passes on to the caller what the method raises."""
        value = self._run(method, args, kwargs)
        return without_generator(value, "; call the method as a stream, or have it return a list")

    def stream(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
        """Run a call of a generator. Ray passes its items on to the caller as they come."""
        items = self._run(method, args, kwargs)
        try:
            for item in self._drained(items) if hasattr(items, "__anext__") else items:  # noqa: UP028 - Ray sends values
                yield item
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()

    @_control
    def ready(self) -> bool:
        """Return True. Ray answers this call as soon as `__init__` has returned."""
        return True

    @_control
    def address(self) -> RayActorAddress:
        """The actor's address, for programs that have only its name."""
        return self._address

    @_control
    def stop(self) -> None:
        """Tell the actor's code to end. Returns when all calls are answered or the grace period is over."""
        self._current.shutdown_event.set()
        self._wait_until_answered()

    def _run(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        with self._state:
            self._running += 1
        try:
            return returned(self._instance, method, args, kwargs, self._loop)
        finally:
            with self._state:
                self._running -= 1
                self._state.notify_all()

    def _drained(self, items: Any) -> Iterator[Any]:
        while True:
            try:
                yield self._loop.run(anext(items))
            except StopAsyncIteration:
                return

    def _end_when_asked(self) -> None:
        """End the process once the `shutdown_event` is set. Running calls have the grace period."""
        self._current.shutdown_event.wait()
        self._wait_until_answered()
        RayActorHandle[Any](self._address)._kill("has ended itself")

    def _wait_until_answered(self) -> None:
        with self._state:
            self._state.wait_for(lambda: not self._running, _IDLE_GRACE)
        time.sleep(_FLUSH)
