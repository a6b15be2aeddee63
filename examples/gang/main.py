"""A gang on two TPU slices trains with JAX, loses a host, and continues from its checkpoint; small jobs fill the gaps.

Four agents on this machine simulate two slices of two hosts. A team trains on both slices at once, with four processes
and a real all-reduce of `jax.distributed` over CPUs. Before that, another user launches 200 small jobs, which use every
core. Then one agent is killed: all four processes end, the gang waits until there are two whole slices again, and
continues. The program prints what happens, and fails if `docs/placements.md` promises otherwise.

    make example-gang

The slices and agents are on this machine, so this does not run on Ray. There, too, a gang on slices is a job with
`ResourceConfig.with_tpu(...)`, and the whole gang restarts when a host is lost: docs/backends.md.

JAX is large, so it has an environment of its own, here and on the agents' hosts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle
import numpy as np
import train
from hosts import CORES, TPU_TYPE, Hosts, SliceHost, hosts

from fray.cluster import Entrypoint, JobId, JobInfo, JobRequest, JobStatus, ResourceConfig, StorageCluster

# The job runs on hosts that do not have this file, so the file's code is pickled with the job's function.
cloudpickle.register_pickle_by_value(train)

SLICES, REPLICAS = 2, 4
SINGLES = 200
LONGEST_SINGLE = 20.0
"""Seconds after which a small job is ended; no job holds a core longer."""

HEARING = 30.0
"""Seconds after which all agents know of a gang, even if every hint is lost: the `repair_interval`."""

BOUND = LONGEST_SINGLE + HEARING
"""Seconds after which a gang that is first in order, and fits, runs."""

T = TypeVar("T")


class Scene:
    """The team's gang, the other user's jobs, and their hosts."""

    def __init__(self, cluster: StorageCluster, hosts: Hosts, config: train.TrainingConfig) -> None:
        self.cluster = cluster
        self.hosts = hosts
        self.config = config
        self.begun = time.monotonic()

    def play(self) -> None:
        """Run all steps in order."""
        _, _, lost, _ = self.hosts_of_both_slices()
        singles = self.launch_singles()
        gang = self.launch_gang()
        self.tell(f"the gang is launched; {self.waiting(singles)} small jobs wait before and beside it")
        self.running(gang, attempt=1)
        left = self.waiting(singles)
        self.tell(f"all {REPLICAS} replicas run, {left} small jobs still wait")
        assert left > 0, "the gang waited until all small jobs were done"
        self.wait_until("a checkpoint", lambda: list(Path(self.config.folder).glob("step-*")))

        lost.kill()
        self.tell(f"{lost.name} is killed")
        self.wait_until("the attempt's end", lambda: self.gang(gang).status is not JobStatus.RUNNING)
        self.tell("no replica is left, and the gang waits: it runs on two whole slices or not at all")
        self.hosts.join("slice-b", 0)
        self.tell(f"{lost.name} is back")
        self.running(gang, attempt=2)
        self.tell(f"all {REPLICAS} replicas run again, {self.waiting(singles)} small jobs still wait")

        self.check(self.cluster.result(gang), self.gang(gang))
        self.check_singles(singles, self.gang(gang))

    def hosts_of_both_slices(self) -> list[SliceHost]:
        """Start two slices of two hosts each."""
        joined = [self.hosts.join(name, worker) for name in ("slice-a", "slice-b") for worker in (0, 1)]
        self.tell(f"{len(joined)} agents pose as {SLICES} slices {TPU_TYPE}: {'; '.join(host.name for host in joined)}")
        return joined

    def launch_singles(self) -> list[JobId]:
        """Launch more small jobs than there are cores, and wait until all cores are used."""
        request = JobRequest("greedy", Entrypoint.from_binary("sleep", ["2"]), timeout=LONGEST_SINGLE)
        jobs = self.cluster.launch_many([request] * SINGLES)
        self.wait_until("the small jobs", lambda: self.waiting(jobs) <= SINGLES - REPLICAS * CORES)
        self.tell(f"a greedy user has launched {SINGLES} jobs, which take all cores")
        return jobs

    def launch_gang(self) -> JobId:
        """Launch the team's gang, which goes before the other user's jobs that do not run yet."""
        return self.cluster.launch(
            JobRequest(
                name="train",
                entrypoint=Entrypoint.from_callable(train.train_replica, args=(self.config,)),
                resources=ResourceConfig.with_tpu(TPU_TYPE, slice_count=SLICES, cpu=1),
                priority=1,
            )
        )

    def running(self, gang: JobId, attempt: int) -> None:
        """Wait until the attempt runs; fail if that takes longer than promised."""
        since = time.monotonic()
        self.wait_until(f"attempt {attempt}", lambda: self.is_running(gang, attempt))
        waited = time.monotonic() - since
        self.tell(f"attempt {attempt} formed in {waited:.1f} s; the bound is {BOUND:.0f} s")
        assert waited <= BOUND

    def is_running(self, gang: JobId, attempt: int) -> bool:
        info = self.gang(gang)
        return info.status is JobStatus.RUNNING and info.attempt == attempt

    def check(self, result: dict[str, Any], info: JobInfo) -> None:
        """Check that the result is that of an undisturbed run, and that the killed host counts as a preemption."""
        alone = train.train_alone(self.config.steps, REPLICAS)
        off = max(float(np.abs(alone[name] - values).max()) for name, values in result["weights"].items())
        self.tell(
            f"trained to step {self.config.steps}: attempts began at steps {result['starts']}, "
            f"all-reduce {result['all_reduce']}, weights within {off:.1e} of those of one process alone"
        )
        assert result["all_reduce"] == 2**REPLICAS - 1
        assert result["starts"][0] == 0
        assert len(result["starts"]) == 2
        assert result["starts"][1] >= self.config.every, "the second attempt did not begin at a checkpoint"
        assert off < 1e-3
        assert (info.preemptions, info.failures) == (1, 0), f"counted as {info}"

    def check_singles(self, jobs: list[JobId], gang: JobInfo) -> None:
        """Check that all small jobs succeed, many of them beside the gang."""
        ended = self.cluster.wait(jobs)
        began, over = gang.start_time or 0.0, gang.end_time or 0.0
        beside = sum(began <= (info.end_time or 0.0) <= over for info in ended)
        self.tell(f"{SINGLES} small jobs have succeeded, {beside} of them beside the gang's last attempt")
        assert all(info.status is JobStatus.SUCCEEDED for info in ended)

    def gang(self, gang: JobId) -> JobInfo:
        info = self.cluster.poll(gang)
        assert info.status not in (JobStatus.FAILED, JobStatus.STOPPED), info
        return info

    def waiting(self, jobs: list[JobId]) -> int:
        """How many of the jobs have not started."""
        listed = {info.job_id: info.status for info in self.cluster.list_jobs()}
        return sum(listed[job] is JobStatus.PENDING for job in jobs)

    def wait_until(self, what: str, look: Callable[[], T], patience: float = 240.0) -> T:
        """Look again until there is a result."""
        end = time.monotonic() + patience
        while not (found := look()):
            if time.monotonic() > end:
                raise TimeoutError(f"waited {patience:.0f} s for {what}")
            time.sleep(0.1)
        return found

    def tell(self, text: str) -> None:
        print(f"{time.monotonic() - self.begun:6.1f} s  {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=train.TrainingConfig.steps, help="of training")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "checkpoints").mkdir()
        config = train.TrainingConfig(str(place / "checkpoints"), options.steps)
        with hosts(str(place / "root"), place) as started, closing(StorageCluster(str(place / "root"))) as cluster:
            Scene(cluster, started, config).play()


if __name__ == "__main__":
    main()
