"""The files of jobs by `fray://`, `fray ls`, `fray cat` and `fray cp`."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import fsspec
import pandas
import pytest

from fray.cluster import Entrypoint, EnvironmentConfig, JobRequest, LocalCluster, StorageCluster, current
from fray.filesystem import FrayFileSystem
from tests.support import servers
from tests.support.agents import agents
from tests.support.waiting import PATIENCE

SCRIPT = """
mkdir -p out/deep
printf 'step,loss\\n1,0.5\\n2,0.25\\n' > out/loss.csv
printf weights > out/deep/model
: > out/empty
echo trained; echo warned >&2
"""


@pytest.fixture(scope="module", params=["files", "gcs", pytest.param("s3", marks=pytest.mark.slow)])
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The root of a cluster, and the id of a job there that has succeeded and kept files."""
    place = tmp_path_factory.mktemp("cluster")
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(current, "_clusters", {})  # those that `fray://` opens; actors are looked for in all of them
        if request.param == "files":
            cluster: StorageCluster = stack.enter_context(LocalCluster())
        else:
            server = stack.enter_context((servers.gcs_emulator if request.param == "gcs" else servers.moto)())
            for name, value in server.environment.items():
                patch.setenv(name, value)
            cluster = StorageCluster(f"{server.root}/team/fray")
            cluster.list_jobs()
            stack.enter_context(agents(cluster.root, place / "work"))
        command = Entrypoint.from_binary("sh", ["-c", SCRIPT])
        here = EnvironmentConfig(workspace="")
        job = cluster.launch(JobRequest("train", command, environment=here, outputs=["out/**"]))
        cluster.wait(job, raise_on_failure=True, timeout=PATIENCE)
        yield cluster.root, job
        for opened in current._clusters.values():
            opened.close()


@pytest.fixture
def files(done: tuple[str, str]) -> FrayFileSystem:
    return FrayFileSystem(done[0], skip_instance_cache=True)


def test_other_libraries_read_files_by_url(done: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    root, job = done
    frame = pandas.read_csv(f"fray://{job}/out/loss.csv", storage_options={"root": root})
    assert frame["loss"].tolist() == [0.5, 0.25]
    monkeypatch.setenv("FRAY_CLUSTER_SPEC", root)
    with fsspec.open("fray://train/logs", "rt") as log:
        assert sorted(log) == ["trained\n", "warned\n"]


def test_the_tree_of_a_job(done: tuple[str, str], files: FrayFileSystem, tmp_path: Path) -> None:
    job = done[1]
    assert [(entry["name"], entry["type"]) for entry in files.ls(job)] == [
        (f"{job}/logs", "file"),
        (f"{job}/out", "directory"),
    ]
    inside = [f"{job}/out/{name}" for name in ("deep", "empty", "loss.csv")]
    assert files.ls(f"fray://{job}/out/", detail=False) == inside
    assert files.find(job) == [f"{job}/{name}" for name in ("logs", "out/deep/model", "out/empty", "out/loss.csv")]
    assert files.glob("train/out/*.csv") == ["train/out/loss.csv"]
    assert files.info(f"{job}/out/deep/model") == {"name": f"{job}/out/deep/model", "size": 7, "type": "file"}
    assert (files.isdir(f"{job}/out"), files.isfile(f"{job}/out"), files.exists(f"{job}/other")) == (True, False, False)
    assert job in files.ls("", detail=False)
    files.get(f"{job}/out", str(tmp_path / "got"), recursive=True)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == {
        "got/deep/model",
        "got/empty",
        "got/loss.csv",
    }
    assert (tmp_path / "got/deep/model").read_text() == "weights"


def test_a_part_of_a_file(done: tuple[str, str], files: FrayFileSystem) -> None:
    model = f"{done[1]}/out/deep/model"
    for start, end in [(None, None), (2, 5), (-3, None), (0, -1), (5, 100), (100, None), (4, 2)]:
        assert files.cat_file(model, start, end) == b"weights"[start:end]
    with files.open(model) as opened:
        opened.seek(3)
        assert opened.read(2) == b"gh"
        opened.seek(-1, io.SEEK_END)
        assert opened.read() == b"s"
    assert files.cat_file(f"{done[1]}/out/empty") == b""
    assert files.cat_file(f"{done[1]}/logs", -7) in (b"warned\n", b"rained\n")


def test_errors_name_what_there_is(done: tuple[str, str], files: FrayFileSystem) -> None:
    job = done[1]
    told = r"has no file out/los.csv; there is logs, out/deep/model.*fray://"
    with pytest.raises(FileNotFoundError, match=told) as raised:
        files.open(f"{job}/out/los.csv")
    assert raised.value.errno == errno.ENOENT
    with pytest.raises(FileNotFoundError, match="nobody"):
        files.ls("nobody")
    with pytest.raises(FileNotFoundError, match=f"fray ls {job}/out"):
        files.cat_file(f"{job}/out")


@pytest.mark.parametrize(
    "write",
    [
        lambda files, path: files.open(path, "wb"),
        lambda files, path: files.open(path, "at"),
        lambda files, path: files.pipe_file(path, b""),
        lambda files, path: files.mkdir(path),
        lambda files, path: files.makedirs(path, exist_ok=True),
        lambda files, path: files.rm(path, recursive=True),
        lambda files, path: files.mv(path, path),
        lambda files, path: files.cp_file(path, path),
        lambda files, path: files.put_file(os.devnull, path),
        lambda files, path: files.touch(path),
    ],
)
def test_nothing_can_be_written(write: Any) -> None:
    with pytest.raises(OSError, match="can only be read") as raised:
        write(FrayFileSystem("memory://files"), "job/out/x")
    assert raised.value.errno == errno.EROFS


def fray(*words: str) -> bytes:
    done = subprocess.run([sys.executable, "-m", "fray", *words], capture_output=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("done", ["files"], indirect=True)
def test_the_command_line_lists_prints_and_copies(done: tuple[str, str], tmp_path: Path) -> None:
    root, job = done
    assert fray("ls", "train", "--root", root).decode().split() == ["train/logs", "train/out/"]
    (model,) = json.loads(fray("ls", f"{job}/out/deep", "--json", "--root", root))
    assert model == {"path": f"{job}/out/deep/model", "size": 7, "folder": False}
    assert fray("cat", f"{job}/out/deep/model", "--root", root) == b"weights"
    fray("cp", f"{job}/out", str(tmp_path), "--root", root)
    assert (tmp_path / "out/deep/model").read_text() == "weights"
    fray("cp", f"{job}/out/loss.csv", f"file://{tmp_path}/new/copy.csv", "--root", root)
    assert (tmp_path / "new/copy.csv").read_text().startswith("step,loss")
    outside = tmp_path / "linked/out-side"  # its name begins like the target's
    outside.mkdir(parents=True)
    (tmp_path / "linked/out").mkdir()
    (tmp_path / "linked/out/deep").symlink_to(outside)
    words = [sys.executable, "-m", "fray", "cp", f"{job}/out", str(tmp_path / "linked"), "--root", root]
    refused = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    assert refused.returncode == 1
    assert "a link in it leads to another folder" in refused.stderr
    assert list(outside.iterdir()) == []
