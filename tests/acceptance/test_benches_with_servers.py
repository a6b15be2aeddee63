"""The benches that start servers run and print one well-formed line. Their figures are not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def figures(bench: str) -> dict[str, Any]:
    command = [sys.executable, "-m", f"benchmarks.{bench}", "--quick"]
    root = Path(__file__).parents[2]
    ran = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=250, check=False)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    assert found["bench"] == bench
    return found


def test_the_bench_of_commands() -> None:
    found = figures("cli")
    for kind in ("local", "s3", "gcs"):
        assert found["python_cpu_s"] < found[f"ps_{kind}_cpu_s"] < 10


def test_the_bench_of_queues() -> None:
    found = figures("queues")
    for place in ("memory", "disk"):
        sides = found["item_by_item"][place]
        assert sides.keys() == {"fray", "the_system_calls_alone"}, "the peers are not installed here"
    assert found["dollars_per_million"]["requests_per_item_alone"] < 4.5
    assert found["dollars_per_million"]["requests_per_item_segments_of_250"] < 0.25
