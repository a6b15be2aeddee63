"""Submit to first line of jobs with their own code, then also with packages: new, again, and after an edit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from harness import HERE, PYTHON, Helper, agents, arguments, ray, report, scratch, spread

sys.path.append(str(HERE.parent))

from fray import Entrypoint, EnvironmentConfig, JobRequest, StorageCluster
from fray_agents.environments.python_env import KIND
from fray_agents.host.capacity import find_uv
from tests.support.wheels import make_wheel, only_wheels

FILES = 500
NAMES = ("one", "two", "three")
CLOCK = "import time; print(time.time())"
CLOCK_OF_PACKAGES = f"import {', '.join(NAMES)}; {CLOCK}"

Submit = Callable[[Path, list[str]], float]
"""Submits a job in a folder, with these packages; seconds until its first line."""


class Sources:
    """Folders of source files, and packages, which no cache has seen before."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = count(1)
        self.wheels = directory / "wheels"

    def folder(self) -> Path:
        """A folder of files."""
        number = next(self._numbers)
        folder = self._directory / f"project-{number}"
        for file in range(FILES):
            path = folder / f"part{file % 20}" / f"module{file}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"VALUE_{line} = {number * file + line}\n" for line in range(100)))
        return folder

    def packages(self) -> list[str]:
        """Requirements of three packages."""
        version = f"{next(self._numbers)}.0"
        for name in NAMES:
            make_wheel(self.wheels, name, version)
        return [f"{name}=={version}" for name in NAMES]


def edit(folder: Path) -> None:
    """Change one line of one file."""
    with open(folder / "part0" / "module0.py", "a") as file:
        file.write(f"EDITED = {time.time()}\n")


def steps(submit: Submit, sources: Sources, samples: int, bare: Iterator[float] | None = None) -> dict[str, Any]:
    """Seconds of each step: a new folder, the same again, edited; then the same with packages.

    bare: measures uv alone, in turn with the steps, because a machine's speed changes within minutes.
    """
    taken: dict[str, list[float]] = {}
    for _ in range(samples):
        folder = sources.folder()
        for kind, packages in (("workspace", []), ("packages", sources.packages())):
            for step in ("cold", "warm", "edited"):
                if step == "edited":
                    edit(folder)
                taken.setdefault(f"{kind}_{step}", []).append(submit(folder, packages))
        if bare is not None:
            taken.setdefault("bare_uv", []).append(next(bare))
    return {name: spread(seconds) for name, seconds in taken.items()}


def fray_submit(cluster: StorageCluster, folder: Path, packages: list[str]) -> float:
    program, *arguments = ["python", "-c", CLOCK_OF_PACKAGES] if packages else [PYTHON, "-c", CLOCK]
    environment = EnvironmentConfig(workspace=str(folder), pip_packages=packages)
    begun = time.time()
    job = cluster.launch(JobRequest("job", Entrypoint.from_binary(program, arguments), environment=environment))
    cluster.wait(job, raise_on_failure=True)
    return float(list(cluster.logs(job))[-1].data) - begun


def ray_submit(peer: Helper, wheels: Path, folder: Path, packages: list[str]) -> float:
    files = [str(wheels / f"{package.replace('==', '-')}-py3-none-any.whl") for package in packages]
    seconds: float = peer.ask(f"{folder} {','.join(files)}")
    return seconds


def bare_uv(sources: Sources, directory: Path, samples: int) -> Iterator[float]:
    """Seconds that uv alone needs for an environment with the three packages, and for the first line."""
    uv = str(find_uv())
    for number in range(samples):
        packages, venv = sources.packages(), directory / f"venv-{number}"
        python = str(venv / "bin" / "python")
        begun = time.time()
        subprocess.run([uv, "venv", "--quiet", "--python", PYTHON, venv], check=True)
        subprocess.run([uv, "pip", "install", "--quiet", "--python", python, *packages], check=True)
        said = subprocess.run([python, "-c", CLOCK_OF_PACKAGES], check=True, capture_output=True, text=True)
        yield float(said.stdout) - begun


def run(directory: Path, quick: bool, python: str | None) -> dict[str, Any]:
    samples = 1 if quick else 7
    sources = Sources(directory)
    os.environ.update(only_wheels(sources.wheels, directory / "uv"), XDG_CACHE_HOME=str(directory / "cache"))
    root = directory / "root"
    with agents(root), StorageCluster(str(root)) as cluster:
        folder, packages = sources.folder(), sources.packages()
        fray_submit(cluster, folder, packages)
        before = made(root, directory)
        edit(folder)
        fray_submit(cluster, folder, packages)
        edit_costs = {name: now - before[name] for name, now in made(root, directory).items()}
        fray = steps(partial(fray_submit, cluster), sources, samples, bare_uv(sources, directory, samples))
    alone = fray.pop("bare_uv")
    figures = {"fray": fray, "edit_costs": edit_costs, "bare_uv": alone}
    cold, warm = fray["packages_cold"]["p50_ms"], fray["packages_warm"]["p50_ms"]
    figures["cold_over_bare_uv"] = round(cold / alone["p50_ms"], 2)
    figures["build_over_bare_uv"] = round((cold - warm) / alone["p50_ms"], 2)  # without submission and start
    with ray("ray_environments.py", python) as peer:
        if peer is not None:
            theirs = steps(partial(ray_submit, peer, sources.wheels), sources, max(1, samples // 2))
            ratios = {step: round(found["p50_ms"] / theirs[step]["p50_ms"], 3) for step, found in fray.items()}
            figures |= {"ray": theirs, "ratios": ratios}
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
    "build_over_bare_uv": 1.3,
    "edit_costs": {"uploads": 1, "environments": 0},
}

if __name__ == "__main__":
    options = arguments(__doc__, ["ray"])
    with scratch() as place:
        report("environments", run(place, options.quick, options.ray))
