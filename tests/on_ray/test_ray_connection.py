"""Connecting to Ray."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
import ray

from fray.backends.ray.connection import AUTO, connected
from fray.errors import InvalidInput


def test_a_process_that_is_connected_stays_connected(local_ray: str) -> None:
    assert connected(AUTO) is ray
    assert connected("ray:elsewhere:6379") is ray
    assert ray.get_runtime_context().gcs_address == local_ray


def test_a_proxy_that_fails_to_start_a_server_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def init(**options: object) -> None:
        asked.append(options["address"])
        if len(asked) != 3:
            raise ConnectionAbortedError("Starting Ray client server failed")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        address = f"ray://127.0.0.1:{proxy.getsockname()[1]}"
        assert connected(address) is ray
        assert asked == [address] * 3
        with pytest.raises(InvalidInput, match="there is no Ray"):
            connected(address)


def test_only_users_of_ray_import_it() -> None:
    program = "import sys, fray, fray.current_client, fray.job; fray.current_client; print('ray' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
