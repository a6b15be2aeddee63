"""Agents that are jobs on Ray: on Ray's nodes, they run the examples that need storage, unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fray.backends.ray import RayClient
from fray.client import wait_all
from fray.types import Entrypoint, EnvironmentConfig, JobRequest, ResourceConfig
from tests.support.examples import EXAMPLES, LOCAL_DEVELOPMENT_SAYS, PROJECT_REPORT, project_wheels, run_example
from tests.support.waiting import PATIENCE


@pytest.fixture(scope="module")
def root(client: RayClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster in storage with two agents, each a job on Ray. They find the project's packages without a network."""
    place = tmp_path_factory.mktemp("storage")
    root, cache = str(place / "root"), str(place / "cache")
    packages = {"UV_FIND_LINKS": str(project_wheels(place / "wheels")), "UV_NO_INDEX": "1"}
    environment = EnvironmentConfig(env_vars={**packages, "XDG_CACHE_HOME": cache, "UV_CACHE_DIR": f"{cache}/uv"})
    agent = Entrypoint.from_binary("fray", ["agent", "--root", root, "--cpu", "4"])
    requests = [JobRequest(f"agent-{n}", agent, ResourceConfig(cpu=1), environment) for n in range(2)]
    jobs = [client.submit(request) for request in requests]
    yield root
    for job in jobs:
        job.terminate()
    wait_all(jobs, raise_on_failure=False)


def test_local_development(root: str) -> None:
    assert run_example("local_development", FRAY_CLUSTER_SPEC=root) == LOCAL_DEVELOPMENT_SAYS


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("inference_pool", ["--repeats", "5"], r"60 of 60 prompts were labelled right, by 3 servers"),
        ("rl", [], r"5 of 5 lessons are done right"),
        ("multislice", ["--steps", "100", "--pause", "0.01"], r"the weights are found to within \S+"),
    ],
)
def test_examples_that_take_a_root_run(root: str, name: str, options: list[str], said: str) -> None:
    assert re.search(said, "\n".join(run_example(name, "--root", root, *options)))


def test_the_project(root: str) -> None:
    command = [sys.executable, "-m", "fray", "run", "--root", root, "--", "python", "-m", "reviews", "--top", "3"]
    ran = subprocess.run(command, cwd=EXAMPLES / "project", capture_output=True, text=True, timeout=PATIENCE)
    assert ran.stdout.endswith(PROJECT_REPORT), ran.stderr
