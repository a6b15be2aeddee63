"""Submit to first line of jobs that bring their code, then their packages too: cold, again, and after an edit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from harness import HERE, PYTHON, Helper, agents, arguments, ray, report, scratch, spread

sys.path.append(str(HERE.parent))

from fray import Entrypoint, EnvironmentConfig, JobRequest, StorageCluster
from fray_agents.environments.python_env import KIND
from fray_agents.host.software import find_uv
from tests.support.wheels import make_wheel, only_wheels

FILES = 500
NAMES = ("one", "two", "three")
CLOCK = "import time; print(time.time())"
CLOCK_OF_PACKAGES = f"import {', '.join(NAMES)}; {CLOCK}"

Submit = Callable[[Path, bool], float]
"""Submits a job in a folder, with its packages or not; seconds until its first line."""


class Projects:
    """Folders of source files, each of them new to everybody, and packages that nobody has yet."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = count(1)
        self.wheels = directory / "wheels"

    def fresh(self) -> Path:
        """A folder with a requirement of three packages."""
        number = next(self._numbers)
        folder = self._directory / f"project-{number}"
        for name in NAMES:
            make_wheel(self.wheels, name, f"{number}.0")
        for file in range(FILES - 1):
            path = folder / f"part{file % 20}" / f"module{file}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"VALUE_{line} = {number * file + line}\n" for line in range(100)))
        (folder / "requirements.txt").write_text("".join(f"{name}=={number}.0\n" for name in NAMES))
        return folder


def edit(folder: Path) -> None:
    """Change one line of one file."""
    with open(folder / "part0" / "module0.py", "a") as file:
        file.write(f"EDITED = {time.time()}\n")


def steps(submit: Submit, projects: Projects, samples: int) -> dict[str, Any]:
    """Each step's seconds: a folder that is new, the same again; with packages: new, again, and with a file changed."""
    taken: dict[str, list[float]] = {}
    for _ in range(samples):
        for kind, packages in (("workspace", False), ("packages", True)):
            folder = projects.fresh()
            for step in ("cold", "warm", "edited"):
                if step == "edited":
                    edit(folder)
                taken.setdefault(f"{kind}_{step}", []).append(submit(folder, packages))
    return {name: spread(seconds) for name, seconds in taken.items()}


def fray_submit(cluster: StorageCluster, folder: Path, packages: bool) -> float:
    if not packages:
        (folder / "requirements.txt").unlink(missing_ok=True)
    program, *arguments = ["python", "-c", CLOCK_OF_PACKAGES] if packages else [PYTHON, "-c", CLOCK]
    begun = time.time()
    request = JobRequest(
        "job", Entrypoint.from_binary(program, arguments), environment=EnvironmentConfig(workspace=str(folder))
    )
    job = cluster.launch(request)
    cluster.wait(job, raise_on_failure=True)
    return float(list(cluster.logs(job))[-1].data) - begun


def ray_submit(peer: Helper, projects: Projects, folder: Path, packages: bool) -> float:
    wheels = []
    if packages:
        required = (folder / "requirements.txt").read_text().split()
        wheels = [str(projects.wheels / f"{line.replace('==', '-')}-py3-none-any.whl") for line in required]
    seconds: float = peer.ask(f"{folder} {','.join(wheels)}")
    return seconds


def bare_uv(projects: Projects, directory: Path, samples: int) -> Iterator[float]:
    """Seconds that uv alone takes: an environment, the three packages, and the first line."""
    for number in range(samples):
        folder, venv = projects.fresh(), directory / f"venv-{number}"
        begun = time.time()
        for command in (
            [find_uv(), "venv", "--quiet", "--python", PYTHON, venv],
            [
                find_uv(),
                "pip",
                "install",
                "--quiet",
                "--python",
                venv / "bin/python",
                "-r",
                folder / "requirements.txt",
            ],
        ):
            subprocess.run(command, check=True)
        said = subprocess.run(
            [venv / "bin/python", "-c", CLOCK_OF_PACKAGES], check=True, capture_output=True, text=True
        )
        yield float(said.stdout) - begun


def run(directory: Path, quick: bool, python: str | None) -> dict[str, Any]:
    samples = 1 if quick else 7
    projects = Projects(directory)
    os.environ.update(only_wheels(projects.wheels, directory / "uv"), XDG_CACHE_HOME=str(directory / "cache"))
    root = directory / "root"
    with agents(root), StorageCluster(str(root)) as cluster:
        fray_submit(cluster, projects.fresh(), True)  # the agent's own packages, once per host
        figures = {"fray": steps(lambda folder, packages: fray_submit(cluster, folder, packages), projects, samples)}
        folder = projects.fresh()
        fray_submit(cluster, folder, True)
        before = made(root, directory)
        edit(folder)
        fray_submit(cluster, folder, True)
        figures["edit_costs"] = {name: now - before[name] for name, now in made(root, directory).items()}
    figures["bare_uv"] = spread(list(bare_uv(projects, directory, samples)))
    with ray("ray_environments.py", python) as peer:
        if peer is not None:
            figures["ray"] = steps(
                lambda folder, packages: ray_submit(peer, projects, folder, packages), projects, max(1, samples // 2)
            )
            figures["ratios"] = {
                step: round(found["p50_ms"] / figures["ray"][step]["p50_ms"], 3)
                for step, found in figures["fray"].items()
            }
    figures["cold_over_bare_uv"] = round(figures["fray"]["packages_cold"]["p50_ms"] / figures["bare_uv"]["p50_ms"], 2)
    return {"files": FILES, "packages": len(NAMES), **figures, "goals": GOALS}


def made(root: Path, directory: Path) -> dict[str, int]:
    """How many archives were uploaded, and how many environments were built, so far."""
    return {
        "uploads": len(list(root.glob("blobs/*/*"))),
        "environments": len(list(directory.glob(f"cache/fray/built/{KIND}/*"))),
    }


GOALS = {
    "workspace_cold_ratio": 0.3,
    "workspace_warm_ratio": 0.1,
    "workspace_warm_ms": 300,
    "cold_over_bare_uv": 1.3,
    "edit_costs": {"uploads": 1, "environments": 0},
}

if __name__ == "__main__":
    options = arguments(__doc__, ["ray"])
    with scratch() as place:
        report("environments", run(place, options.quick, options.ray))
