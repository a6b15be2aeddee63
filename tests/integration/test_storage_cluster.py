"""The API on a root of its own, without an agent: what is asked of the storage, and what is refused."""

from __future__ import annotations

import logging
import pickle
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
from fray.errors import FrayError, InvalidInput
from fray_coordinator.errors import ParentNotRunning
from fray_coordinator.jobs import waiting


def a_request(name: str = "job", **fields: Any) -> JobRequest:
    return JobRequest(name, Entrypoint.from_binary("true"), **fields)


@pytest.fixture
def cluster(new_cluster: StorageCluster) -> StorageCluster:
    """Each test has one of its own."""
    return new_cluster


def test_many_jobs_share_the_requests_of_their_submission(cluster: StorageCluster) -> None:
    core = sync.run(cluster._core.get())
    before = core.store.usage.snapshot()
    cluster.launch_many([a_request(pool=pool) for pool in ("a", "b") * 50])
    spent = core.store.usage - before
    assert (spent.writes, spent.lists) == (100 + 100 + 2, 0)  # entries, records, one bell for each pool
    assert spent.reads <= 1, "who may be told of it, once a minute"


def test_nothing_is_submitted_if_one_request_is_wrong(cluster: StorageCluster) -> None:
    with pytest.raises(InvalidInput, match=r"resources\.cpu"):
        cluster.launch_many([a_request(), a_request(resources=ResourceConfig(cpu=-1))])
    assert cluster.list_jobs() == []


def test_who_reserves_is_told_that_it_comes_later(cluster: StorageCluster) -> None:
    with pytest.raises(InvalidInput, match=r"ReservationConfig: .*later release"):
        cluster.create_reservation(ReservationConfig(min_resources=ResourceConfig()))
    with pytest.raises(InvalidInput, match=r"config: .*later release"):
        cluster.create_reservation(None)  # type: ignore[arg-type]


def test_a_group_is_submitted_whole_or_not_at_all(cluster: StorageCluster) -> None:
    refused: list[tuple[str, dict[str, Any], JobRequest]] = [
        (r"resources\.cpu", {}, a_request(resources=ResourceConfig(cpu=-1))),
        ("reservation_id", {"reservation_id": "r-1"}, a_request()),
        ("same_zone", {"group": JobGroupConfig("rl", same_zone=True)}, a_request()),
        ("namespace", {"group": JobGroupConfig("rl", namespace="lab")}, a_request(namespace="own")),
        (r"group\.name", {"group": JobGroupConfig("../rl")}, a_request()),
    ]
    for field, options, wrong in refused:
        with pytest.raises(InvalidInput, match=field):
            cluster.launch_group([a_request(), wrong], **{"group": JobGroupConfig("rl"), **options})
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


def test_waiting_without_an_agent_says_so(
    cluster: StorageCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "WARN_AFTER", 0.0)
    with caplog.at_level(logging.WARNING, "fray"), pytest.raises(TimeoutError):
        cluster.wait(cluster.launch(a_request()), timeout=0.1)
    assert "no live agent in pool default" in caplog.text


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
def test_what_is_no_root_is_refused(root: str) -> None:
    with pytest.raises(FrayError, match="root"):
        StorageCluster(root).list_jobs()


def test_a_root_of_another_layout_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text('{"layout": 99, "op": "x"}')
    with pytest.raises(FrayError, match="layout version 99"):
        StorageCluster(str(tmp_path)).list_jobs()
