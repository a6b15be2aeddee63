"""What every caller has in hand: a channel to one server, whether it is across a network or in this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from fray_agents.rpc.client.client_calls import (
    STREAM_WINDOW,
    ClientCall,
    ClientStream,
    PendingCall,
    ReplySource,
)
from fray_agents.rpc.server.call_table import NEW_CALL, CallId, Request
from fray_agents.rpc.wire.serialization import Payload, ReferencePayload, pack
from fray_agents.rpc.wire.session import Keyring

Kept = TypeVar("Kept", bound=PendingCall)


class Channel(ABC):
    """Calls to the objects of one server. Usable from any number of threads.

    The argument `call` of its methods asks again for a call that was made before, by another channel.
    """

    closed: bool
    """Whether it is of no use any more: its server is gone, or `close` was called."""
    keyring: Keyring
    """Who has a key of it may use this channel."""

    def call(
        self,
        actor_id: str,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout: float | None = None,
        call: CallId | None = None,
    ) -> Any:
        """Call and wait; see `ClientCall.result` for what it raises."""
        packed = self._pack((args, kwargs))
        pending = self._enter(ClientCall, Request(call or NEW_CALL, actor_id, method, packed), wait=True)
        try:
            return pending.result(timeout)
        finally:
            if not pending.ready:  # the caller goes on, and may change what the call still needs
                pending.request = pending.request._replace(packed=packed.snapshot())

    def start(
        self,
        actor_id: str,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: CallId | None = None,
    ) -> ClientCall:
        """Make a call and do not wait. What `args` hold may be changed afterwards: they have been copied.

        Raises:
            ConnectionLost: the channel is closed.
        """
        packed = self._pack((args, kwargs)).snapshot()
        return self._enter(ClientCall, Request(call or NEW_CALL, actor_id, method, packed))

    def resend(self, request: Request) -> ClientCall:
        """Make a call that was packed before (`calls.packed_call`), or that another channel has lost.

        Raises:
            ConnectionLost: the channel is closed.
            Exception: its arguments cannot be pickled, and the server is not in this process.
        """
        if isinstance(request.packed, ReferencePayload):
            request = request._replace(packed=self._pack(request.packed.value))
        return self._enter(ClientCall, request)

    def stream(
        self,
        actor_id: str,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: CallId | None = None,
    ) -> Iterator[Any]:
        """What a generator yields, as it yields it; it waits when it is `STREAM_WINDOW` items ahead."""
        packed = self._pack((args, kwargs)).snapshot()
        return self._enter(ClientStream, Request(call or NEW_CALL, actor_id, method, packed, 0, STREAM_WINDOW)).items()

    def _pack(self, value: object) -> Payload:
        """Arguments, as they travel."""
        return pack(value)

    @abstractmethod
    def close(self) -> None:
        """Calls that wait for replies fail."""

    @abstractmethod
    def _enter(self, kind: Callable[[ReplySource, Request], Kept], request: Request, wait: bool = False) -> Kept:
        """Send a call.

        Args:
            wait: the caller will wait for it, and now.
        """
