"""The errors of calls.

An exception that a method raised carries a `RemoteTraceback` as its cause; an error of the transport does not. That
tells the two apart, even if the method called another actor and raised an error of these types.
"""

from fray_layouts.errors import Permanent, Temporary


class ConnectionLost(Temporary, ConnectionError):
    """The server cannot be reached, or another one is at its address.

    Args:
        started: whether the call began there; None: not known.
        call: the id of the call, (client, sequence), if it had one.
    """

    def __init__(self, reason: str, started: bool | None = None, call: tuple[str, int] | None = None) -> None:
        super().__init__(reason)
        self.started = started
        self.call = call

    def __reduce__(self) -> tuple[type, tuple[str, bool | None, tuple[str, int] | None]]:
        return type(self), (str(self), self.started, self.call)


class ServerGone(ConnectionLost):
    """Nobody listens at the address any more, or another server does: the wanted server has ended."""


class NoSuchActor(Temporary, ConnectionError):
    """The server does not serve that actor (any more): look it up again. The call did not start."""


class ResultLost(Permanent, RuntimeError):
    """The call ran, but its result was dropped to make room; it is not run again."""


class NotAuthentic(Permanent, ConnectionError):
    """A message was not sealed with the cluster's key, or not by the wanted server."""


class BadMessage(Permanent, ConnectionError):
    """The other side violates the protocol."""


class RemoteError(Permanent, RuntimeError):
    """The exception or result of a method cannot be pickled or unpickled; the message says as much as is known."""


class RemoteTraceback(Exception):
    """The traceback of an exception, as text, from the server where it was raised."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


LOST_ERRORS = (ConnectionLost, NoSuchActor, NotAuthentic)
"""The errors of calls whose actor is not there, or not any more; see `is_lost`."""


def is_lost(error: BaseException | None) -> bool:
    """Whether a call failed because its actor is gone; False if its method raised such an error from another call."""
    return isinstance(error, LOST_ERRORS) and not isinstance(error.__cause__, RemoteTraceback)


def may_have_started(error: ConnectionError) -> bool:
    """Whether a call that ended with `error` may have begun."""
    return isinstance(error, ConnectionLost) and error.started is not False
