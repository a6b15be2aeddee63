"""The protocol of Python clients: batches of pickled calls and replies."""

from __future__ import annotations

from fray_agents.rpc.wire.messages import CallBatch, Reply, decode_calls, encode_replies
from fray_agents.rpc.wire.sealed_connection import SealedConnection


class PickleProtocol:
    """The server's end of a sealed connection; see `connection.WireProtocol`."""

    may_reconnect = True

    def __init__(self, connection: SealedConnection) -> None:
        self._connection = connection

    def receive(self) -> CallBatch | None:
        parts = self._connection.receive()
        return None if parts is None else decode_calls(parts)

    def send(self, client: str, replies: list[Reply]) -> None:
        self._connection.send(encode_replies(client, replies))

    def close(self) -> None:
        self._connection.close()

    def abandon(self) -> None:
        self._connection.abandon()
