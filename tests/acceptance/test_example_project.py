"""The example of a project: one command runs it on agents that have none of its packages, on files and in a bucket."""

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fray_agents.environments.python_env import KIND
from tests.support import servers
from tests.support.agents import AgentProcess
from tests.support.examples import EXAMPLES, PROJECT_REPORT, project_wheels
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.slow

EXAMPLE = EXAMPLES / "project"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's packages, so that agents need no network."""
    return project_wheels(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(params=["files", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A cluster's root, also for the children of this process."""
    if request.param == "files":
        yield str(tmp_path / "root")
        return
    with servers.moto() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield f"{server.root}/team/fray"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the example that the test may edit."""
    return Path(shutil.copytree(EXAMPLE, tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__")))


@pytest.fixture
def hosts(root: str, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """The caches of two agents, "first" and "second". Each is alone in its pool, as if on a host of its own."""
    for name in ("humanize", "snowballstemmer", "tabulate"):
        assert importlib.util.find_spec(name) is None, "the agents' own environment has it"
    for name, value in {"UV_FIND_LINKS": str(wheels), "UV_NO_INDEX": "1"}.items():
        monkeypatch.setenv(name, value)
    caches, started = [tmp_path / "first", tmp_path / "second"], []
    try:
        for cache in caches:
            monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
            monkeypatch.setenv("UV_CACHE_DIR", str(cache / "uv"))
            started.append(AgentProcess(root, tmp_path / "work" / cache.name, pool=cache.name))
        yield caches
    finally:
        for agent in started:
            agent.kill()


def fray_run(root: str, project: Path, pool: str, *program: str) -> tuple[str, str]:
    """The output of `fray run` in the project's folder: that of the job, and its own messages."""
    run = [sys.executable, "-m", "fray", "run", "--root", root, "--pool", pool]
    command = [*run, "--", *(program or ("python", "-m", "reviews")), "--top", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=project)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def environments(cache: Path) -> int:
    """The number of environments that a host has built."""
    return len(list(cache.glob(f"fray/built/{KIND}/*")))


def test_one_command_runs_the_project_on_agents_that_have_none_of_its_packages(
    root: str, project: Path, hosts: list[Path]
) -> None:
    printed, said = fray_run(root, project, "first")
    assert printed.endswith(PROJECT_REPORT)
    assert "uploaded" in said
    printed, said = fray_run(root, project, "second")
    assert printed.endswith(PROJECT_REPORT)
    assert "already there" in said

    assert fray_run(root, project, "first", "reviews")[0] == printed, "its console script does the same"

    report = project / "src" / "reviews" / "report.py"
    report.write_text(report.read_text().replace('"reviews", "stars"', '"reviews", "mean stars"'))
    for host in hosts:
        printed, _ = fray_run(root, project, host.name)
        assert printed.startswith("word    reviews      mean stars"), "a build has printed, or the edit is not there"
        assert environments(host) == 1
