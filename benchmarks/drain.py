"""Many jobs queued at once, drained by many agents on this machine: lost jobs, doubles, rejected claims, requests.

Each job appends its id to one file, which shows jobs that never ran and jobs that ran twice. The agents are processes
of their own; they start when all jobs are queued.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

from harness import agents, arguments, report, say, scratch

from fray import Entrypoint, JobRequest, JobStatus, StorageCluster
from fray_coordinator.store.metering import GCS_PRICES, RequestCounts

AGENTS = 8


def drain(directory: Path, jobs: int, count: int) -> dict[str, Any]:
    """The figures of one drain of `jobs` jobs by `count` agents of one core each."""
    root, effects = directory / "root", directory / "effects"
    effects.touch()
    effect = Entrypoint.from_binary("/bin/sh", ["-c", f'echo "$FRAY_JOB_ID" >> {effects}'])
    with StorageCluster(str(root)) as cluster:
        begun = time.monotonic()
        ids = cluster.launch_many([JobRequest("drain", effect)] * jobs)
        queued = time.monotonic()
        say(f"{jobs} jobs queued in {queued - begun:.1f} s")
        with agents(root, count, cores=1) as running:
            infos = cluster.wait(ids)
            drained = time.monotonic()
            say(f"drained by {count} agents in {drained - queued:.1f} s")
            endings = [agent.end() for agent in running]
    ran = Counter(effects.read_text().split())
    return {
        "jobs": jobs,
        "agents": count,
        "lost": sum(info.status is not JobStatus.SUCCEEDED or not ran[info.job_id] for info in infos),
        "ran_twice": sum(times > 1 for times in ran.values()),
        "jobs_per_second": round(jobs / (drained - queued), 1),
        "submitted_per_second": round(jobs / (queued - begun), 1),
        **claims([ending["claims"] for ending in endings]),
        **requests([ending["requests"] for ending in endings], jobs),
    }


def claims(counts: list[dict[str, int]]) -> dict[str, Any]:
    """Claims won, and how many conditional writes lost for each of them."""
    won, rejected = sum(each["won"] for each in counts), sum(each["rejected"] for each in counts)
    return {"claims_won": won, "rejected_per_claim_won": round(rejected / won, 4), "goal_rejected_per_claim_won": 0.5}


def requests(usages: list[dict[str, int]], jobs: int) -> dict[str, Any]:
    """The agents' requests to the storage, and their price on GCS."""
    total = sum((RequestCounts(**usage) for usage in usages), RequestCounts())
    return {
        "agents_class_a_per_job": round(total.class_a / jobs, 2),
        "agents_class_b_per_job": round(total.class_b / jobs, 2),
        "agents_requests": {name: getattr(total, name) for name in ("writes", "lists", "reads", "deletes")},
        "agents_cost_on_gcs_usd": round(total.cost(GCS_PRICES), 4),
    }


if __name__ == "__main__":
    options = arguments(__doc__)
    with scratch() as place:
        report("drain", drain(place, *((40, 3) if options.quick else (2000, AGENTS))))
