"""Jobs and Ray's nodes: nodes that are not preempted, nodes that are lost, and nodes that need the job's code."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import ray

from fray.actor import idempotent
from fray.backends.ray import RayClient
from fray.errors import JobFailed
from fray.types import Entrypoint, EnvironmentConfig, JobRequest, JobStatus, ResourceConfig
from tests.support.ray_nodes import another_node, lose
from tests.support.waiting import PATIENCE, wait_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])

STAYS = ResourceConfig(cpu=1, preemptible=False)


def node_after_a_loss(folder: str) -> str:
    """The node of this task. The first attempt stays there for ever."""
    first = Path(folder, "first")
    if not first.exists():
        first.touch()
        time.sleep(3600)
    return os.environ["FRAY_AGENT_ID"]


class Place:
    """Reports its node."""

    @idempotent  # Ray may send a call to a lost node until this process has learned of the loss
    def node(self) -> str:
        found: str = ray.get_runtime_context().get_node_id()
        return found


@pytest.fixture
def client(local_ray: str) -> Iterator[RayClient]:
    client = RayClient()
    yield client
    client.shutdown()


def test_an_on_demand_job_runs_where_ray_has_head_node_and_moves_when_that_node_is_lost(
    client: RayClient, nodes: Any, tmp_path: Path
) -> None:
    with another_node(nodes, head_node=1) as first:
        job = client.submit(JobRequest("stays", Entrypoint.from_callable(node_after_a_loss, (str(tmp_path),)), STAYS))
        wait_until(lambda: (tmp_path / "first").exists())
        with another_node(nodes, head_node=1) as second:
            lose(nodes, first)
            assert job.wait(PATIENCE) is JobStatus.SUCCEEDED
            assert client.cluster.result(job.job_id) == second.node_id
    info = client.cluster.poll(job.job_id)
    assert (info.attempt, info.preemptions, info.failures) == (2, 1, 0)


def test_the_actors_of_a_lost_node_begin_again_on_another(client: RayClient, nodes: Any) -> None:
    with another_node(nodes, head_node=1) as first:
        actor = client.create_actor(Place, name="place", resources=STAYS)
        assert actor.node() == first.node_id
        with another_node(nodes, head_node=1) as second:
            lose(nodes, first)
            assert actor.node() == second.node_id


TWO_RAYS = """
import sys
from fray import Entrypoint, JobRequest, ResourceConfig
from fray.errors import JobNotFound
from fray.backends.ray import RayClient
from tests.support.ray_nodes import local_ray
from tests.support.waiting import wait_until

command = Entrypoint.from_binary("sh", ["-c", "echo $$; exec sleep 3600"])
with local_ray():
    client = RayClient()
    job = client.submit(JobRequest("sleeps", command, ResourceConfig(cpu=0)))
    (pid,) = wait_until(job.logs)
with local_ray():
    try:
        RayClient().cluster.poll(job.job_id)
    except JobNotFound:
        print(pid)
"""
"""A Ray whose head ends, and the next one."""


def test_jobs_end_with_the_head_node_and_are_forgotten() -> None:
    root = Path(__file__).parents[2]
    here = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_ADDRESS", "FRAY_"))}
    ran = subprocess.run([sys.executable, "-c", TWO_RAYS], cwd=root, env=here, capture_output=True, text=True)
    pid = ran.stdout.split()[-1]
    assert pid.isdecimal(), ran.stderr
    wait_until(lambda: not Path("/proc", pid).exists())


def test_why_there_are_no_packages_is_told_in_the_words_of_pip(client: RayClient) -> None:
    nowhere = EnvironmentConfig(pip_packages=["/nowhere/greetings-1.0-py3-none-any.whl"])
    job = client.submit(JobRequest("lacks", Entrypoint.from_binary("true"), ResourceConfig(cpu=0), nowhere))
    with pytest.raises(JobFailed, match=r"environment-failed: ERROR: .*No such file or directory: '/nowhere/greetings"):
        job.wait(PATIENCE)


def test_packages_and_the_workspace_are_with_the_job(client: RayClient, tmp_path: Path) -> None:
    wheel = tmp_path / "greetings-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("greetings.py", "WORD = 'hello'")
        packed.writestr("greetings-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: greetings\nVersion: 1.0\n")
        packed.writestr(
            "greetings-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        packed.writestr("greetings-1.0.dist-info/RECORD", "")
    project = tmp_path / "project"
    project.mkdir()
    (project / "src").mkdir()
    (project / "src" / "places.py").write_text("PLACE = 'world'")
    (project / "names.py").write_text("from places import PLACE as NAME")
    brings = EnvironmentConfig(pip_packages=[str(wheel)], workspace=str(project))
    program = "import greetings, names; print(greetings.WORD, names.NAME)"
    command = Entrypoint.from_binary("python", ["-c", program])
    job = client.submit(JobRequest("brings", command, ResourceConfig(cpu=0), environment=brings))
    job.wait(PATIENCE)
    assert job.logs() == ("hello world",)


def test_packages_that_a_project_states_are_not_installed(client: RayClient, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("/nowhere/greetings-1.0-py3-none-any.whl\n")
    brings = EnvironmentConfig(workspace=str(tmp_path))
    command = Entrypoint.from_binary("cat", ["requirements.txt"])
    job = client.submit(JobRequest("states", command, ResourceConfig(cpu=0), environment=brings))
    job.wait(PATIENCE)
    assert job.logs() == ("/nowhere/greetings-1.0-py3-none-any.whl",)
