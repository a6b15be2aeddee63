"""The storage contract: a client that knows only layouts/README.md, against a real agent process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar

import pytest

from fray.client import StorageClient
from fray.cluster import StorageCluster
from fray_coordinator.core import open_core
from fray_coordinator.protocol.job_identity import record_of_drop
from fray_layouts.object_keys import JobKeys
from fray_layouts.records import JobRecord
from fray_layouts.spec_parsing import parse_spec
from tests.acceptance import contract_caller as caller, contract_client as client
from tests.support.actors import Counter
from tests.support.agents import AgentProcess
from tests.support.waiting import PATIENCE, wait_until

T = TypeVar("T")

SETTINGS = {
    "layout": 1,
    "cluster_id": "acceptance",
    "poll_interval": 0.05,
    "pass_interval": 0.2,
    "repair_interval": 5,
    "inbox_patience": 200,  # an agent waits for the rest of a file, even if two passes take longer
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A root with one agent."""
    folder = tmp_path_factory.mktemp("contract")
    settle(folder)
    agent = AgentProcess(str(folder), folder.with_suffix(".work"))
    yield folder
    assert agent.end() == 0


def settle(root: Path) -> None:
    (root / "inbox").mkdir()
    (root / "cluster.json").write_text(json.dumps({**SETTINGS, "addresses": [f"file://{root.resolve()}"]}))


def shell(script: str, **fields: Any) -> dict[str, Any]:
    return {"name": "job", "entrypoint": {"command": ["sh", "-c", script]}, "resources": {"cpu": 0.1}, **fields}


def ended(root: Path, name: str, count: int = 1) -> list[dict[str, Any]]:
    """The `count` jobs made from drops of that name. Waits until all have ended."""

    def look() -> list[dict[str, Any]]:
        jobs = client.jobs_of(root, name)
        return jobs if len(jobs) >= count and all(job["status"] in client.ENDED for job in jobs) else []

    jobs = wait_until(look)
    assert len(jobs) == count
    return jobs


def passes(root: Path, count: int = 2) -> None:
    """Wait for `count` more of the coordinator's passes. The last of two began after this call."""

    def progress() -> int:
        path = root / "coordinator/reconciler.json"
        return int(json.loads(path.read_bytes()).get("progress", 0)) if path.exists() else 0

    wanted = progress() + count
    wait_until(lambda: progress() >= wanted)


def test_a_client_with_the_standard_library_alone_runs_a_job(root: Path) -> None:
    spec = shell("echo out; echo err >&2; printf '{\"answer\": 42}' > $FRAY_RESULT")
    command = [sys.executable, "-I", "-S", client.__file__, str(root), "whole"]
    done = subprocess.run(command, input=json.dumps(spec), capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert json.loads(done.stdout) == {"status": "succeeded", "log": "out\n", "result": {"answer": 42}}
    (job,) = client.jobs_of(root, "whole")
    assert client.log_of(root, job, "stderr") == b"err\n"
    assert not (root / "inbox/whole.json").exists()


def test_logs_and_results_are_exact_bytes_however_large(root: Path) -> None:
    script = (
        "import os, sys; sys.stdout.buffer.write(bytes(range(256)) * 4000 + b'a long line ' * 4000);"
        "open(os.environ['FRAY_RESULT'], 'wb').write(b'\\xff' * 100_000)"
    )
    spec = {"name": "bytes", "entrypoint": {"command": [sys.executable, "-c", script]}}
    client.drop(root, "bytes", json.dumps(spec).encode())
    (job,) = ended(root, "bytes")
    assert client.log_of(root, job) == bytes(range(256)) * 4000 + b"a long line " * 4000
    assert client.result_of(root, job) == b"\xff" * 100_000
    assert job["result"]["key"] == f"work/{job['id']}/1/0/result"


def test_a_failure_is_told_with_its_exit_code_and_its_log(root: Path) -> None:
    client.drop(root, "failing", json.dumps(shell("echo why; exit 3", max_retries_failure=1)).encode())
    (job,) = ended(root, "failing")
    assert (job["status"], job["attempt"], job["failures"]) == ("failed", 2, 2)
    assert (job["exit"]["kind"], job["exit"]["code"]) == ("exited", 3)
    assert [past["exit"]["code"] for past in job["history"]] == [3]
    assert client.log_of(root, job) == b"why\n"


def test_a_bad_spec_is_rejected_with_field_value_and_remedy(root: Path) -> None:
    client.drop(root, "bad", json.dumps(shell("true", prority=1)).encode())
    (rejection,) = wait_until(lambda: client.rejections_of(root, "bad"))
    assert rejection["reason"] == "prority: 1 is not accepted; there is no such field; did you mean priority"
    assert json.loads(rejection["content"])["prority"] == 1
    wait_until(lambda: not (root / "inbox/bad.json").exists())
    assert client.jobs_of(root, "bad") == []


def test_a_file_that_is_copied_slowly_becomes_one_job(root: Path) -> None:
    before = set((root / "jobs").glob("*"))
    spec = json.dumps(shell("echo whole", name="slow")).encode()
    with open(root / "inbox/slow.json", "wb", buffering=0) as file:
        file.write(spec[: len(spec) // 2])
        passes(root)
        assert set((root / "jobs").glob("*")) == before
        file.write(spec[len(spec) // 2 :])
    (job,) = ended(root, "slow")
    assert client.log_of(root, job) == b"whole\n"
    passes(root)
    assert len(set((root / "jobs").glob("*")) - before) == 1


def test_the_same_file_dropped_again_is_another_job(root: Path) -> None:
    spec = json.dumps(shell("true")).encode()
    client.drop(root, "again", spec)
    (first,) = ended(root, "again")
    wait_until(lambda: not (root / "inbox/again.json").exists())
    client.drop(root, "again", spec)
    both = ended(root, "again", count=2)
    assert [job["status"] for job in both] == ["succeeded", "succeeded"]
    assert both[0]["id"] == first["id"] != both[1]["id"]


def test_a_file_overwritten_before_its_admission_runs_as_it_is_now(tmp_path: Path) -> None:
    """An agent read the first version and died before it admitted the job."""
    settle(tmp_path)
    client.drop(tmp_path, "changed", json.dumps(shell("echo first")).encode())
    asyncio.run(_create_unadmitted(tmp_path, "inbox/changed.json"))
    client.drop(tmp_path, "changed", json.dumps(shell("echo second")).encode())
    agent = AgentProcess(str(tmp_path), tmp_path.with_suffix(".work"))
    try:
        first, second = ended(tmp_path, "changed", count=2)
    finally:
        agent.end()
    assert (first["status"], second["status"]) == ("stopped", "succeeded")
    assert "changed" in first["exit"]["message"]
    assert "lease" not in first
    assert client.log_of(tmp_path, second) == b"second\n"


def test_an_actor_is_called_in_json_and_found_again_after_its_process_died(root: Path) -> None:
    def announced(another_than: str = "") -> dict[str, Any] | None:
        with contextlib.suppress(LookupError):
            found = caller.endpoint_of(root, "space", "counter")
            return found if found["nonce"] != another_than else None
        return None

    with StorageCluster(str(root), namespace="space") as cluster:
        StorageClient(cluster).create_actor(Counter, name="counter")
        before = wait_until(announced)
        assert before is not None
        connection = caller.Connection(before, caller.key_of(root))
        assert [connection.call("add", [1]), connection.call("add", [], {"number": 2})] == [1, 3]
        with pytest.raises((OSError, HTTPException)):
            connection.call("die", [])
        after = wait_until(lambda: announced(another_than=before["nonce"]))
        assert after is not None
        assert after["attempt"] == before["attempt"] + 1
        with pytest.raises(ConnectionError):
            caller.Connection({**after, "nonce": before["nonce"]}, caller.key_of(root))
        assert caller.Connection(after, caller.key_of(root)).call("add", [1]) == 1


async def _create_unadmitted(root: Path, key: str) -> None:
    core = await open_core(str(root))
    drop = await core.store.get(key)
    assert drop is not None
    job = record_of_drop(key, drop.version, drop.updated, parse_spec(drop.data))
    await core.records.write(JobKeys.key(job.id), JobRecord, job, None)
    await core.store.close()
