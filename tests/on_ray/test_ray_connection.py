"""Connecting to Ray."""

from __future__ import annotations

import subprocess
import sys

import pytest
import ray

from fray.cluster.ray.connection import AUTO, connected, is_ray


def test_a_process_that_is_connected_stays_connected(local_ray: str) -> None:
    assert connected(AUTO) is ray
    assert connected("ray:elsewhere:6379") is ray
    assert ray.get_runtime_context().gcs_address == local_ray


@pytest.mark.parametrize(("root", "expected"), [("ray:auto", True), ("ray://head:10001", True), ("rays/folder", False)])
def test_the_roots_of_ray(root: str, expected: bool) -> None:
    assert is_ray(root) is expected


def test_ray_is_imported_by_who_uses_it_only() -> None:
    program = "import sys, fray, fray.current_client, fray.job; fray.current_client; print('ray' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
