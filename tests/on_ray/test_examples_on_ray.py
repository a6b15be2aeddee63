"""Examples on Ray, as their first lines say."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.examples import ONE_PROGRAM_SAYS, run_example


def test_one_program_says_the_same_as_elsewhere(local_ray: str) -> None:
    assert run_example("one_program", FRAY_CLUSTER_SPEC="ray:auto", RAY_ADDRESS=local_ray) == ONE_PROGRAM_SAYS


def test_training(local_ray: str, tmp_path: Path) -> None:
    options = ["--steps", "60", "--checkpoints", str(tmp_path)]
    *_, last = run_example("training", *options, FRAY_CLUSTER_SPEC="ray:auto", RAY_ADDRESS=local_ray)
    assert re.match(r"loss \d\.\d+ nats; attempts began at steps 0; weights \w{16}", last)
    assert list(tmp_path.glob("step-*.npz"))
