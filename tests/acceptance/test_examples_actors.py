"""The actor examples on a private cluster, and on a cluster with two agents of which one is killed."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from fray import sync
from fray.cluster import JobInfo, StorageCluster
from fray_coordinator.core import open_core
from tests.support.agents import QUICK, agents
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"

LOCAL = {
    "inference_pool": [],
    "rl": [],
    "multislice": ["--pause", "0.01"],
}
LONGER = {
    "inference_pool": ["--repeats", "2000"],
    "rl": ["--rate", "0.3"],
    "multislice": ["--steps", "400", "--pause", "0.02"],
}
UNDER_WAY = {
    "inference_pool": r"^600 of 6000 batches",
    "rl": r"^step 10:",
    "multislice": r"^step [1-9]\d*: .*slice-1",
}


class Running:
    """A running example that prints into a file."""

    def __init__(self, name: str, options: list[str], place: Path, **environ: str) -> None:
        self.output = place / f"{name}.txt"
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **environ}
        with self.output.open("wb") as file:
            command = [sys.executable, str(EXAMPLES / name / "main.py"), *options]
            self.process = subprocess.Popen(command, cwd=place, env=environment, stdout=file, stderr=subprocess.STDOUT)

    @property
    def said(self) -> str:
        return self.output.read_text()

    def has_said(self, pattern: str) -> bool:
        assert self.process.poll() in (None, 0), self.said
        return re.search(pattern, self.said, re.MULTILINE) is not None

    def finished(self) -> str:
        try:
            assert self.process.wait(200) == 0, self.said
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"it has not ended; it said:\n{self.said}") from error
        return self.said

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The output of each example on a cluster of its own."""
    place = tmp_path_factory.mktemp("alone")
    with ExitStack() as stack:
        running = {name: stack.enter_context(Running(name, options, place)) for name, options in LOCAL.items()}
        return {name: example.finished() for name, example in running.items()}


@pytest.fixture(scope="module")
def after_a_kill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, str], list[JobInfo]]]:
    """The output of the examples that share two agents, one of which is killed; and the fate of their jobs."""
    place = tmp_path_factory.mktemp("shared")
    root = (place / "root").as_uri()
    sync.run(_create(root))
    with ExitStack() as stack:
        both = stack.enter_context(agents(root, place / "work", count=2, cores=4))
        cluster = stack.enter_context(StorageCluster(root))
        running = {
            name: stack.enter_context(Running(name, options, place, FRAY_CLUSTER_SPEC=root))
            for name, options in LONGER.items()
        }
        wait_until(lambda: all(example.has_said(UNDER_WAY[name]) for name, example in running.items()))
        busiest, jobs = Counter(info.agent for info in cluster.list_jobs()).most_common(1)[0]
        assert jobs > 1
        next(agent for agent in both if agent.id == busiest).kill()
        said = {name: example.finished() for name, example in running.items()}
        yield said, cluster.list_jobs()


async def _create(root: str) -> None:
    await (await open_core(root, QUICK)).store.close()


def test_every_prompt_is_answered(alone: dict[str, str]) -> None:
    assert "600 of 600 prompts were labelled right, by 3 servers" in alone["inference_pool"]


def test_every_lesson_is_learnt(alone: dict[str, str]) -> None:
    assert "5 of 5 lessons are done right" in alone["rl"]


def test_slices_join_and_leave_and_the_weights_are_found(alone: dict[str, str]) -> None:
    assert "slice-0, slice-1 in training" in alone["multislice"]
    assert error(alone["multislice"]) < 1e-6


def test_a_slice_that_starts_anew_after_all_others_have_ended_does_not_wait_for_them() -> None:
    example = runpy.run_path(str(EXAMPLES / "multislice/main.py"))
    coordinator = example["SliceCoordinator"](example["Config"](patience=0.2))
    step, weights = coordinator.join("slice-1", 0, np.zeros(4))
    with ThreadPoolExecutor(1) as beside:
        assert beside.submit(coordinator.barrier, "slice-1", step, weights).result(200)[0] == 1


def test_an_agent_that_is_killed_changes_no_result(after_a_kill: tuple[dict[str, str], list[JobInfo]]) -> None:
    said, jobs = after_a_kill
    assert "24000 of 24000 prompts were labelled right" in said["inference_pool"]
    assert "5 of 5 lessons are done right" in said["rl"]
    assert error(said["multislice"]) < 1e-6
    assert any(info.attempt > 1 for info in jobs), "what the killed agent had was started anew"


def error(said: str) -> float:
    found = re.search(r"the weights are found to within (\S+)", said)
    assert found is not None, said
    return float(found[1])
