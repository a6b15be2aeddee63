"""A gang of four, compared with a Ray placement group of four: until all run, and until all run again after a death.

A replica is a Python function that writes its pid and then sleeps; Ray's is an actor that does the same. Both sides
have four cores, start new processes each time, and take turns. On our side there are four agents of one core each, so
the gang needs all of them. A replica is killed with SIGKILL, the others are ended, and all start again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from harness import PYTHON, Helper, arguments, ray, report, say, scratch, spread

from fray import Entrypoint, JobRequest, ResourceConfig, StorageCluster

BUNDLES = 4
PATIENCE = 120.0
CALM = 2.0
"""Seconds for which all run on either side before one is killed, because both sides prepare processes after a start."""


@contextlib.contextmanager
def agents(root: Path) -> Iterator[None]:
    """One agent of one core for each bundle; unlike the agents of other benches, they take hints."""
    with contextlib.ExitStack() as ending:
        for _ in range(BUNDLES):
            command = [PYTHON, "-m", "fray", "agent", "--root", str(root), "--cpu", "1", "--json"]
            agent = Helper(command, TMPDIR=str(root.parent))
            ending.callback(agent.close)
            ending.callback(os.kill, agent.pid, signal.SIGTERM)
        yield


def run_replica(folder: str) -> None:
    """The function of every replica."""
    part = Path(folder, f"{os.environ['FRAY_REPLICA']}.part")
    part.write_text(str(os.getpid()))
    part.rename(part.with_suffix(".pid"))
    time.sleep(3600)


def wait_for_all(folder: Path, begun: float, other_than: dict[int, int]) -> tuple[float, dict[int, int]]:
    """Wait until every replica runs in a new process; return the seconds since `begun`, and their pids."""
    while time.monotonic() < begun + PATIENCE:
        pids = {int(path.stem): int(path.read_text()) for path in folder.glob("*.pid")}
        if len(pids) == BUNDLES and all(pids[number] != other_than.get(number) for number in pids):
            return time.monotonic() - begun, pids
        time.sleep(0.002)
    raise TimeoutError(f"the gang did not run within {PATIENCE:.0f} s: {pids}")


def forms_and_recovers(cluster: StorageCluster, folder: Path) -> tuple[float, float]:
    """Seconds from the submission until all run, and from the death of one until all run again."""
    folder.mkdir()
    entrypoint = Entrypoint.from_callable(run_replica, args=(str(folder),))
    request = JobRequest("gang", entrypoint, ResourceConfig(cpu=1), replicas=BUNDLES, max_retries_failure=1)
    begun = time.monotonic()
    gang = cluster.launch(request)
    formed, pids = wait_for_all(folder, begun, {})
    time.sleep(CALM)
    begun = time.monotonic()
    os.kill(pids[BUNDLES - 1], signal.SIGKILL)
    recovered, _ = wait_for_all(folder, begun, pids)
    cluster.terminate(gang)
    cluster.wait(gang)
    return formed, recovered


def run(directory: Path, quick: bool, python: str | None) -> None:
    rounds = 2 if quick else 10
    ours: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    root = directory / "root"
    with (
        ray("ray_gangs.py", python) as peer,
        agents(root),
        StorageCluster(str(root)) as cluster,
    ):
        for number in range(rounds):
            ours.append(forms_and_recovers(cluster, directory / f"round-{number}"))
            if peer is not None:
                answer = peer.ask()
                theirs.append((answer["formed_s"], answer["recovered_s"]))
            say(f"round {number + 1}: {ours[-1]}, Ray {theirs[-1] if theirs else 'not asked'}")
        ended = sum(job.status == "stopped" for job in cluster.list_jobs())
    formed, recovered = zip(*ours, strict=True)
    figures = {"submit_to_all_running": spread(formed), "death_to_all_running": spread(recovered), "gangs": ended}
    if peer is not None:
        ray_formed, ray_recovered = zip(*theirs, strict=True)
        figures |= {
            "ray_submit_to_all_running": spread(ray_formed),
            "ray_death_to_all_running": spread(ray_recovered),
            "ray_version": peer.greeting["version"],
            "submit_ratio": round(statistics.median(formed) / statistics.median(ray_formed), 3),
            "death_ratio": round(statistics.median(recovered) / statistics.median(ray_recovered), 3),
        }
    report("gangs", {**figures, "goal_ratio": 0.5})


if __name__ == "__main__":
    options = arguments(__doc__, peers=["ray"])
    with scratch() as place:
        run(place, options.quick, options.ray)
