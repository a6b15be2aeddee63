"""A channel to one server: the same interface whether the server is across a network or in this process."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from msgspec import structs

from fray_agents.rpc.client.client_calls import STREAM_WINDOW, ClientCall, ClientStream, PendingCall, ReplySource
from fray_agents.rpc.wire.messages import NEW_CALL, Request
from fray_agents.rpc.wire.serialization import Payload, ReferencePayload, pack, unpicklable_arguments
from fray_agents.rpc.wire.session import Keyring

Kept = TypeVar("Kept", bound=PendingCall)


class Channel(ABC):
    """Makes calls to the objects of one server; any number of threads may use it.

    Attributes:
        closed: no more calls can be made: the server is gone, or `close` was called.
        keyring: a caller needs a key of it to use this channel.
    """

    closed: bool
    keyring: Keyring

    def call(
        self, actor_id: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], timeout: float | None = None
    ) -> Any:
        """Call and wait.

        Args:
            timeout: seconds to wait; None: for ever.

        Raises:
            ConnectionLost: the channel is closed.
            InvalidInput: an argument cannot be pickled.
            Exception: any error of `ClientCall.result`.
        """
        payload = self._pack_arguments(method, args, kwargs)
        pending = self._enter(ClientCall, Request(NEW_CALL, actor_id, method, payload), wait=True)
        try:
            return pending.result(timeout)
        finally:
            if not pending.ready:  # the caller goes on, and may change values that the call still needs
                pending.request.payload = payload.snapshot()

    def start(self, actor_id: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ClientCall:
        """Make a call without waiting. The arguments are copied, so they may change afterwards.

        Raises:
            ConnectionLost: the channel is closed.
            InvalidInput: an argument cannot be pickled.
        """
        payload = self._pack_arguments(method, args, kwargs).snapshot()
        return self._enter(ClientCall, Request(NEW_CALL, actor_id, method, payload))

    def resend(self, request: Request) -> ClientCall:
        """Make a call that was packed before (`messages.packed_call`), or that was lost with another channel.

        Raises:
            ConnectionLost: the channel is closed.
            Exception: the arguments cannot be pickled, and the server is not in this process.
        """
        if isinstance(request.payload, ReferencePayload):
            request = structs.replace(request, payload=self._pack(request.payload.value))
        return self._enter(ClientCall, request)

    def stream(self, actor_id: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
        """The items of a generator as it yields them; the generator pauses when it is `STREAM_WINDOW` items ahead."""
        payload = self._pack_arguments(method, args, kwargs).snapshot()
        return self._enter(ClientStream, Request(NEW_CALL, actor_id, method, payload, 0, STREAM_WINDOW)).items()

    def _pack_arguments(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Payload:
        try:
            return self._pack((args, kwargs))
        except Exception as error:  # pickling may run any code of the user
            raise unpicklable_arguments(method, args, kwargs, error) from error

    def _pack(self, value: object) -> Payload:
        return pack(value)

    @abstractmethod
    def close(self) -> None:
        """Close the channel; calls that wait for replies fail."""

    @abstractmethod
    def _enter(self, kind: Callable[[ReplySource, Request], Kept], request: Request, wait: bool = False) -> Kept:
        """Send a call. wait: the caller waits for the reply at once."""
