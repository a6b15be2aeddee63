"""Unix sockets: where they lie, and that killed servers leave none for ever."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from fray.rpc.sockets import remove_abandoned, socket_dir


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
    remove_abandoned(tmp_path)
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["alive", "fresh"]
    sockets["alive"].close()
    remove_abandoned(tmp_path / "absent")


def test_a_socket_always_fits(tmp_path: Path) -> None:
    assert socket_dir("/srv/task") == Path("/srv/task/rpc")
    longest = max(len(str(socket_dir(task))) for task in (None, "/x" * 40, "/x" * 200))
    assert longest + len("/012345678901.sock") < 108
