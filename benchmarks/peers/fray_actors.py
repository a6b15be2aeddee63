"""Fray's side of the actors bench: a server in another process, over TCP or a Unix socket."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from calls import AsyncSubject, Side, Subject

from fray_rpc import (
    Channel,
    RpcKey,
    RpcServer,
    Target,
    connect,
)


class Keys:
    """A key for both processes."""

    encrypted = False

    def keys(self, fresh: bool = False) -> list[RpcKey]:
        return [RpcKey("bench", bytes(range(32)))]


class Handle:
    """An actor of a server."""

    def __init__(self, channel: Channel, actor: str) -> None:
        self._channel = channel
        self._actor = actor

    def call(self, method: str, *args: Any) -> Any:
        return self._channel.call(self._actor, method, args, {})

    def start(self, method: str, *args: Any) -> Any:
        return self._channel.start(self._actor, method, args, {})

    def gather(self, started: Iterable[Any]) -> list[Any]:
        return [call.result() for call in started]


def serve(pipe: Any, directory: str) -> None:
    """The server's process."""
    server = RpcServer(Keys(), unix_dir=Path(directory))
    server.add("plain", Subject())
    server.add("wide", Subject(), max_concurrency=100)
    server.add("loop", AsyncSubject(), max_concurrency=100)
    server.start()
    pipe.send((server.address, server.unix_path, server.identity))
    try:
        pipe.recv()
    except EOFError:
        server.close()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    transport, quick = sys.argv[1], "--quick" in sys.argv
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    with tempfile.TemporaryDirectory(prefix="fray-") as directory:
        process = context.Process(target=serve, args=(theirs, directory), daemon=True)
        process.start()
        theirs.close()
        address, unix, identity = pipe.recv()
        channel = connect(Target("plain", address, unix if transport == "unix" else "", identity), Keys())
        side = Side(Handle(channel, "plain"), Handle(channel, "wide"), Handle(channel, "loop"), quick)
        print("{}", file=answers, flush=True)
        side.serve(answers)
        pipe.close()
        process.join(20)


if __name__ == "__main__":
    main()
