"""The time of each step of a small call by itself, and the cost of bare sockets between two processes."""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections.abc import Callable

from msgspec import structs

from fray_rpc import CallId, RpcKey
from fray_rpc.server.call_table import CallTable
from fray_rpc.server.executor import ActorExecutor
from fray_rpc.server.server import public_methods
from fray_rpc.wire.http_connection import MessageParser
from fray_rpc.wire.messages import (
    CallBatch,
    Reply,
    ReplyKind,
    Request,
    decode_calls,
    decode_replies,
    encode_calls,
    encode_replies,
)
from fray_rpc.wire.sealed_connection import SealedConnection
from fray_rpc.wire.serialization import pack, unpack
from fray_rpc.wire.session import SealSequence, Session

CLIENT = "0123456789abcdef.1"


class _Echo:
    def echo(self, value: object) -> object:
        return value


class _Nobody:
    open = True

    def reply(self, reply: Reply) -> None:
        """Drop the reply."""


def steps_us(count: int) -> dict[str, float]:
    """Microseconds of each step, alone in one thread; the mean of `count`."""

    def each(step: Callable[[], object]) -> float:
        step()
        begun = time.perf_counter()
        for _ in range(count):
            step()
        return round((time.perf_counter() - begun) / count * 1e6, 2)

    packed = pack(((1,), {}))
    request = Request(CallId(CLIENT, 1), "plain", "echo", packed)
    calls = encode_calls(CallBatch(CLIENT, 1, True, [request], []))
    replies = encode_replies(CLIENT, [Reply(request.id, ReplyKind.VALUE, packed)])
    return {
        "pickle the arguments": each(lambda: pack(((1,), {}))),
        "unpickle them": each(lambda: unpack(packed)),
        "batch of calls, written": each(lambda: encode_calls(CallBatch(CLIENT, 1, True, [request], []))),
        "batch of calls, read": each(lambda: decode_calls(calls)),
        "batch of replies, written": each(lambda: encode_replies(CLIENT, [Reply(request.id, ReplyKind.VALUE, packed)])),
        "batch of replies, read": each(lambda: decode_replies(CLIENT, replies)),
        "seal of a message": each(_sealer(bytes(len(calls[0])))),
        "httptools, a message": each(_parser(bytes(len(calls[0])))),
        "send and receive a sealed message": each(_exchange(calls)),
        "admit, run, keep the outcome": each(_run(request)),
    }


def _sealer(body: bytes) -> Callable[[], object]:
    seals = SealSequence(bytes(32))
    return lambda: seals.next(body)


def _parser(body: bytes) -> Callable[[], object]:
    framing = MessageParser(requests=True, max_body=10_000)
    message = b"POST /calls HTTP/1.1\r\nhost: actor\r\ncontent-length: %d\r\nfray-seal: %b\r\n\r\n%b"
    whole = message % (len(body), b"0" * 64, body)

    def parse() -> None:
        framing.feed(whole)
        framing.next()

    return parse


def _exchange(parts: list[bytes | bytearray | memoryview]) -> Callable[[], object]:
    ours, theirs = socket.socketpair()
    one, two = (Session.derive(RpcKey("bench", bytes(32)), b"1", b"2", b"3") for _ in range(2))
    client = SealedConnection(ours, requests=False, incoming=one.to_client, outgoing=one.to_server)
    server = SealedConnection(theirs, requests=True, incoming=two.to_server, outgoing=two.to_client)

    def exchange() -> None:
        client.send(parts)
        server.receive()

    return exchange


def _run(request: Request) -> Callable[[], object]:
    table, caller, sequence = CallTable(), _Nobody(), [0]

    def no_loop() -> None:
        raise AssertionError

    echo = _Echo()
    actor = ActorExecutor(echo, public_methods(echo), 1, table, None, no_loop)  # type: ignore[arg-type]

    def run() -> None:
        sequence[0] += 1
        call = structs.replace(request, id=CallId(CLIENT, sequence[0]))
        (record,) = table.admit(CLIENT, sequence[0], [call], caller)
        actor.reserve(1)
        actor.run_reserved([record])

    return run


def floors(count: int) -> dict[str, float]:
    """The cost of bare sockets between two processes on two cores: a round trip, 10 MB over TCP, and sealing 10 MB."""
    seals, array = SealSequence(bytes(32)), bytes(10_000_000)

    def seal() -> None:
        seals.next(b"")
        body = seals.body()
        body.update(array)
        body.digest()

    small, large = socket.socketpair(), _tcp_pair()
    return {
        "echo_us": round(_bare(*small, bytes(100), count) * 1e6, 1),
        "tcp_mb10_per_s": round(10 / _bare(*large, array, max(count // 30, 3))),
        "gmac_mb10_per_s": round(10 / statistics.median(_timed(seal) for _ in range(10))),
    }


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ours, theirs


def _bare(ours: socket.socket, theirs: socket.socket, data: bytes, count: int) -> float:
    """Median seconds to send `data` to a process on another core and get one byte back."""
    cores = sorted(os.sched_getaffinity(0))
    pid = os.fork()
    if not pid:
        ours.close()
        os.sched_setaffinity(0, cores[-1:])
        view = memoryview(bytearray(len(data)))
        while _fill(theirs, view):
            theirs.sendall(b"-")
        os._exit(0)
    theirs.close()
    os.sched_setaffinity(0, cores[:1])

    def once() -> None:
        ours.sendall(data)
        ours.recv(1)

    found = statistics.median(_timed(once) for _ in range(count))
    ours.close()
    os.waitpid(pid, 0)
    os.sched_setaffinity(0, cores)
    return found


def _fill(sock: socket.socket, view: memoryview) -> bool:
    begun = 0
    while begun < len(view):
        if not (count := sock.recv_into(view[begun:])):
            return False
        begun += count
    return True


def _timed(action: Callable[[], object]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun
