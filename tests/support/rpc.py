"""For tests of actor calls: keys, a server in a process of its own, and the object it serves."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from fray_agents.rpc import RpcKey, Server, Target

KEY = RpcKey("k1", b"0123456789abcdef0123456789abcdef")


class Keys:
    """A keyring whose keys a test may change."""

    def __init__(self, *keys: RpcKey) -> None:
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
    """What the tests call."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.gate = threading.Event()
        self.array: Any = None
        self.most = self.now = 0
        self.closed = 0

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
        """Until `open` is called; needs max_concurrency above 1."""
        return self.gate.wait(30)

    def open(self) -> None:
        self.gate.set()

    def fail(self, kind: str) -> None:
        errors = {"key": KeyError("absent"), "lock": Unpicklable("held"), "two": TwoArguments("one", "two")}
        if kind == "exit":
            raise SystemExit(3)
        raise errors[kind]

    def keep(self, array: Any) -> float:
        """Hold the array; its sum."""
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

    async def acount(self, end: int) -> AsyncIterator[int]:
        for number in range(end):
            await asyncio.sleep(0)
            yield number

    async def together(self, seconds: float) -> int:
        """The most calls of this that ran at once."""
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(seconds)
        self.now -= 1
        return self.most

    def times_closed(self) -> int:
        return self.closed

    def _hidden(self) -> None:
        """Not to be called."""


@contextlib.contextmanager
def serving(**options: Any) -> Iterator[Target]:
    """A server in another process; ends with the block, or with this process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, options), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Target("subject", *ours.recv())
    finally:
        ours.close()
        process.join(20)


def _serve(pipe: Any, options: dict[str, Any]) -> None:
    server = serve_subject(**options)
    pipe.send((server.address, server.unix_path, server.identity, server.fingerprint))
    with contextlib.suppress(EOFError):
        pipe.recv()
    server.close(1.0)


def serve_subject(keys: Keys | None = None, unix_dir: Path | None = None, **options: Any) -> Server:
    """A server with a Subject under "subject" (one call at a time) and "wide" (a hundred)."""
    server = Server(keys or Keys(), unix_dir=unix_dir, **options)
    server.add("subject", Subject())
    server.add("wide", Subject(), max_concurrency=100)
    server.start()
    return server
