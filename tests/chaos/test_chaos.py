"""Havoc on clusters of real processes: every promise is kept. `make chaos` runs the long ones.

Each run of minutes draws its seed and prints the command that runs it again; CHAOS_SEED in the environment sets it.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from tests.chaos.run import Options, run

GIVEN = os.environ.get("CHAOS_SEED")
SEED = int(GIVEN or secrets.randbits(32))


@pytest.mark.slow
def test_a_short_havoc_on_local_files(tmp_path: Path) -> None:
    report = run(Options("local", seconds=8, jobs=32, agents=5, seed=7, beat=1.0, peace=100), tmp_path)
    print(report)
    assert not report.faults


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["local", "gcs"])
def test_half_a_minute_of_havoc(kind: str, tmp_path: Path) -> None:
    report = run(Options(kind, seconds=30, jobs=60, agents=5, seed=int(GIVEN or 1)), tmp_path)
    print(report)
    assert not report.faults


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["local", "s3", "moto", "gcs"])
def test_minutes_of_havoc(kind: str, tmp_path: Path) -> None:
    report = run(Options(kind, seconds=180, jobs=300, agents=10, seed=SEED), tmp_path)
    print(report)
    assert not report.faults
    assert not report.unstruck
