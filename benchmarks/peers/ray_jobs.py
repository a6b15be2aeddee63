"""Ray's side of the jobs bench: a local head; each line read submits one no-op job, the answer is its seconds."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time

os.environ["RAY_AUTH_MODE"] = "disabled"  # or it leaves a token in the home directory

import ray
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


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")  # Ray prints to stdout
    os.dup2(2, 1)
    directory = tempfile.mkdtemp(prefix="ray-")
    begun = time.monotonic()
    head = ray.init(include_dashboard=True, dashboard_port=0, _temp_dir=directory, log_to_driver=False)
    client = JobSubmissionClient(f"http://{head.dashboard_url}")
    print(json.dumps({"version": ray.__version__, "start_s": time.monotonic() - begun}), file=answers, flush=True)
    try:
        for line in sys.stdin:
            print(json.dumps(submit_and_wait(client, line.strip())), file=answers, flush=True)
    finally:
        ray.shutdown()
        shutil.rmtree(directory, ignore_errors=True)


main()
