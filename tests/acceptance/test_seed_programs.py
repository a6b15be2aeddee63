"""Programs for clusters of TPUs as users wrote them, unchanged, on agents that pose as hosts of slices.

`seed_programs` is the project that they are in; what they import besides Fray is there as stubs.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.shell import Shell
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).parent / "seed_programs"


class PosedCluster:
    """A root with agents that pose as hosts of slices."""

    def __init__(self, place: Path) -> None:
        self.project = shutil.copytree(PROGRAMS, place / "project")
        self.shell = Shell(place / "root")
        self.shell("init")
        self._agents: list[subprocess.Popen[str]] = []

    def start(self, *options: str) -> None:
        """Start an agent and wait until it has joined."""
        agent = self.shell.start("agent", "--cpu", "8", "--memory", "256GB", *options, stdout=subprocess.PIPE)
        self._agents.append(agent)
        assert agent.stdout is not None
        agent.stdout.readline()

    def start_slice(self, tpu_type: str, name: str, hosts: int) -> None:
        for worker in range(hosts):
            self.start("--tpu", tpu_type, "--slice", name, "--worker", str(worker), "--region", "here")

    def begin(self, program: str) -> subprocess.Popen[str]:
        """Begin a program in the project."""
        environ = {**os.environ, "FRAY_CLUSTER_SPEC": str(self.shell.root), "FRAY_LOG_TO_DRIVER": "0"}
        words = [sys.executable, "-c", program]
        return subprocess.Popen(words, cwd=self.project, env=environ, text=True, stdout=subprocess.PIPE)

    def run(self, program: str) -> str:
        """The output of a program that has succeeded."""
        begun = self.begin(program)
        printed, _ = begun.communicate(timeout=200)
        assert begun.returncode == 0
        return printed

    def close(self) -> None:
        for agent in self._agents:
            agent.send_signal(signal.SIGTERM)
        assert [agent.wait(200) for agent in self._agents] == [0] * len(self._agents)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[PosedCluster]:
    cluster = PosedCluster(tmp_path)
    cluster.start("--region", "here")
    yield cluster
    cluster.close()


def test_training_runs_on_every_host_of_a_slice(cluster: PosedCluster) -> None:
    cluster.start_slice("v5litepod-16", "large", 4)
    printed = cluster.run("from zero_training import launch_training; launch_training('mine')")
    assert "Training completed with status: succeeded" in printed
    assert printed.splitlines().count("Running on 16 devices") == 4
    assert printed.splitlines().count("trains") == 4


def test_reinforcement_learning_starts_whole_on_slices_of_two_sizes(cluster: PosedCluster) -> None:
    cluster.start_slice("v5litepod-16", "large", 4)
    for name in ("one", "two"):
        cluster.start_slice("v5litepod-4", name, 1)
    program = (
        "from zero_rl import RLConfig, RLJob\n"
        "job = RLJob(RLConfig('model', num_rollout_workers=2))\n"
        "print(job.run().status)\n"
        "job.shutdown()\n"
        "print([str(info.status) for info in job.cluster.wait(job.job_ids, timeout=100)])\n"
    )
    *lines, status, all_statuses = cluster.run(program).splitlines()
    assert (status, all_statuses) == ("succeeded", "['stopped', 'succeeded', 'stopped', 'stopped']")
    saved = "saved gs://bucket/checkpoints/step-"
    assert sorted(lines) == sorted(f"[{replica}] {saved}{step}" for replica in range(4) for step in (0, 100, 200))


def test_slices_train_in_a_reservation_that_ends_with_the_program(cluster: PosedCluster) -> None:
    for name in ("one", "two"):
        cluster.start_slice("v5p-16", name, 2)
    program = (
        "from zero_multislice import MultiSliceConfig, MultiSliceJob\n"
        "MultiSliceJob(MultiSliceConfig('model', tpu_type='v5p-16', min_slices=2, max_slices=4)).run()\n"
    )
    driver = cluster.begin(program)
    names = ("multislice-worker-0", "multislice-worker-1")

    def train() -> bool:
        running = {job["spec"]["name"]: job["id"] for job in cluster.shell.json("ps", "--state", "running")}
        logs = [cluster.shell("logs", running[name]).stdout for name in names if name in running]
        return len(logs) == 2 and all("saved gs://bucket/checkpoints/step-0" in log for log in logs)

    wait_until(train)
    (held,) = cluster.shell.json("reservations")
    assert (held["state"], len(held["placement"]["members"])) == ("held", 4)
    driver.send_signal(signal.SIGINT)
    driver.communicate(timeout=100)
    wait_until(lambda: not cluster.shell.json("reservations"))
    for job in cluster.shell.json("ps", "--all", "--name", "multislice-worker-*"):
        cluster.shell.until_status(job["id"], "stopped")
