"""Commands that show a cluster unpickle nothing of its jobs."""

from __future__ import annotations

import base64
import json
import os
import pickle
from pathlib import Path

import pytest
from click.testing import CliRunner

from fray.cli import cli
from fray.cluster import StorageCluster


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.path,)


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """The folder that appears if the result or the exception of a job under `tmp_path / "root"` is unpickled."""
    sprung = tmp_path / "sprung"
    data = base64.b64encode(pickle.dumps(Trap(sprung))).decode()
    root = tmp_path / "root"
    CliRunner().invoke(cli, ["init", str(root)])
    (root / "jobs").mkdir(exist_ok=True)
    for name, status, end in (
        ("good", "succeeded", {"kind": "success", "log_chunks": 0}),
        ("bad", "failed", {"kind": "exception", "message": "x", "data": data, "log_chunks": 0}),
    ):
        spec = {"name": name, "entrypoint": {"callable": {"pickle": data}}}
        times = {"submitted_at": 1.8e9, "started_at": 1.8e9, "ended_at": 1.8e9}
        result = {"encoding": "pickle", "data": data, "size": len(data)}
        record = {"id": f"{name}-1", "op": "x", "spec": spec, "status": status, "exit": end, "result": result, **times}
        (root / "jobs" / f"{name}-1.json").write_text(json.dumps(record))
    return sprung


@pytest.mark.parametrize(
    "words",
    [
        ("ps", "--all"),
        ("status", "good-1"),
        ("status", "bad-1"),
        ("logs", "bad-1"),
        ("logs", "-f", "good-1"),
        ("result", "bad-1"),
        ("fsck",),
        ("doctor",),
        ("coordinate", "--once"),
        ("stop", "bad-1"),
    ],
    ids=" ".join,
)
def test_commands_load_no_pickle(trap: Path, words: tuple[str, ...]) -> None:
    done = CliRunner(env={"FRAY_CLUSTER_SPEC": str(trap.parent / "root")}).invoke(cli, [*words, "--json"])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    assert not trap.exists()


def test_polling_loads_no_pickle_and_waiting_for_a_failure_does(trap: Path) -> None:
    with StorageCluster(str(trap.parent / "root")) as cluster:
        assert cluster.poll("bad-1").status == "failed"
        assert len(cluster.list_jobs()) == 2
        cluster.wait("bad-1")
        assert not trap.exists()
        with pytest.raises(RuntimeError):
            cluster.wait("bad-1", raise_on_failure=True)
    assert trap.exists()


def test_the_result_that_was_asked_for_is_loaded(trap: Path) -> None:
    CliRunner(env={"FRAY_CLUSTER_SPEC": str(trap.parent / "root")}).invoke(cli, ["result", "good-1"])
    assert trap.exists()
