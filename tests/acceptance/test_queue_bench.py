"""The bench of queues runs and says one well-formed line. What it measures is not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_the_bench_of_queues() -> None:
    command = [sys.executable, "-m", "benchmarks.queues", "--quick"]
    root = Path(__file__).parents[2]
    ran = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["bench"] == "queues"
    assert found["item_by_item"].keys() == {"fray", "the_system_calls_alone"}, "the peers are not installed here"
    assert found["dollars_per_million"]["requests_per_item_alone"] < 4.5
    assert found["dollars_per_million"]["requests_per_item_segments_of_250"] < 0.25
