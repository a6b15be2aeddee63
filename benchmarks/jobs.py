"""The time from submitting a no-op process to its success, compared with Ray's job submission; and jobs per second.

Both run `python -c pass` on this machine, for a client in another process, and they take turns. Ray's
head and our agent are started once, before the first round.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from harness import PYTHON, agents, arguments, ray, report, say, scratch, spread

from fray import Entrypoint, JobRequest, StorageCluster

NO_OP = JobRequest("noop", Entrypoint.from_binary(PYTHON, ["-c", "pass"]))


def submit_and_wait(cluster: StorageCluster) -> float:
    """Seconds from the submission to SUCCEEDED as its client sees it."""
    begun = time.monotonic()
    cluster.wait(cluster.launch(NO_OP), raise_on_failure=True)
    return time.monotonic() - begun


def jobs_per_second(cluster: StorageCluster, count: int) -> float:
    """Jobs a second, from one submission of all jobs until the client sees the last success."""
    begun = time.monotonic()
    cluster.wait(cluster.launch_many([NO_OP] * count), raise_on_failure=True)
    return count / (time.monotonic() - begun)


def run(directory: Path, quick: bool, ray_python: str | None) -> None:
    rounds, ours_each, theirs_each, many = (1, 3, 1, 10) if quick else (4, 10, 4, 200)
    root = directory / "root"
    ours: list[float] = []
    theirs: list[float] = []
    with ray("ray_jobs.py", ray_python) as peer, agents(root), StorageCluster(str(root)) as cluster:
        submit_and_wait(cluster)
        for number in range(rounds):
            ours += [submit_and_wait(cluster) for _ in range(ours_each)]
            if peer is not None:
                theirs += [peer.ask(f"{PYTHON} -c pass") for _ in range(theirs_each)]
            say(f"round {number + 1}: {spread(ours)}, Ray {spread(theirs) if theirs else 'not asked'}")
        rate = statistics.median(jobs_per_second(cluster, many) for _ in range(1 if quick else 3))
        succeeded = sum(job.status == "succeeded" for job in cluster.list_jobs())
    figures = {"submit_to_succeeded": spread(ours), "jobs_per_second_at_concurrency_2": round(rate, 1)}
    if peer is not None:
        ratio = statistics.median(ours) / statistics.median(theirs)
        figures |= {"ray": spread(theirs), "ray_version": peer.greeting["version"], "ratio": round(ratio, 4)}
    report("jobs", {**figures, "goal_ratio": 0.1, "succeeded": succeeded})


if __name__ == "__main__":
    options = arguments(__doc__, peers=["ray"])
    with scratch() as place:
        run(place, options.quick, options.ray)
