"""A standard project of uv (a build system, a src layout, installed for editing) goes along, however it is launched."""

import os
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from fray_agents.host.capacity import find_uv
from tests.support.agents import agents, on_cluster
from tests.support.waiting import PATIENCE

FILES = {
    "pyproject.toml": """
        [project]
        name = "crop"
        version = "0.3.1"

        [project.scripts]
        crop-train = "crop.train:main"

        [project.entry-points."crop.fields"]
        wheat = "crop.train:Model"

        [build-system]
        requires = ["hatchling"]
        build-backend = "hatchling.build"

        [tool.hatch.build]
        dev-mode-dirs = ["src"]
    """,
    "src/crop/__init__.py": "",
    "src/crop/train.py": """
        import os
        import sys


        class Model:
            def step(self):
                return train(5)


        def train(steps):
            return 2 * steps, os.environ.get("FIELD", "")


        def main():
            from importlib.metadata import entry_points, version

            [field] = entry_points(group="crop.fields")
            print(version("crop"), field.name, field.load() is Model, sys.argv[1:])


        if __name__ == "__main__":
            print("trained", *train(3))
    """,
    "sweep.py": """
        from fray.client import StorageClient
        from fray.cluster import Entrypoint, EnvironmentConfig, JobRequest, current_cluster
        from fray.pool import WorkerPool
        from crop.train import Model, train

        cluster = current_cluster(environment=EnvironmentConfig(env_vars={"FIELD": "wheat"}))
        calls = [Entrypoint.from_callable(train, args=[steps]) for steps in range(3)]
        print("array", [cluster.result(job) for job in cluster.launch_many([JobRequest("t", call) for call in calls])])
        command = cluster.launch(JobRequest("c", Entrypoint.from_binary("python", ["-m", "crop.train"])))
        cluster.wait(command, raise_on_failure=True)
        print("command", [line.data.decode() for line in cluster.logs(command)])
        with WorkerPool(cluster, num_workers=1) as pool:
            print("pool", [future.result() for future in pool.map(train, [3, 4])])
        client = StorageClient(cluster)
        print("actor", client.create_actor(Model, name="model").step())
    """,
}


def uv(folder: Path, *words: str) -> None:
    """Run uv in a project, on the project's own `.venv`."""
    program = find_uv()
    assert program is not None
    environ = {**os.environ, "VIRTUAL_ENV": str(folder / ".venv")}
    subprocess.run([program, *words], cwd=folder, check=True, env=environ)


def made(folder: Path, files: Mapping[str, str], *editable: str) -> Path:
    """A project, with parts that are installed for editing in a `.venv`, which also finds this test's packages."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))
    uv(folder, "venv", "-q", "--python", sys.executable)
    [site] = (folder / ".venv/lib").glob("python*/site-packages")
    (site / "of_this_test.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    parts = [word for part in editable for word in ("-e", part)]
    uv(folder, "pip", "install", "-q", "--offline", "--no-build-isolation", "--no-deps", *parts)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return made(tmp_path / "crop", FILES, ".")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A root with an agent, whose own environment does not have the project."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = str(tmp_path / "root")
    monkeypatch.setenv("FRAY_CLUSTER_SPEC", root)
    on_cluster(root, lambda core: core.store.learn_clock())
    with agents(root, tmp_path / "work"):
        yield root


def run(folder: Path, *words: str, place: str = ".") -> str:
    """The output of the project's Python in a folder of it; it must succeed."""
    done = subprocess.run(
        [folder / ".venv/bin/python", *words], cwd=folder / place, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_jobs_pools_actors_and_commands_get_the_project_and_the_default_environment(project: Path, root: str) -> None:
    assert run(project, "sweep.py").splitlines() == [
        "array [(0, 'wheat'), (2, 'wheat'), (4, 'wheat')]",
        "command ['trained 6 wheat']",
        "pool [(6, 'wheat'), (8, 'wheat')]",
        "actor (10, 'wheat')",
    ]
    assert run(project, "-m", "fray", "run", "--", "python", "-m", "crop.train") == "trained 6 \n"
    said = run(project, "-m", "fray", "run", "--", "crop-train", "--steps", "3")
    assert said == "0.3.1 wheat True ['--steps', '3']\n"
    line = (project / "src/crop/train.py").read_text().replace("version(", '"changed", version(')
    (project / "src/crop/train.py").write_text(line)
    assert run(project, "-m", "fray", "run", "--", "crop-train").startswith("changed 0.3.1 ")


MEMBER = """
    [project]
    name = "NAME"
    version = "0.5"

    [project.scripts]
    run-NAME = "acre.NAME:main"

    [build-system]
    requires = ["hatchling"]
    build-backend = "hatchling.build"

    [tool.hatch.build]
    dev-mode-dirs = ["src"]

    [tool.hatch.build.targets.wheel]
    packages = ["src/acre"]
"""
WORKSPACE = {
    "pyproject.toml": """
        [tool.uv.workspace]
        members = ["packages/*"]
    """,
    "packages/field/pyproject.toml": MEMBER.replace("NAME", "field"),
    "packages/barn/pyproject.toml": MEMBER.replace("NAME", "barn"),
    "packages/field/src/acre/field.py": "def wheat(tons):\n    return tons + 1\n",
    "packages/barn/src/acre/barn.py": """
        import os

        from acre.field import wheat


        def main():
            from importlib.metadata import version

            print(wheat(1), version("field"), os.path.basename(os.getcwd()))
    """,
    "packages/barn/store.py": """
        from fray.cluster import Entrypoint, JobRequest, current_cluster
        from acre.field import wheat

        cluster = current_cluster()
        print(cluster.result(cluster.launch(JobRequest("store", Entrypoint.from_callable(wheat, args=[4])))))
    """,
}
"""A workspace of uv, with two members that share a namespace package; there is no project at its top."""


@pytest.mark.slow
def test_the_members_of_a_uv_workspace_go_along_together(tmp_path: Path, root: str) -> None:
    acre = made(tmp_path / "acre", WORKSPACE, "packages/field", "packages/barn")
    uv(acre, "lock", "-q", "--offline", "--no-build-isolation")
    assert run(acre, "store.py", place="packages/barn") == "5\n"
    assert run(acre, "-m", "fray", "run", "--", "run-barn", place="packages/barn") == "2 0.5 barn\n"
