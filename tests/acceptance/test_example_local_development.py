"""The local-development example: the very same program on a private cluster and on a root with agents."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fray.cluster import StorageCluster
from tests.support.agents import agents, on_cluster

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "local_development" / "main.py"
SAID = ["Response to: Hello Response to: World", "1 2", "2 4 6 8 10", "6"]


def run_example(**environment: str) -> list[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FRAY_")} | environment
    ran = subprocess.run([sys.executable, str(EXAMPLE)], env=environ, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_on_a_private_cluster() -> None:
    assert run_example() == SAID


def test_on_a_root_with_two_agents_and_nothing_goes_on_afterwards(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    on_cluster(Path(root), lambda core: core.store.learn_clock())
    with agents(root, tmp_path / "work", count=2):
        assert run_example(FRAY_CLUSTER_SPEC=root) == SAID
        cluster = StorageCluster(root)
        cluster.wait([job.job_id for job in cluster.list_jobs()], timeout=200)
