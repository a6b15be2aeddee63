"""Sockets: where Unix sockets are, that killed servers leave none, and how long the system waits for a host."""

from __future__ import annotations

import os
import socket
import tempfile
import time
import uuid
from pathlib import Path

import pytest

from fray.rpc.actor_server import remove_stale_sockets, socket_dir
from fray_rpc.wire.http_connection import prepare_tcp

PROBES = ("KEEPIDLE", "KEEPINTVL", "KEEPCNT", "USER_TIMEOUT")


def listening(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.listen()
    return sock


def test_sockets_without_a_server_are_removed_unless_they_are_fresh(tmp_path: Path) -> None:
    names = ("alive", "dead", "fresh")
    sockets = {name: listening(tmp_path / f"{name}.sock") for name in names}
    sockets["dead"].close()
    sockets["fresh"].close()
    old = time.time() - 3600
    for name in ("alive", "dead"):
        os.utime(tmp_path / f"{name}.sock", (old, old))
    remove_stale_sockets(tmp_path)
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["alive", "fresh"]
    sockets["alive"].close()
    remove_stale_sockets(tmp_path / "absent")


def test_a_socket_always_fits() -> None:
    with tempfile.TemporaryDirectory() as short:
        longest = Path(short, "x" * (79 - len(short)))
        for task_dir in (Path(short), longest, Path(short, "x" * 90)):
            task_dir.mkdir(exist_ok=True)
        assert socket_dir(short) == Path(short, "rpc")
        assert socket_dir(str(longest)) == longest / "rpc"
        own = socket_dir(str(Path(short, "x" * 90)))
        assert own == socket_dir(None)
        assert max(len(str(path)) for path in (longest / "rpc", own)) + len("/012345678901.sock") < 108


@pytest.mark.parametrize("length", [60, 80, 105, 500])
@pytest.mark.parametrize("letter", ["x", "ü"])
def test_a_server_listens_however_long_the_temporary_directory_is(
    length: int, letter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path
    while len(str(place)) < length:
        place = place / (letter * min(100, length - len(str(place))))
    place.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    path = socket_dir(str(place)) / f"{uuid.uuid4().hex[:12]}.sock"
    with listening(path):
        assert path.is_socket()
    path.unlink()


def test_a_host_that_is_gone_is_noticed_within_a_minute_also_while_bytes_are_on_their_way() -> None:
    with socket.socket() as sock:
        prepare_tcp(sock)
        read = {name: sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{name}")) for name in PROBES}
    assert read["KEEPIDLE"] + read["KEEPINTVL"] * read["KEEPCNT"] <= 60
    assert 0 < read["USER_TIMEOUT"] <= 60_000
