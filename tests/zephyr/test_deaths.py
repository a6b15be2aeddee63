"""Real Zephyr while its parts are killed: the output is right, and no process is left."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import cloudpickle
import pytest
import release
from processes import processes
from release import Dataset, ZephyrContext, inline

from fray.client import StorageClient
from fray.cluster import JobInfo, JobStatus, StorageCluster
from tests.support.agents import AgentProcess, agents, on_cluster
from tests.support.waiting import wait_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(release)

ITEMS = list(range(8))


class Place:
    """A root with two agents, and a context of Zephyr on it."""

    def __init__(self, folder: Path, running: list[AgentProcess]) -> None:
        self.folder = folder
        self.agents = running
        self.cluster = StorageCluster(str(folder / "root"))
        self.context = ZephyrContext(
            client=StorageClient(self.cluster),
            max_workers=2,
            name="deaths",
            chunk_storage_prefix=str(folder / "chunks"),
            stage_runner_factory=inline(),
            heartbeat_timeout=10.0,
            max_execution_retries=3,
        )

    def job(self, part: str) -> JobInfo:
        """The newest running job with `part` in its name."""
        return [job for job in self.cluster.list_jobs() if part in job.name and job.status is JobStatus.RUNNING][-1]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    on_cluster(tmp_path / "root", lambda core: core.store.learn_clock())
    with agents(str(tmp_path / "root"), tmp_path / "work", count=2, cores=3) as running:
        place = Place(tmp_path, running)
        yield place
        assert any(job.attempt > 1 or job.status is JobStatus.FAILED for job in place.cluster.list_jobs()), "who died?"
        nobody_is_left(place)


def nobody_is_left(place: Place) -> None:
    """Check that every job but this program's own has ended, and that no process of one is left."""
    own = place.cluster.owner()
    wait_until(lambda: all(job.status.finished() for job in place.cluster.list_jobs() if job.job_id != own))
    wait_until(lambda: not processes("FRAY_CLUSTER_SPEC", place.cluster.root, str(place.folder / "work")))


def doubled_unless(first: Callable[[Path], None], folder: Path) -> Dataset:
    """Items times two. The first worker on item 3 calls `first`."""

    def double(item: int) -> int:
        if item == 3:
            mark = folder / "three"
            try:
                mark.touch(exist_ok=False)
            except FileExistsError:
                return item * 2
            first(folder)
        return item * 2

    return Dataset.from_list(ITEMS).map(double)


def kill_oneself(folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wait_to_be_killed(folder: Path) -> None:
    (folder / "agent").write_text(os.environ["FRAY_AGENT_ID"])
    while not (folder / "killed").exists():
        time.sleep(0.02)
    time.sleep(1.0)  # so that the victim has not reported this item before it dies


def killed_on_the_way(place: Place, kill: Callable[[], Iterable[int]]) -> list[int]:
    """The results of a pipeline, of which the processes that `kill` names are killed during the work on item 3."""
    victims: list[int] = []

    def when_it_is_time() -> None:
        wait_until((place.folder / "agent").exists)
        for pid in kill():
            os.kill(pid, signal.SIGKILL)
            victims.append(pid)
        (place.folder / "killed").touch()

    killer = threading.Thread(target=when_it_is_time)
    killer.start()
    results = list(place.context.execute(doubled_unless(wait_to_be_killed, place.folder)).results)
    killer.join()
    assert victims
    return results


def test_a_worker_is_killed_in_a_shard(place: Place) -> None:
    results = place.context.execute(doubled_unless(kill_oneself, place.folder)).results
    assert (place.folder / "three").exists()
    assert list(results) == [item * 2 for item in ITEMS]


def test_the_coordinator_is_killed_in_a_pipeline(place: Place) -> None:
    def coordinator() -> list[int]:
        job = place.job("coord" if release.NEW else "zephyr-").job_id
        return [pid for pid in processes("FRAY_JOB_ID", job, f"/{job}~") if not is_runner(pid)]

    assert killed_on_the_way(place, coordinator) == [item * 2 for item in ITEMS]


def is_runner(pid: int) -> bool:
    """Whether this is the process that watches over the task, and not the task itself."""
    return b"fray_agents.runner" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_an_agent_is_killed(place: Place) -> None:
    def host() -> list[int]:
        victim = (place.folder / "agent").read_text()
        return [agent.process.pid for agent in place.agents if agent.id == victim]

    assert killed_on_the_way(place, host) == [item * 2 for item in ITEMS]
