"""Ray's side of the environments bench: a local head; each line of input is a folder and wheels, with "," between them.

The answer is the seconds from the submission to the first line of the job, by the clock that the job prints.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any

import ray_side
from ray.job_submission import JobStatus, JobSubmissionClient

POLL = 0.005


def submit_and_wait(client: JobSubmissionClient, line: str) -> float:
    """Seconds from the submission to the first line."""
    folder, _, wheels = line.partition(" ")
    environment: dict[str, Any] = {"working_dir": folder}
    names = [wheel.rpartition("/")[2].partition("-")[0] for wheel in wheels.split(",") if wheel]
    if names:
        environment["pip"] = wheels.split(",")
    program = "".join(f"import {name}; " for name in names) + "import time; print(time.time())"
    python = "python" if names else sys.executable
    begun = time.time()
    job = client.submit_job(entrypoint=f"{python} -c '{program}'", runtime_env=environment)
    while not (status := client.get_job_status(job)).is_terminal():
        time.sleep(POLL)
    if status is not JobStatus.SUCCEEDED:
        raise RuntimeError(f"{job} {status}: {client.get_job_info(job).message}")
    while True:
        lines = client.get_job_logs(job).splitlines()
        with contextlib.suppress(IndexError, ValueError):  # the log comes after the status, and starts with Ray's lines
            return float(lines[-1]) - begun
        time.sleep(POLL)


def submitter(head: Any) -> Callable[[str], float]:
    client = JobSubmissionClient(f"http://{head.dashboard_url}")
    return lambda line: submit_and_wait(client, line)


ray_side.serve(submitter, include_dashboard=True, dashboard_port=0)
