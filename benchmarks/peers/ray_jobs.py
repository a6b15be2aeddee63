"""Ray's side of the jobs bench: a local head; each line of input submits one no-op job; the answer is its seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import ray_side
from ray.job_submission import JobStatus, JobSubmissionClient

POLL = 0.005


def submit_and_wait(client: JobSubmissionClient, entrypoint: str) -> float:
    """Seconds from the submission to SUCCEEDED as its client sees it."""
    begun = time.monotonic()
    job = client.submit_job(entrypoint=entrypoint)
    while not (status := client.get_job_status(job)).is_terminal():
        time.sleep(POLL)
    taken = time.monotonic() - begun
    if status is not JobStatus.SUCCEEDED:
        raise RuntimeError(f"{job} {status}: {client.get_job_info(job).message}")
    return taken


def submitter(head: Any) -> Callable[[str], float]:
    return partial(submit_and_wait, JobSubmissionClient(f"http://{head.dashboard_url}"))


ray_side.serve(submitter, include_dashboard=True, dashboard_port=0)
