"""The first day of a person at a terminal, from the installation to a sweep of which some jobs have failed.

What is typed is what README.md shows, and what is read is the screen alone.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import servers
from tests.support.pages import ROOT
from tests.support.terminal import Terminal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

JOBS, MISSING = 500, (17, 230, 499)

SWEEP = """
from pathlib import Path

from fray.cluster import Entrypoint, JobRequest, ResourceConfig, current_cluster

DATA = Path("data").resolve()


def train(number):
    print(f"training {number}")
    return sum(map(int, (DATA / f"{number}.txt").read_text().split()))


cluster = current_cluster()
small = ResourceConfig.with_cpu(0.5)
jobs = cluster.launch_many(
    [JobRequest(f"train-{n}", Entrypoint.from_callable(train, args=(n,)), small) for n in range(@JOBS@)]
)
infos = cluster.wait(jobs)
print("succeeded:", sum(info.status == "succeeded" for info in infos), "of", len(infos))
""".replace("@JOBS@", str(JOBS))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with this project's wheel, as an index would have it."""
    folder = tmp_path_factory.mktemp("wheels")
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    return folder


@pytest.fixture(params=["files", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The URL of an empty root, and the variables that a person sets to reach it."""
    with ExitStack() as stack:
        if request.param == "files":
            yield str(tmp_path / "cluster"), {}
            return
        server = stack.enter_context(servers.moto())
        yield f"{server.root}/fray", server.environment


@pytest.fixture
def terminal(root: tuple[str, dict[str, str]], wheels: Path, tmp_path: Path) -> Iterator[Terminal]:
    """A terminal with Fray installed from its wheel into an environment of its own."""
    place = tmp_path / "project"
    (place / "data").mkdir(parents=True)
    for number in range(JOBS):
        if number not in MISSING:
            (place / "data" / f"{number}.txt").write_text(f"{number} 1\n")
    (place / "sweep.py").write_text(SWEEP)
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TMPDIR": str(tmp_path), **root[1]}
    with Terminal(place, environ) as terminal:
        terminal.run(f"{sys.executable} -m venv ../env && . ../env/bin/activate")
        terminal.run(f"pip install --no-index --no-deps --find-links {wheels} fray-cluster")
        assert terminal.code == 0, terminal.seen
        (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
        others = sysconfig.get_path("purelib")  # these are Fray's dependencies: nothing is downloaded
        (packages / "others.pth").write_text(f"{others}\n")
        yield terminal


def ids(screen: str, name: str = "train") -> list[str]:
    return re.findall(rf"^({name}-[\w-]+-1\w{{14}}) ", screen, re.MULTILINE)


def test_from_the_installation_to_a_sweep_whose_failures_are_explained_and_tried_again(
    terminal: Terminal, root: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    run = terminal.run
    assert str(tmp_path / "env") in run("which fray")
    assert "hello" in run("""fray run -- python -c 'print("hello")'""")

    run(f"export FRAY_CLUSTER_SPEC={root[0]}")
    run("fray doctor")
    assert terminal.code == 0, terminal.seen

    terminal.type("fray run -- true\n")  # nothing runs yet: the output says so, and the command can be left
    assert terminal.until(r"fray: waiting: (.*)\n")
    terminal.type("\x03")
    terminal.until(r"\(no leaves it running\)")
    terminal.type("y\n")
    terminal.until("@ready 130@")

    run("fray agent > agent.log 2>&1 &")
    terminal.type("fray run -- python -c 'print(6 * 7)'\n")
    terminal.until("\n42\n")
    terminal.until("@ready 0@")
    assert "live" in run("fray agents")

    terminal.type("python sweep.py\n")
    terminal.until(rf"fray: \d+ of {JOBS} jobs done")
    screen = terminal.until("@ready 0@")
    assert len(re.findall(r"^\(train-\d+-\w+\) training \d+$", screen, re.MULTILINE)) > JOBS / 2  # their output
    assert f"succeeded: {JOBS - len(MISSING)} of {JOBS}" in screen

    screen = run("fray ps --state failed")
    failed = ids(screen)
    assert len(failed) == len(MISSING)
    assert "No such file or directory" in " ".join(screen.split())
    job = next(job for job in failed if job.startswith("train-17-"))
    screen = run(f"fray status {job}")
    assert "FileNotFoundError" in screen
    assert "data/17.txt" in screen
    assert "training 17" in run(f"fray logs {job}")

    for number in MISSING:
        run(f"echo {number} 1 > data/{number}.txt")
    again = ids(run("fray retry --failed"))
    assert len(again) == len(MISSING)
    for job in again:
        terminal.type(f"fray logs -f {job}\n")
        terminal.until("training ")
        terminal.until("@ready 0@")
    numbers = {int(re.findall(r"^train-(\d+)", job)[0]): job for job in again}
    assert "18" in run(f"fray result {numbers[17]}")

    assert ids(run("fray ps")) == []
    run("kill %1; wait")
    assert "asked to leave" in (tmp_path / "project" / "agent.log").read_text()
    assert not re.search("unexpected|Unclosed|Aborted", terminal.seen)
