"""The API on a root without an agent: which requests it sends to the storage, and which calls it refuses."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from fray import sync
from fray.cluster import (
    Entrypoint,
    JobGroupConfig,
    JobRequest,
    JobStatus,
    ReservationConfig,
    ResourceConfig,
    StorageCluster,
    open_cluster,
)
from fray.errors import FrayError, InvalidInput, ReservationNotFound
from fray_coordinator.errors import ParentNotRunning


def a_request(name: str = "job", **fields: Any) -> JobRequest:
    return JobRequest(name, Entrypoint.from_binary("true"), **fields)


@pytest.fixture
def cluster(new_cluster: StorageCluster) -> StorageCluster:
    """Each test has one of its own."""
    return new_cluster


def test_many_jobs_share_the_requests_of_their_submission(cluster: StorageCluster) -> None:
    core = sync.run(cluster._core.get())
    before, began = core.store.usage.snapshot(), time.monotonic()
    cluster.launch_many([a_request(pool=pool) for pool in ("a", "b") * 50])
    spent = core.store.usage - before
    assert (spent.writes, spent.lists) == (100 + 100 + 2, 0)  # entries, records, one bell for each pool
    assert spent.reads <= 3 + int(time.monotonic() - began), (
        "who may be told, once a minute; whether there are reservations, once a second; the root"
    )


def test_nothing_is_submitted_if_one_request_is_wrong(cluster: StorageCluster) -> None:
    with pytest.raises(InvalidInput, match=r"resources\.cpu"):
        cluster.launch_many([a_request(), a_request(resources=ResourceConfig(cpu=-1))])
    assert cluster.list_jobs() == []


def test_a_wrong_reservation_is_told_by_its_field(cluster: StorageCluster) -> None:
    two = ResourceConfig(replicas=2)
    refused: list[tuple[str, Any]] = [
        ("config", None),
        ("min_resources", ReservationConfig(two, ResourceConfig(replicas=1))),
        ("max_resources", ReservationConfig(two, ResourceConfig(cpu=2, replicas=4))),
        ("min_resources", ReservationConfig(ResourceConfig(replicas=0), two)),
        (r"min_resources\.cpu", ReservationConfig(ResourceConfig(cpu=-1))),
        ("ttl_seconds", ReservationConfig(two, ttl_seconds=1)),
        ("priority", ReservationConfig(two, priority=1000)),
    ]
    for field, config in refused:
        with pytest.raises(InvalidInput, match=field):
            cluster.create_reservation(config)
    with pytest.raises(ReservationNotFound, match="r-1"):
        cluster.get_reservation("r-1")


def test_a_reservation_reports_its_shortage_and_its_waiting_jobs(cluster: StorageCluster) -> None:
    least, most = ResourceConfig(cpu=2, ram="1g", replicas=2), ResourceConfig(cpu=2, ram="1g", replicas=5)
    held = cluster.create_reservation(ReservationConfig(least, most, ttl_seconds=60))
    inside = cluster.launch(a_request())
    outside = cluster.launch(a_request(resources=ResourceConfig(cpu=4)))
    info = cluster.get_reservation(held)
    assert (info.state, info.allocated_resources.replicas, info.pending_resources.replicas) == ("forming", 0, 5)
    assert (info.pending_resources.cpu, info.pending_resources.ram) == (2, 10**9)
    assert info.jobs == [inside]
    assert cluster.renew_reservation(held, 600).expires_at > info.expires_at + 500
    cluster.release_reservation(held)
    over = cluster.get_reservation(held)
    assert (over.state, over.reason, over.jobs) == ("ended", "released by a program", [])
    assert cluster.poll(inside).status == "stopped"
    assert cluster.poll(outside).status == "pending"
    with pytest.raises(InvalidInput, match="released by a program"):
        cluster.renew_reservation(held)


def test_a_reservation_of_slices_counts_slices(cluster: StorageCluster) -> None:
    two, four = ResourceConfig.with_tpu("v5litepod-16", 2), ResourceConfig.with_tpu("v5litepod-16", 4)
    info = cluster.get_reservation(cluster.create_reservation(ReservationConfig(two, four)))
    assert info.pending_resources.replicas == 4
    assert info.pending_resources.device == two.device
    slice_of_it = cluster.launch(a_request(resources=ResourceConfig.with_tpu("v5litepod-16")))
    assert cluster.get_reservation(info.reservation_id).jobs == [slice_of_it]


def test_a_group_is_submitted_whole_or_not_at_all(cluster: StorageCluster) -> None:
    refused: list[tuple[str, dict[str, Any], JobRequest]] = [
        (r"resources\.cpu", {}, a_request(resources=ResourceConfig(cpu=-1))),
        ("reservation_id", {"reservation_id": 7}, a_request()),
        (r"requests\[1\]\.id", {}, a_request(id="own")),
        ("same_zone", {"group": JobGroupConfig("rl", same_zone=True)}, a_request()),
        ("namespace", {"group": JobGroupConfig("rl", namespace="lab")}, a_request(namespace="own")),
        (r"group\.name", {"group": JobGroupConfig("../rl")}, a_request()),
    ]
    for field, options, wrong in refused:
        with pytest.raises(InvalidInput, match=field):
            cluster.launch_group([a_request(), wrong], **{"group": JobGroupConfig("rl"), **options})
    with pytest.raises(ReservationNotFound, match="r-1"):
        cluster.launch_group([a_request()], JobGroupConfig("rl"), "r-1")
    with pytest.raises(InvalidInput, match="at least one request"):
        cluster.launch_group([], JobGroupConfig("rl"))
    assert cluster.list_jobs() == []
    ids = cluster.launch_group([a_request("b"), a_request("a")], JobGroupConfig("rl", namespace="lab"))
    assert [cluster.poll(job).name for job in ids] == ["b", "a"]
    assert {cluster.poll(job).namespace for job in ids} == {"lab"}


def test_jobs_are_listed_in_order_of_submission(cluster: StorageCluster) -> None:
    ids = [cluster.launch(a_request(name)) for name in "cab"]
    assert [info.job_id for info in cluster.list_jobs()] == ids


def test_a_namespace_of_the_connection_is_given_to_jobs_that_name_none(cluster: StorageCluster) -> None:
    scoped = StorageCluster(cluster.root, namespace="team")
    assert scoped.namespace == "team"
    assert scoped.poll(scoped.launch(a_request())).namespace == "team"
    assert scoped.poll(scoped.launch(a_request(namespace="own"))).namespace == "own"


def test_every_driver_has_a_namespace_of_its_own_and_keeps_it_when_pickled(cluster: StorageCluster) -> None:
    mine, other = cluster.namespace, StorageCluster(cluster.root).namespace
    assert mine.startswith("driver-")
    assert mine != other
    assert pickle.loads(pickle.dumps(cluster)).namespace == mine == cluster.poll(cluster.launch(a_request())).namespace


def test_the_environment_may_name_the_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAY_NAMESPACE", "shared")
    assert StorageCluster("memory://x").namespace == "shared"
    assert StorageCluster("memory://x", namespace="own").namespace == "own"
    monkeypatch.setenv("FRAY_NAMESPACE", "../else")
    with pytest.raises(InvalidInput, match="namespace"):
        StorageCluster("memory://x")


def test_a_pending_job_is_stopped_at_once(cluster: StorageCluster) -> None:
    job = cluster.launch(a_request())
    cluster.terminate(job)
    cluster.terminate(job)
    info = cluster.poll(job)
    assert (info.status, info.error_message) == (JobStatus.STOPPED, "stopped: terminated by a program")


def test_a_parent_must_run(cluster: StorageCluster) -> None:
    with pytest.raises(ParentNotRunning, match="nobody-1"):
        cluster.launch(a_request(parent="nobody-1"))


def test_a_closed_cluster_opens_itself_again(cluster: StorageCluster) -> None:
    with cluster:
        job = cluster.launch(a_request())
    assert cluster.poll(job).status is JobStatus.PENDING


def test_a_plain_path_is_a_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cluster = open_cluster("shared")
    cluster.launch(a_request())
    assert cluster.root == (tmp_path / "shared").as_uri()
    assert (tmp_path / "shared" / "cluster.json").exists()


@pytest.mark.parametrize("root", ["ftp://host/x", "gs://", "nonsense://"])
def test_invalid_roots_are_refused(root: str) -> None:
    with pytest.raises(FrayError, match="root"):
        StorageCluster(root).list_jobs()


def test_a_root_of_another_layout_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text('{"layout": 99, "op": "x"}')
    with pytest.raises(FrayError, match="layout version 99"):
        StorageCluster(str(tmp_path)).list_jobs()
