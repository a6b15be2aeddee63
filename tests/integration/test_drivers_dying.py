"""Programs outside of jobs as real processes: they end, are killed, and are suspended for longer than allowed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fray.cluster import ClusterResolver, JobId, StorageCluster
from fray.types import JobInfo, JobStatus
from tests.support.agents import MORTAL, agents, on_cluster
from tests.support.freezing import freeze
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
from fray.client import StorageClient
from fray.cluster import Entrypoint, JobRequest, StorageCluster
from fray.pool import WorkerPool
from fray.types import ActorConfig, ResourceConfig

class Counter:
    def add(self):
        return 1

cluster = StorageCluster(sys.argv[1], namespace=sys.argv[2])
client = StorageClient(cluster)
owned = client.create_actor(Counter, name="owned")
detached = client.create_actor(Counter, name="detached", actor_config=ActorConfig(detached=True))
hosted = client.host_actor(Counter, name="hosted")
small = ResourceConfig(cpu=0.1)
pool = WorkerPool(cluster, 1, small, name_prefix="worker")
cluster.launch(JobRequest("job", Entrypoint.from_binary("sleep", ["600"]), small))
assert owned.add() == detached.add() == pool.submit(len, "a").result() == 1
print("ready", flush=True)
for line in sys.stdin:
    exec(eval(line))
"""

STOPPED = """
for attempt in (lambda: client.create_actor(Counter, name="more"), lambda: pool.submit(len, "a").result()):
    try:
        attempt()
    except Exception as error:
        print(type(error).__name__, error, flush=True)
"""

FORKS = """
import multiprocessing
child = multiprocessing.get_context("fork").Process(target=lambda: client.create_actor(Counter, name="forked").add())
child.start(); child.join(); print(child.exitcode, flush=True)
print(owned.add(), flush=True)
"""

COMES_BACK = """
try:
    owned.add()
except Exception as error:
    print(type(error).__name__, error, flush=True)
print(client.create_actor(Counter, name="again").add(), flush=True)
"""


class Program:
    """A driver in a namespace of its own."""

    def __init__(self, root: str, namespace: str) -> None:
        self.cluster = StorageCluster(root, namespace)
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, root, namespace],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.reads() == "ready"

    def does(self, code: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{code!r}\n")
        self.process.stdin.flush()

    def reads(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def job(self, name: str) -> JobInfo:
        """Its latest job whose name begins like this."""
        mine = [job for job in self.cluster.list_jobs() if job.namespace == self.cluster.namespace]
        return [job for job in mine if job.name.startswith(name)][-1]

    def ended(self, name: str) -> bool:
        return self.job(name).status.finished()

    def is_served(self) -> bool:
        return bool(ClusterResolver(self.cluster).find("hosted"))

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        for job in self.cluster.list_jobs():
            if job.namespace == self.cluster.namespace:
                self.cluster.terminate(JobId(job.job_id))
        self.cluster.close()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place = tmp_path_factory.mktemp("cluster")
    on_cluster(place / "root", lambda core: core.store.learn_clock(), MORTAL)
    with agents(str(place / "root"), place / "work", cores=8):
        yield str(place / "root")


@pytest.fixture
def program(root: str, tmp_path: Path) -> Iterator[Program]:
    program = Program(root, tmp_path.name.replace("_", "-"))
    yield program
    program.close()


@pytest.mark.parametrize(
    ("way", "status"),
    [
        pytest.param("sys.exit()", "succeeded", id="ends"),
        pytest.param("raise KeyboardInterrupt", "succeeded", id="is interrupted", marks=pytest.mark.slow),
        pytest.param("import os; os.kill(os.getpid(), 9)", "failed", id="is killed"),
    ],
)
def test_a_drivers_actors_and_workers_end_with_it_and_its_jobs_go_on(program: Program, way: str, status: str) -> None:
    program.does(way)
    program.process.wait()
    wait_until(lambda: program.ended("owned") and program.ended("worker") and not program.is_served())
    assert program.job("owned").status is JobStatus.STOPPED
    message = program.job("owned").error_message or ""
    assert message.startswith(
        f"stopped: its parent {program.job('driver').job_id} no longer runs: it has ended, or was "
    )
    assert program.job("driver").status == status
    assert not program.ended("detached")
    assert (program.job("job").status, program.job("job").error_message) == (JobStatus.RUNNING, None)


def test_a_driver_that_was_stopped_too_long_is_told_and_goes_on(program: Program) -> None:
    before = program.job("driver").job_id
    freeze(program.process.pid)
    wait_until(lambda: program.ended("owned") and not program.is_served())
    program.process.send_signal(signal.SIGCONT)
    program.does(COMES_BACK)
    told = program.reads()
    assert told.startswith("ActorUnavailableError")
    assert f"its parent {before} no longer runs: it has ended, or was silent for too long" in told
    assert program.reads() == "1"
    wait_until(program.is_served)
    assert program.job("driver").job_id != before


def test_a_driver_that_is_stopped_owns_nothing_more(program: Program) -> None:
    driver = program.job("driver").job_id
    program.cluster.terminate(driver)
    wait_until(lambda: program.ended("owned") and program.ended("worker") and not program.is_served())
    program.does(STOPPED)
    told = f"this program, driver {driver}, was stopped (terminated by a program); start it again"
    assert [program.reads(), program.reads()] == [f"ParentNotRunning {told}", f"PoolClosed {told}"]
    assert program.process.poll() is None


def test_closing_the_client_ends_its_actors_at_once(program: Program) -> None:
    program.does("client.shutdown(); print('closed', flush=True)")
    assert program.reads() == "closed"
    assert program.ended("driver")
    assert not program.is_served()
    wait_until(lambda: program.ended("owned"))
    assert not program.ended("detached")
    program.does("print(client.create_actor(Counter, name='again').add(), flush=True)")
    assert program.reads() == "1"


def test_a_fork_is_a_driver_of_its_own_and_takes_nothing_with_it(program: Program) -> None:
    driver = program.job("driver").job_id
    program.does(FORKS)
    assert [program.reads(), program.reads()] == ["0", "1"]
    wait_until(lambda: program.ended("forked"))
    assert program.job("driver").job_id != driver
    assert program.cluster.poll(driver).status is JobStatus.RUNNING
    assert program.is_served()
