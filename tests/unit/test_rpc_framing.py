"""The framing and the seals against any bytes: a message is whole and authentic, or it is refused."""

from __future__ import annotations

import socket
import threading

import pytest
from hypothesis import given, strategies as st

from fray_rpc.errors import BadMessage, NotAuthentic
from fray_rpc.wire.buffers import Buffer
from fray_rpc.wire.http_connection import LARGE_BODY, MessageParser
from fray_rpc.wire.sealed_connection import SealedConnection
from fray_rpc.wire.session import RpcKey, Session

KEY = RpcKey("k", bytes(32))

bodies = st.binary(max_size=300)
garbage = st.one_of(
    st.binary(max_size=400),
    st.text(alphabet="POST /HTP1.\r\n:content-lghfuxy0123456789", max_size=400).map(str.encode),
)


def request(body: bytes) -> bytes:
    return b"POST /calls HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\nfray-seal: 00\r\n\r\n%b" % (len(body), body)


def messages(framing: MessageParser) -> list[bytes]:
    found = []
    while (message := framing.next()) is not None:
        found.append(message.body)
    return found


@given(st.lists(bodies, max_size=5), st.data())
def test_messages_are_the_same_however_the_bytes_are_cut(contents: list[bytes], data: st.DataObject) -> None:
    framing = MessageParser(requests=True, max_body=1000)
    rest = b"".join(map(request, contents))
    found = []
    while rest:
        cut = data.draw(st.integers(1, len(rest)))
        framing.feed(rest[:cut])
        rest = rest[cut:]
        found += messages(framing)
    assert found == contents
    assert not framing.begun


@given(st.lists(garbage, max_size=6), st.booleans())
def test_anything_is_a_message_or_refused(pieces: list[bytes], requests: bool) -> None:
    framing = MessageParser(requests, max_body=100)
    try:
        for piece in pieces:
            framing.feed(piece)
    except BadMessage:
        return
    assert all(len(body) <= 100 for body in messages(framing))


@given(bodies, st.integers(0, 200), garbage)
def test_a_damaged_head_is_a_message_or_refused(body: bytes, at: int, damage: bytes) -> None:
    whole = request(body)
    framing = MessageParser(requests=True, max_body=300)
    try:
        framing.feed(whole[:at] + damage + whole[at:])
    except BadMessage:
        return
    assert all(len(found) <= 300 for found in messages(framing))


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 1\r\ncontent-length: 1\r\n",
        b"content-length: 1\r\ncontent-length: 2\r\n",
        b"content-length: 1, 1\r\n",
        b"content-length: -1\r\n",
        b"content-length: 0x1\r\n",
        b"content-length: 1\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\n",
        b"content-length: 1001\r\n",
    ],
)
def test_a_head_that_two_parsers_might_read_differently_is_refused(head: bytes) -> None:
    framing = MessageParser(requests=True, max_body=1000)
    with pytest.raises(BadMessage):
        framing.feed(b"POST /calls HTTP/1.1\r\nhost: x\r\n" + head + b"\r\n1")


def test_a_head_without_end_is_refused() -> None:
    framing = MessageParser(requests=True, max_body=0)
    framing.feed(b"POST / HTTP/1.1\r\n")

    def endless() -> None:
        for _ in range(100):
            framing.feed(b"x-filler: " + b"a" * 5000 + b"\r\n")

    with pytest.raises(BadMessage, match="a head of more than"):
        endless()


def links() -> tuple[SealedConnection, SealedConnection]:
    """Both ends of a connection: the client's and the server's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    sessions = [Session.derive(KEY, b"1", b"2", b"server") for _ in range(2)]
    return (
        SealedConnection(ours, False, sessions[0].to_client, sessions[0].to_server),
        SealedConnection(theirs, True, sessions[1].to_server, sessions[1].to_client),
    )


@given(st.lists(st.lists(st.binary(max_size=2000), min_size=1, max_size=4), min_size=1, max_size=4))
def test_parts_arrive_as_they_were_sent(sent: list[list[bytes]]) -> None:
    client, server = links()
    for parts in sent:
        client.send(parts)
    assert [[bytes(part) for part in server.receive() or []] for _ in sent] == sent
    client.close()
    assert server.receive() is None
    server.close()


@given(st.lists(bodies, min_size=1, max_size=3), st.data())
def test_no_altered_message_is_accepted(parts: list[bytes], data: st.DataObject) -> None:
    client, server = links()
    between, other = socket.socketpair()
    sink, client.sock = client.sock, between  # type: ignore[assignment]
    client.send(parts)
    whole = other.recv(100_000)
    at = data.draw(st.integers(0, len(whole) - 1))
    altered = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    sink.sendall(altered)
    sink.shutdown(socket.SHUT_WR)
    try:
        found = server.receive()
    except (BadMessage, NotAuthentic):
        found = None
    # Parts outside of the seal (the start line, names of other headers) may differ, and change nothing.
    assert found is None or [bytes(part) for part in found] == parts
    for sock in (sink, between, other):
        sock.close()
    server.close()


@pytest.mark.parametrize("at", [0, 5, 100, LARGE_BODY, -17, -1])
def test_no_altered_large_body_is_accepted(at: int) -> None:
    client, server = links()
    client._segment_sender = None
    between, other = socket.socketpair()
    sink, client.sock = client.sock, between  # type: ignore[assignment]
    parts: list[Buffer] = [b"table", bytes(3 * LARGE_BODY)]
    sending = threading.Thread(target=client.send, args=(parts,))
    sending.start()
    whole = other.recv(100_000)
    body = whole.index(b"\r\n\r\n") + 4
    while len(whole) < body + 4 + 2 * 8 + 5 + 3 * LARGE_BODY + 16:
        whole += other.recv(100_000)
    sending.join()
    damaged = bytearray(whole)
    damaged[body + at if at >= 0 else at] ^= 1
    feeding = threading.Thread(target=sink.sendall, args=(damaged,))
    feeding.start()
    with pytest.raises((BadMessage, NotAuthentic)):
        server.receive()
    server.close()
    feeding.join()
    for sock in (sink, between, other):
        sock.close()


def test_a_seal_is_of_one_position_direction_connection_and_server() -> None:
    same, other = (Session.derive(KEY, b"1", b"2", b"server") for _ in range(2))
    first = same.to_server.next(b"body")
    assert other.to_server.next(b"body") == first
    seals = {
        first,
        same.to_server.next(b"body"),
        same.to_client.next(b"body"),
        same.to_server.proof(),
        Session.derive(KEY, b"3", b"2", b"server").to_server.next(b"body"),
        Session.derive(KEY, b"1", b"4", b"server").to_server.next(b"body"),
        Session.derive(KEY, b"1", b"2", b"restarted").to_server.next(b"body"),
        Session.derive(KEY, b"12", b"", b"server").to_server.next(b"body"),
        Session.derive(RpcKey("k", bytes(31) + b"1"), b"1", b"2", b"server").to_server.next(b"body"),
    }
    assert len(seals) == 9
