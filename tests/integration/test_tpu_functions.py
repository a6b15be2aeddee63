"""Functions on every host of slices, on agents that pose as such hosts."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from pathlib import Path

import pytest

from fray import JobFailed, StorageCluster
from fray.cluster import current_replica, set_current_cluster
from fray.tpu import pods, run_on_pod, run_on_pod_multislice_resumable
from tests.support.shell import Shell
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

TYPE = "v5p-16"
"""Two hosts a slice."""


class Slices:
    """Agents on one root that pose as hosts of slices."""

    def __init__(self, root: Path) -> None:
        self._shell = Shell(root)
        self._agents: list[subprocess.Popen[str]] = []

    def start(self, name: str) -> None:
        for worker in ("0", "1"):
            place = ("--tpu", TYPE, "--slice", name, "--worker", worker)
            agent = self._shell.start("agent", "--cpu", "4", "--memory", "8GB", *place, stdout=subprocess.PIPE)
            self._agents.append(agent)
            assert agent.stdout is not None
            agent.stdout.readline()

    def close(self) -> None:
        for agent in self._agents:
            agent.terminate()
        for agent in self._agents:
            agent.wait(200)


@pytest.fixture
def slices(tmp_path: Path) -> Iterator[Slices]:
    cluster = StorageCluster(str(tmp_path / "root"))
    cluster.list_jobs()  # makes the root
    set_current_cluster(cluster)
    slices = Slices(tmp_path / "root")
    yield slices
    slices.close()
    set_current_cluster(None)
    cluster.close()


def test_a_run_goes_on_with_more_slices_when_they_come(
    slices: Slices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pods, "CHECK_INTERVAL", 0.2)
    seen = tmp_path / "seen"
    seen.mkdir()

    def work() -> tuple[int, int]:
        """The place of this process. On one slice alone it works until it is stopped."""
        mine = current_replica()
        Path(seen, f"{mine.slices}-{mine.index}").touch()
        while mine.slices == 1:
            time.sleep(0.05)
        return mine.slice, mine.index

    slices.start("one")
    with ThreadPoolExecutor(1) as beside:
        run = partial(run_on_pod_multislice_resumable, work, TYPE, [1, 2, 4], max_retries_failure=0)
        running = beside.submit(copy_context().run, run)
        wait_until(lambda: len(list(seen.iterdir())) == 2)
        slices.start("two")
        assert running.result(200) == [(0, 0), (0, 1), (1, 2), (1, 3)]


def test_the_host_on_which_a_function_failed_is_told(slices: Slices) -> None:
    def fail_on_one_host() -> None:
        if current_replica().index == 1:
            raise ValueError("no data here")
        time.sleep(600)

    slices.start("one")
    with pytest.raises(JobFailed, match=r"replica 1 on .*: ValueError: no data here") as failed:
        run_on_pod(fail_on_one_host, TYPE)
    assert isinstance(failed.value.__cause__, ValueError)
