"""A pool that makes and removes its own machines as work comes and goes.

The cluster is in a temporary directory. Its pool may have four machines, each a slice of two hosts, which are agents on
this machine. At first nothing runs. The program launches forty jobs and waits for them, which makes the first machine.
One machine is killed like in a preemption, and is replaced. A gang uses two whole slices. When no job waits any more,
all machines are removed. The program prints and draws what happens, and fails if `docs/machines.md` promises otherwise.

    make example-autoscale
    ray job submit --working-dir examples -- python autoscale/main.py    # on a node of Ray: it starts its own agents

The machines of Ray itself are made by Ray's own autoscaler.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from chart import Sample, draw
from msgspec.structs import replace

from fray import Entrypoint, JobId, JobRequest, JobStatus, ResourceConfig, StorageCluster, sync
from fray.machine_pools import set_pool
from fray_coordinator.core import LOCAL_SETTINGS, open_core
from fray_coordinator.jobs.pools import read_machines
from fray_layouts.records import MachineRecord

POOL, MOST = "machines", 4
JOBS, SLICES = 40, 2
SETTINGS = replace(LOCAL_SETTINGS, beat_interval=1.0, idle_beat_interval=1.0, pass_interval=0.5, repair_interval=3.0)
"""Short intervals, so that one minute shows what takes several minutes with the usual ones."""

T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """Where machines are made.

    Attributes:
        fields: the pool's fields, as below its name in `fray.yaml`.
        slice_type: type of the machines, if they are slices.
        preempt: takes a machine away.
    """

    fields: Mapping[str, Any]
    slice_type: str
    preempt: Callable[[MachineRecord], None]


class Scene:
    """Runs the work, and watches the machines that come and go for it."""

    def __init__(self, cluster: StorageCluster, place: Place) -> None:
        self.cluster = cluster
        self.place = place
        self.begun = time.monotonic()
        self.samples: list[Sample] = []
        self.jobs: list[JobId] = []

    def play(self) -> None:
        """Run all steps in order."""
        self.tell(f"a pool of at most {MOST} machines, of which there is none")
        burst = JobRequest("burst", Entrypoint.from_binary("sleep", ["3"]), ResourceConfig(cpu=1), pool=POOL)
        self.launch(burst, JOBS)
        self.tell(f"{JOBS} jobs are launched")
        self.wait_until("machines", lambda: self.machines("up"))
        self.preempt(self.machines("up")[0])
        self.wait_until("the jobs", lambda: self.ended() == JOBS)
        again = sum(info.preemptions > 0 for info in self.cluster.list_jobs())
        self.tell(f"all jobs have succeeded, on {len(self.machines())} machines; {again} of them began again")

        if self.place.slice_type:
            self.run_gang()
        self.wait_until("no machine", self.is_released)
        self.tell("nothing waits, and no machine is left")
        self.check()

    def launch(self, request: JobRequest, count: int = 1) -> None:
        """Launch jobs and wait for them like any program; waiting makes the first machine."""
        jobs = self.cluster.launch_many([request] * count)
        self.jobs += jobs
        threading.Thread(target=self.cluster.wait, args=(jobs,), daemon=True).start()

    def preempt(self, machine: MachineRecord) -> None:
        self.place.preempt(machine)
        self.tell(f"{machine.name} is taken away")
        self.wait_until("its end", lambda: self.machine(machine.name).state == "gone")
        self.tell("it is gone; jobs that ran there begin again on others")

    def run_gang(self) -> None:
        resources = ResourceConfig.with_tpu(self.place.slice_type, slice_count=SLICES, cpu=1)
        self.launch(JobRequest("gang", Entrypoint.from_binary("sleep", ["4"]), resources, pool=POOL))
        self.wait_until("the gang", lambda: self.ended() == JOBS + 1)
        self.tell(f"a gang has had {SLICES} slices at once")

    def is_released(self) -> bool:
        """Whether no machine is left. Agents remove the machines; a run like one from cron removes the last one."""
        scale = [sys.executable, "-m", "fray", "scale", "--once", POOL, "--root", self.cluster.root]
        subprocess.run(scale, check=True, stdout=subprocess.DEVNULL)
        return not self.present()

    def check(self) -> None:
        """Check that every job succeeded, that there were never too many machines, and that one was replaced."""
        assert all(info.status is JobStatus.SUCCEEDED for info in self.cluster.wait(self.jobs))
        most = max(sum(sample.machines.values()) for sample in self.samples)
        made = len(self.machines())
        assert most <= MOST, f"{most} machines at once"
        assert made > 1, "the machine that was taken away was not replaced"
        self.tell(f"{made} machines were made, at most {most} at once")

    def machines(self, *states: str) -> list[MachineRecord]:
        """All machines that ever existed, or those in one of the states."""
        found = self.cluster.run(lambda core: read_machines(core, {}, POOL))
        return [stored.record for stored in found if not states or stored.record.state in states]

    def machine(self, name: str) -> MachineRecord:
        return next(machine for machine in self.machines() if machine.name == name)

    def present(self) -> list[MachineRecord]:
        return [machine for machine in self.machines() if machine.state != "gone"]

    def ended(self) -> int:
        """How many jobs have succeeded. Raises an error if one has failed."""
        status = self.status()
        assert not status[JobStatus.FAILED], "a job has failed"
        return status[JobStatus.SUCCEEDED]

    def status(self) -> Counter[JobStatus]:
        return Counter(info.status for info in self.cluster.list_jobs())

    def wait_until(self, what: str, look: Callable[[], T], patience: float = 240.0) -> T:
        """Look until there is a result; keep each view for the chart."""
        end = time.monotonic() + patience
        while not (found := look()):
            if time.monotonic() > end:
                raise TimeoutError(f"waited {patience:.0f} s for {what}")
            self.sample()
            time.sleep(0.2)
        return found

    def sample(self) -> None:
        status = self.status()
        states = Counter(machine.state for machine in self.present() if machine.state != "wanted")
        at = time.monotonic() - self.begun
        self.samples.append(Sample(at, states, status[JobStatus.PENDING], status[JobStatus.RUNNING]))

    def tell(self, text: str) -> None:
        self.sample()
        print(f"{time.monotonic() - self.begun:6.1f} s  {text}", flush=True)


def here(slice_type: str = "v4-16") -> Place:
    """A place on this machine, whose machines are agents in processes here."""

    def preempt(machine: MachineRecord) -> None:
        """Kill the machine's agents; their locks contain their process ids."""
        folder = Path(tempfile.gettempdir(), f"fray-{os.geteuid()}", "machines")
        for lock in folder.glob(f"*-{machine.name}/host-*.lock"):
            with suppress(ValueError, ProcessLookupError):
                os.kill(int(lock.read_text()), signal.SIGKILL)

    return Place({"provider": "local", "machine_type": slice_type}, slice_type, preempt)


def run(place: Place, output: Path) -> None:
    """Run everything in a cluster of its own; write the chart to `output`."""
    with tempfile.TemporaryDirectory(prefix="fray-autoscale-") as name:
        root = str(Path(name, "root"))
        sync.run(sync.run(open_core(root, SETTINGS)).store.close())
        set_pool(root, POOL, min=0, max=MOST, idle_seconds=5, **place.fields)
        with closing(StorageCluster(root)) as cluster:
            scene = Scene(cluster, place)
            try:
                scene.play()
            finally:
                for machine in scene.present():  # after an error, leave nothing behind
                    place.preempt(machine)
                output.write_bytes(draw(scene.samples))
                print(f"the chart is {output}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("autoscale.png"), help="of the chart")
    run(here(), parser.parse_args().output)


if __name__ == "__main__":
    main()
