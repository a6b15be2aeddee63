"""Havoc on clusters of real processes: every promise is kept. `make chaos` runs the long ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.run import Options, run


def test_a_short_havoc_on_local_files(tmp_path: Path) -> None:
    report = run(Options("local", seconds=15, jobs=40, agents=4, seed=1, beat=1.0, peace=100), tmp_path)
    print(report)
    assert not report.faults


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["local", "s3", "moto", "gcs"])
def test_minutes_of_havoc(kind: str, tmp_path: Path) -> None:
    report = run(Options(kind, seconds=180, jobs=300, agents=10, seed=1), tmp_path)
    print(report)
    assert not report.faults
