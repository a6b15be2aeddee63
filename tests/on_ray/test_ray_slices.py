"""TPU slices on Ray: two further nodes that pose as the hosts of slices, and functions that run on every host."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from fray.backends.ray.attempt_run import free_slices
from fray.backends.ray.jobs import RayJobs
from fray.cluster import current_replica, set_current_cluster
from fray.errors import JobFailed
from fray.tpu import run_on_pod, run_on_pod_multislice_resumable, run_on_pod_resumable
from tests.support.ray_nodes import another_node
from tests.support.waiting import wait_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])

PAIR, SINGLE = "v4-16", "v4-8"
"""Types of slices, of two hosts and of one."""

HOSTS = (
    {"TPU": 4, "slice-pair": 1, f"TPU-{PAIR}-head": 1, "slice-one": 1, f"TPU-{SINGLE}-head": 1},
    {"TPU": 4, "slice-pair": 1, "slice-two": 1, f"TPU-{SINGLE}-head": 1},
)
"""The resources of the nodes: together they are one slice of two hosts, and each is one of one."""


@pytest.fixture(scope="module")
def cluster(nodes: Any) -> Iterator[RayJobs]:
    """The current cluster: the local Ray with two additional nodes."""
    with another_node(nodes, **HOSTS[0]), another_node(nodes, **HOSTS[1]):
        wait_until(lambda: (len(free_slices(PAIR)), len(free_slices(SINGLE))) == (1, 2))
        made = RayJobs()
        set_current_cluster(made)
        yield made
        set_current_cluster(None)


def where() -> dict[str, str]:
    names = ("TPU_WORKER_ID", "TPU_ACCELERATOR_TYPE", "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID", "FRAY_HOST")
    return {name: os.environ.get(name, "") for name in names}


def test_a_function_runs_on_every_host_of_a_slice(cluster: RayJobs) -> None:
    results = run_on_pod(where, PAIR)
    assert [result["TPU_WORKER_ID"] for result in results] == ["0", "1"]
    assert [result["FRAY_HOST"] for result in results] == ["0", "1"], "a host each"
    assert {result["TPU_ACCELERATOR_TYPE"] for result in results} == {PAIR}
    wait_until(lambda: [found.name for found in free_slices(PAIR)] == ["slice-pair"])


def fail_first_on_worker_1(path: str) -> int:
    if current_replica().index == 1 and not os.path.exists(path):
        Path(path).touch()
        raise OSError("a chip is gone")
    return current_replica().index


def test_all_hosts_begin_again_when_one_fails(cluster: RayJobs, tmp_path: Path) -> None:
    path = str(tmp_path / "failed")
    assert run_on_pod_resumable(lambda: fail_first_on_worker_1(path), PAIR, max_retries_failure=1) == [0, 1]
    with pytest.raises(JobFailed, match=r"replica 1 on .*a chip is gone"):
        run_on_pod(lambda: fail_first_on_worker_1(f"{path}-twice"), PAIR)


def test_several_slices_are_told_of_one_another(cluster: RayJobs) -> None:
    results = run_on_pod_multislice_resumable(where, SINGLE, [1, 2, 4])
    assert [result["MEGASCALE_SLICE_ID"] for result in results] == ["0", "1"], "as many slices as there are"
    assert {result["MEGASCALE_NUM_SLICES"] for result in results} == {"2"}
