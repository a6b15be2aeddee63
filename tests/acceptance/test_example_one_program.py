"""The example that runs on every backend: here on threads and on a root with agents; on Ray in `tests/on_ray`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.agents import agents, on_cluster
from tests.support.examples import ONE_PROGRAM_SAYS, run_example


def test_on_threads() -> None:
    assert run_example("one_program") == ONE_PROGRAM_SAYS


@pytest.mark.slow
def test_on_a_root_with_two_agents(tmp_path: Path) -> None:
    root = tmp_path / "root"
    on_cluster(root, lambda core: core.store.learn_clock())
    with agents(str(root), tmp_path / "work", count=2, cores=4):
        assert run_example("one_program", FRAY_CLUSTER_SPEC=str(root)) == ONE_PROGRAM_SAYS
