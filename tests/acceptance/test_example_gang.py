"""The example of a gang on two slices, in its own environment with JAX. It checks its own results."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # an environment with JAX may have to be built first


def test_a_gang_on_two_slices_trains_on_after_a_host_was_killed() -> None:
    ran = subprocess.run(
        ["make", "example-gang"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    began = re.search(r"attempts began at steps \[0, (\d+)\], all-reduce 15, ", ran.stdout)
    assert began, ran.stdout
    assert int(began[1]) > 0
    assert "200 small jobs have succeeded" in ran.stdout
