"""The local-development example: the same program on a private cluster and on a root with agents."""

from __future__ import annotations

from pathlib import Path

import pytest

from fray.cluster import StorageCluster
from tests.support.agents import agents, on_cluster
from tests.support.examples import LOCAL_DEVELOPMENT_SAYS, run_example

pytestmark = pytest.mark.slow


def test_on_a_private_cluster() -> None:
    assert run_example("local_development") == LOCAL_DEVELOPMENT_SAYS


def test_on_a_root_with_two_agents_and_nothing_goes_on_afterwards(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    on_cluster(Path(root), lambda core: core.store.learn_clock())
    with agents(root, tmp_path / "work", count=2):
        assert run_example("local_development", FRAY_CLUSTER_SPEC=root) == LOCAL_DEVELOPMENT_SAYS
        cluster = StorageCluster(root)
        cluster.wait([job.job_id for job in cluster.list_jobs()], timeout=200)
