"""A cluster's identity: where it may be used, and that all spellings of a root are one address."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from fray.cluster import StorageCluster
from fray_coordinator.clock import SystemClock
from fray_coordinator.core import open_core
from fray_coordinator.protocol.cluster_identity import why_lost, why_not_here
from fray_coordinator.store.buckets import bucket_address
from fray_layouts.records import ClusterSettings
from tests.support.servers import Server, gcs_emulator, moto

KNOWN = ClusterSettings(cluster_id="one", addresses=["s3://bucket/fray", "s3://other/fray"])


def test_a_cluster_is_used_only_at_its_addresses() -> None:
    assert [why_not_here(KNOWN, address, "root") for address in KNOWN.addresses] == ["", ""]
    told = why_not_here(KNOWN, "s3://bucket/copy", "s3://bucket/copy/")
    assert "holds the cluster of s3://bucket/fray: it is a copy" in told
    assert "fray init --adopt-copy s3://bucket/copy/" in told
    assert "fray init --add-address s3://bucket/copy/" in told
    assert "names no address" in why_not_here(ClusterSettings(cluster_id="one"), "s3://bucket/fray", "root")


def test_a_process_knows_its_cluster_by_id_and_first_address() -> None:
    assert why_lost(KNOWN, replace(KNOWN, addresses=[*KNOWN.addresses, "file:///x"]), "root") == ""
    assert "no cluster at root any more" in why_lost(KNOWN, None, "root")
    assert "another cluster, two, is at root now" in why_lost(KNOWN, replace(KNOWN, cluster_id="two"), "root")
    assert why_lost(KNOWN, replace(KNOWN, addresses=["s3://other/fray"]), "root")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://bucket.s3.eu-west-1.amazonaws.com", "s3://bucket/x"),
        ("https://s3.cn-north-1.amazonaws.com.cn/bucket", "s3://bucket/x"),
        ("http://127.0.0.1:9000/bucket", "s3://bucket/x?endpoint=localhost:9000"),
        ("http://[::1]:9000/bucket", "s3://bucket/x?endpoint=localhost:9000"),
        ("https://Store.Example/bucket", "s3://bucket/x?endpoint=store.example"),
        ("https://notamazonaws.com/bucket", "s3://bucket/x?endpoint=notamazonaws.com"),
    ],
)
def test_only_endpoints_of_others_are_part_of_a_buckets_address(url: str, address: str) -> None:
    assert bucket_address("s3://bucket/x", url, (".amazonaws.com", ".amazonaws.com.cn")) == address


async def settings_at(root: str) -> ClusterSettings:
    core = await open_core(root)
    await core.store.close()
    return core.settings


def test_all_spellings_of_a_local_root_are_one_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real folder")
    monkeypatch.chdir(tmp_path)
    made = asyncio.run(settings_at(str(tmp_path / "link" / "root")))
    assert made.addresses == [f"file://{tmp_path.resolve()}/real folder/root"]
    url = f"file://{tmp_path}/real%20folder/root"
    for spelling in ("real folder/root/", f"{tmp_path}/real folder/../link/root", url):
        assert asyncio.run(settings_at(spelling)) == made


@pytest.mark.parametrize("server", [pytest.param(moto, marks=pytest.mark.slow), gcs_emulator])
def test_all_spellings_of_a_bucket_are_one_address(
    server: Callable[[], AbstractContextManager[Server]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with server() as at:
        for name, value in at.environment.items():
            monkeypatch.setenv(name, value)
        made = asyncio.run(settings_at(f"{at.root}/fray"))
        assert made.addresses == [f"{at.root}/fray?endpoint=localhost:{urlsplit(at.url).port}"]
        assert asyncio.run(settings_at(f"{at.root}/fray/")) == made


@pytest.mark.parametrize("there", [None, b'{"cluster_id": "other", "addresses": ["elsewhere"]}'])
async def test_a_job_waits_for_its_own_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bytes | None
) -> None:
    """Through `current_cluster()`, when it opens the cluster for the first time while another one is at the root."""
    core = await open_core(str(tmp_path))
    await core.store.close()
    own = (tmp_path / "cluster.json").read_bytes()
    looks, loop, real = [], asyncio.get_running_loop(), SystemClock.sleep

    async def sleep(self: SystemClock, seconds: float) -> None:
        if asyncio.get_running_loop() is loop:
            looks.append(sorted(name for name in os.listdir(tmp_path) if name.endswith(".json")))
            (tmp_path / "cluster.json").write_bytes(own)
        else:  # what earlier tests have left in the background
            await real(self, seconds)

    monkeypatch.setattr(SystemClock, "sleep", sleep)
    (tmp_path / "cluster.json").unlink()
    if there is not None:
        (tmp_path / "cluster.json").write_bytes(there)
    job = {"JOB_ID": "job", "ATTEMPT": "1", "NAMESPACE": "own", "TASK_DIR": str(tmp_path), "CLUSTER_SPEC": core.root}
    for name, value in job.items():
        monkeypatch.setenv(f"FRAY_{name}", value)
    opened = await StorageCluster(core.root)._open()
    assert opened.settings.cluster_id == core.settings.cluster_id
    assert looks == [[] if there is None else ["cluster.json"]], "it made no cluster"
    await opened.store.close()
