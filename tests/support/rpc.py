"""Support for tests of actor calls: keys, a server in a process of its own, and the object that it serves."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import secrets
import signal
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from fray_rpc import (
    Channel,
    Keyring,
    RpcKey,
    RpcServer,
    Target,
)
from fray_rpc.client.connect import open_connection
from fray_rpc.client.remote_channel import RemoteChannel
from fray_runtime.directories import private_dir

KEY = RpcKey("k1", b"0123456789abcdef0123456789abcdef")


class Keys:
    """A keyring whose keys a test may change."""

    def __init__(self, *keys: RpcKey, encrypted: bool = False) -> None:
        self.encrypted = encrypted
        self.current = list(keys or (KEY,))
        self.served = list(self.current)
        self.readings = 0

    def keys(self, fresh: bool = False) -> list[RpcKey]:
        if fresh:
            self.readings += 1
            self.served = list(self.current)
        return self.served


class Unpicklable(Exception):
    """Cannot be pickled: it holds a lock."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class TwoArguments(Exception):
    """Pickles, but cannot be unpickled."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


class Subject:
    """The actor that the tests call."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.gate = threading.Event()
        self.array: Any = None
        self.now = 0
        self.met = 0
        self.closed = 0
        self.entered = False
        self.meeting = threading.Condition()
        self.together_met = asyncio.Event()
        self.too_many = asyncio.Event()

    def echo(self, value: Any) -> Any:
        return value

    def note(self, value: Any) -> Any:
        self.log.append(value)
        return value

    def notes(self) -> list[Any]:
        return self.log

    def sleep(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def wait(self) -> bool:
        """Wait until `open` is called; needs max_concurrency above 1."""
        self.entered = True
        return self.gate.wait(200)

    def open(self) -> None:
        self.gate.set()

    def shut(self) -> None:
        self.gate.clear()
        self.entered = False

    def has_entered(self) -> bool:
        """Whether `wait` has been called."""
        return self.entered

    def note_slowly(self, value: Any) -> Any:
        """Note a text once `open` was called."""
        self.entered = True
        self.gate.wait(200)
        return self.note(value)

    def meet(self, number: int) -> bool:
        """Return once `count` calls are in here at the same time."""
        with self.meeting:
            self.met += 1
            self.meeting.notify_all()
            return self.meeting.wait_for(lambda: self.met >= number, 200)

    def fail(self, kind: str) -> None:
        errors = {"key": KeyError("absent"), "lock": Unpicklable("held"), "two": TwoArguments("one", "two")}
        if kind == "exit":
            raise SystemExit(3)
        raise errors[kind]

    def keep(self, array: Any) -> float:
        """Keep the array; return its sum."""
        self.array = array
        return float(array.sum())

    def kept(self) -> float:
        return float(self.array.sum())

    def kept_array(self) -> Any:
        return self.array

    def generator(self) -> Iterator[int]:
        return iter(range(3))

    def count(self, end: int) -> Iterator[int]:
        try:
            for number in range(end):
                self.log.append(number)
                yield number
        finally:
            self.closed += 1

    def count_and_fail(self, end: int) -> Iterator[int]:
        yield from range(end)
        raise KeyError("at the end")

    def raise_when_closed(self, kind: str) -> Iterator[int]:
        """A stream whose cleanup fails: it raises, or yields again."""
        try:
            while True:
                yield 1
        finally:
            if kind == "yield":
                yield 2
            raise {"exit": SystemExit(3), "error": OSError("cleanup failed"), "yield": OSError("late")}[kind]

    async def araise_when_closed(self) -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            raise OSError("cleanup failed")

    async def acount(self, end: int) -> AsyncIterator[int]:
        for number in range(end):
            await asyncio.sleep(0)
            yield number

    async def together(self, number: int) -> int:
        """How many of these calls ran when this one began. They wait until there are `number` and `open` was called."""
        self.now += 1
        present = self.now
        if present > number:
            self.too_many.set()
        elif present == number:
            self.together_met.set()
        await self.together_met.wait()
        await asyncio.to_thread(self.gate.wait, 200)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.too_many.wait(), 0.1)  # a call that must not run yet would be noticed here
        self.now -= 1
        return present

    def processor_time(self) -> float:
        """Processor seconds that this process has used."""
        return time.process_time()

    def fork(self) -> int:
        """Start a child that outlives this process; return its process id."""
        pid = os.fork()
        if not pid:
            time.sleep(60)
            os._exit(0)
        return pid

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def lock(self) -> Any:
        """Return a lock, which cannot be pickled."""
        return threading.Lock()

    def times_closed(self) -> int:
        return self.closed

    def _hidden(self) -> None:
        """Not to be called."""


class Proxy:
    """A proxy between a caller, over TCP, and a server that records, changes, delays and cuts the traffic.

    dial: opens a connection to the server.
    """

    def __init__(self, dial: Callable[[], socket.socket]) -> None:
        self.dial = dial
        self.said: list[bytes] = []  # bytes from callers, one entry for each piece
        self.heard: list[bytes] = []  # bytes to callers
        self.alter_request: Callable[[bytes], bytes] = bytes
        self.alter_reply: Callable[[bytes], bytes] = bytes
        self.flowing = threading.Event()  # replies are forwarded while this is set
        self.flowing.set()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break all connections; new ones are possible."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for sock in pair:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread; close() alone does not
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                down, _ = self._listener.accept()
                try:
                    up = self.dial()
                except OSError:
                    down.close()
                    continue
                self._pairs.append((down, up))
                threading.Thread(target=self._pump, args=(down, up, True), daemon=True).start()
                threading.Thread(target=self._pump, args=(up, down, False), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, requests: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if requests:
                    self.said.append(data)
                    sink.sendall(self.alter_request(data))
                else:
                    self.heard.append(data)
                    self.flowing.wait()
                    sink.sendall(self.alter_reply(data))
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


class AheadOfTime:
    """A stand-in for the module `time` whose monotonic clock a test moves on by any number of seconds."""

    def __init__(self) -> None:
        self.by = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.by

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def dial_tcp(address: str) -> socket.socket:
    """A plain connection."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), 10)


@contextlib.contextmanager
def through_proxy(target: Target, keys: Keyring | None = None) -> Iterator[tuple[Proxy, Channel]]:
    """A separate channel to `target`, through a proxy."""
    proxy, keys = Proxy(partial(dial_tcp, target.tcp)), keys or Keys()
    mine = target._replace(tcp=proxy.address, unix="")
    link, _ = open_connection(mine, keys)
    channel = RemoteChannel(mine, keys, f"test-{secrets.token_hex(4)}", link, lambda channel: None)
    try:
        yield proxy, channel
    finally:
        channel.close()
        proxy.close()


@contextlib.contextmanager
def serving(**options: Any) -> Iterator[Target]:
    """A server in another process, which ends with the block or with this process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, options), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Target("subject", *ours.recv())
    finally:
        ours.close()
        process.join(200)


def _serve(pipe: Any, options: dict[str, Any]) -> None:
    server = serve_subject(**options)
    pipe.send((server.address, server.unix_path, server.identity, server.fingerprint))
    with contextlib.suppress(EOFError):
        pipe.recv()
    server.close(1.0)


def serve_subject(keys: Keys | None = None, unix_dir: Path | None = None, tls: bool = False) -> RpcServer:
    """A server with two Subjects that share a gate: "subject" runs one call at a time, "wide" a hundred."""
    unix_dir = private_dir(unix_dir) if unix_dir is not None else None
    server = RpcServer(keys or Keys(encrypted=tls), unix_dir=unix_dir, tls=tls)
    subject, wide = Subject(), Subject()
    subject.gate = wide.gate
    server.add("subject", subject)
    server.add("wide", wide, max_concurrency=100)
    server.start()
    return server


def ended(sock: socket.socket, within: float) -> bytes:
    """All bytes of the answer until the server closes or resets the connection; TimeoutError: not `within` seconds."""
    sock.settimeout(within)
    answer = b""
    with contextlib.suppress(ConnectionResetError, ssl.SSLError):
        while data := sock.recv(65536):
            answer += data
    return answer
