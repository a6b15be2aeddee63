"""The examples on Ray, run as their first lines say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ray.job_submission import JobSubmissionClient

from tests.support.examples import EXAMPLES, ONE_PROGRAM_SAYS, run_example
from tests.support.waiting import wait_until


def test_one_program_says_the_same_as_elsewhere(local_ray: str) -> None:
    assert run_example("one_program", FRAY_CLUSTER_SPEC="ray:auto", RAY_ADDRESS=local_ray) == ONE_PROGRAM_SAYS


def test_training(local_ray: str, tmp_path: Path) -> None:
    options = ["--steps", "60", "--checkpoints", str(tmp_path)]
    *_, last = run_example("training", *options, FRAY_CLUSTER_SPEC="ray:auto", RAY_ADDRESS=local_ray)
    assert re.match(r"loss \d\.\d+ nats; attempts began at steps 0; weights \w{16}", last)
    assert list(tmp_path.glob("step-*.npz"))


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("demo", "--files 48 --shards 12 --output OUT", "12 of 12 shards are done"),
        ("autoscale", "--output OUT/chart.png", "nothing waits, and no machine is left"),
        ("wordcount", "", "the same as counted without workers"),
    ],
)
def test_examples_that_start_their_agents_are_submitted_to_ray(
    name: str, options: str, said: str, dashboard: str, tmp_path: Path
) -> None:
    client = JobSubmissionClient(dashboard)
    command = f"python {name}/main.py {options.replace('OUT', str(tmp_path))}"
    job = client.submit_job(entrypoint=command, runtime_env={"working_dir": str(EXAMPLES)})
    wait_until(lambda: client.get_job_status(job).is_terminal())
    assert said in client.get_job_logs(job)
