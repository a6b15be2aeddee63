"""The training example: in a private cluster, and on a root that loses its hosts twice."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.agents import AgentProcess, on_cluster
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "training" / "main.py"
STEPS = 300
LAST_LINE = r"loss (\d\.\d+) nats; attempts began at steps ([\d, ]+); weights (\w{16})"


def start(folder: Path, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(EXAMPLE), "--steps", str(STEPS), "--checkpoints", str(folder)]
    return subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[float, list[int], str]:
    """The loss, the steps at which attempts began, and the digest of the weights."""
    said, _ = process.communicate(timeout=PATIENCE)
    found = re.search(LAST_LINE, said)
    assert process.returncode == 0, said
    assert found, said
    return float(found[1]), [int(step) for step in found[2].split(", ")], found[3]


def wait_for_step(folder: Path, step: int) -> None:
    wait_until(lambda: any(int(path.stem.removeprefix("step-")) >= step for path in folder.glob("step-*.npz")))


def test_a_run_that_is_preempted_twice_ends_with_the_weights_of_an_undisturbed_one(tmp_path: Path) -> None:
    loss, starts, weights = ended(start(tmp_path / "calm"))
    assert starts == [0]
    assert loss < 3.0, "knowing nothing costs ln(128) = 4.85"

    root, folder = tmp_path / "root", tmp_path / "root" / "data" / "model"
    on_cluster(root, lambda core: core.store.learn_clock())  # with quick settings
    run = start(folder, FRAY_CLUSTER_SPEC=str(root))
    for step in (50, 150):
        agent = AgentProcess(str(root), tmp_path / "work")
        wait_for_step(folder, step)
        assert agent.end() == 0
    last = AgentProcess(str(root), tmp_path / "work")
    try:
        again = ended(run)
    finally:
        last.kill()
    assert len(again[1]) == 3
    assert again[1][1] >= 50
    assert again[1][2] >= 150
    assert (again[0], again[2]) == (loss, weights)
