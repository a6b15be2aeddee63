"""What can go wrong between a caller and an object at an address.

Errors of the transport are never raised by a method. An exception that a method raised carries a `RemoteTraceback` as
its cause; one of the transport does not.
"""

from __future__ import annotations

from fray_layouts.errors import Permanent, Temporary


class ConnectionLost(Temporary, ConnectionError):
    """The server cannot be reached, or is another one than before.

    Args:
        reason: what was seen.
        started: whether the call began there; None when nobody can know.
        call: its id, (client, sequence), if it had one.
    """

    def __init__(self, reason: str, started: bool | None = None, call: tuple[str, int] | None = None) -> None:
        super().__init__(reason)
        self.started = started
        self.call = call

    def __reduce__(self) -> tuple[type, tuple[str, bool | None, tuple[str, int] | None]]:
        return type(self), (str(self), self.started, self.call)


class ServerGone(ConnectionLost):
    """Nobody listens there any more, or another server does: the one that was meant has ended."""


class NoSuchActor(Temporary, ConnectionError):
    """The server does not serve that actor (any more): look its address up again. The call did not start."""


class ResultLost(Permanent, RuntimeError):
    """The call ran, but its result was dropped to make room; it is not run again."""


class NotAuthentic(Permanent, ConnectionError):
    """What arrived was not signed with the cluster's key, or not by the server that was meant."""


class BadMessage(Permanent, ConnectionError):
    """The other side does not keep to the protocol."""


class RemoteError(Permanent, RuntimeError):
    """A method's outcome that cannot be told as it was: its exception or result cannot be pickled or unpickled."""


class RemoteTraceback(Exception):
    """The traceback of an exception, as text from the server where it was raised."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"
