"""Projects that are submitted with jobs, from the user's side."""

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from fray.cluster import StorageCluster
from tests.support.agents import agents, on_cluster
from tests.support.waiting import PATIENCE

FILES = {
    "data.txt": "some data\n",
    "mine/words.py": """
        def count(path):
            with open(path) as file:
                return len(file.read().split())


        def count_in_child(path):
            from fray.cluster import JobRequest, current_cluster

            cluster = current_cluster()
            return cluster.result(cluster.launch(JobRequest("child", lambda: count(path))))
    """,
    "jobs/report.py": """
        import mine.words

        print(mine.words.count("../data.txt"), "words")
    """,
    "driver.py": """
        import sys

        from fray.cluster import Entrypoint, EnvironmentConfig, JobRequest, StorageCluster
        from fray.errors import JobFailed
        from mine.words import count, count_in_child

        cluster = StorageCluster(sys.argv[1])
        calls = [Entrypoint.from_callable(call, args=["data.txt"]) for call in (count, count_in_child)]
        print([cluster.result(job) for job in cluster.launch_many([JobRequest("count", call) for call in calls])])
        try:
            cluster.result(cluster.launch(JobRequest("bare", calls[0], environment=EnvironmentConfig(workspace=""))))
        except JobFailed as error:
            print(error)
    """,
}
"""A project without packages: a module, a data file, a script in a folder of its own, and a driver."""


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of this test's own, also for its agents."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    subprocess.run(["git", "init", "-q", tmp_path / "project"], check=True)
    return tmp_path / "project"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    """A root with an agent."""
    root = str(tmp_path / "root")
    on_cluster(root, lambda core: core.store.learn_clock())
    with agents(root, tmp_path / "work"):
        yield root


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The output of a Python program in a folder; it must succeed."""
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=PATIENCE, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    return done


def test_a_command_runs_where_it_was_submitted_in_a_copy_of_the_project(project: Path, root: str) -> None:
    for how in ("uploaded", "already there"):
        done = run(project / "jobs", "-m", "fray", "run", "--root", root, "--", "python", "report.py")
        assert done.stdout == "2 words\n"
        line, _ = done.stderr.splitlines()
        assert line.startswith(f"fray: workspace {project}: 4 files, ")
        assert line.endswith(f", {how}")
    job = done.stderr.split()[-1]
    status = run(project, "-m", "fray", "status", "--root", root, job).stdout
    assert re.search(r"\nworkspace +4 files, .* B, sha256 [0-9a-f]{12}, starts in jobs\n", status)
    done = run(project, "-m", "fray", "run", "--root", root, "--no-workspace", "--", "ls")
    assert (done.stdout, len(done.stderr.splitlines())) == ("", 1)


@pytest.mark.slow
def test_a_file_names_its_workspace_relative_to_itself(project: Path, root: str) -> None:
    jobs = [
        {"name": "said", "entrypoint": {"command": ["python", "report.py"]}, "environment": {"workspace": "."}},
        {"name": "none", "entrypoint": {"command": ["ls"]}, "environment": {"workspace": None}},
        {"name": "unsaid", "entrypoint": {"command": ["ls"]}},
    ]
    (project / "jobs/jobs.json").write_text(json.dumps(jobs))
    done = run(project, "-m", "fray", "submit", "--root", root, "--json", "jobs/jobs.json")
    assert [line.split(": ")[1] for line in done.stderr.splitlines()] == [
        f"workspace {project}/jobs",
        f"workspace {project}",
    ]
    cluster = StorageCluster(root)
    said, none, unsaid = cluster.wait([job["job"] for job in json.loads(done.stdout)], timeout=PATIENCE)
    assert "No module named 'mine'" in "".join(line.data.decode() for line in cluster.logs(said.job_id))
    assert list(cluster.logs(none.job_id)) == []
    assert [line.data for line in cluster.logs(unsaid.job_id)] == [b"data.txt", b"driver.py", b"jobs", b"mine"]
    cluster.close()


@pytest.mark.slow
def test_a_callable_and_its_children_bring_the_project_of_their_module(project: Path, root: str) -> None:
    counted, *failure = run(project, "driver.py", root).stdout.splitlines()
    assert counted == "[2, 2]"
    assert "module 'mine' is missing here" in failure[0]
    assert 'EnvironmentConfig(workspace="auto")' in failure[0]
