"""A whole job on servers that speak the real protocols of GCS and S3: a file in a bucket runs on a machine."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import fsspec
import pytest

from fray.sync import run
from fray_coordinator.core import open_core
from tests.support import servers
from tests.support.agents import QUICK, agents
from tests.support.gcs_emulator import Emulator
from tests.support.servers import Server
from tests.support.waiting import PATIENCE, wait_until

S3 = pytest.param(servers.moto, id="s3", marks=pytest.mark.slow)


@pytest.fixture(params=[pytest.param(servers.gcs_emulator, id="gcs"), S3])
def root(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A cluster's root in a bucket, with quick settings."""
    start: Callable[[], AbstractContextManager[Server]] = request.param
    with start() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        root = f"{server.root}/team/fray"
        run(_init(root))
        yield root


async def _init(root: str) -> None:
    await (await open_core(root, QUICK)).store.close()


def fray(*words: str) -> str:
    """The output of the command, run in a folder that is no project; it must succeed."""
    command = [sys.executable, "-m", "fray", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_job_and_its_project_go_through_the_command_line(root: str, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "greeting.py").write_text("TEXT = 'from afar'\n")
    with agents(root, tmp_path / "work"):
        say = ["run", "--root", root, "--workspace", str(project), "--", sys.executable, "-c"]
        printed = fray(*say, "import greeting; print(greeting.TEXT)")
        assert printed == "from afar\n"
        (job,) = json.loads(fray("ps", "--all", "--json", "--root", root))
        assert (job["status"], job["attempt"]) == ("succeeded", 1)
        assert "no problems" in fray("fsck", "--root", root)


INTERRUPTED = """
import os, sys
from fray.cluster import Entrypoint, JobRequest, StorageCluster
from fray.queue import FileQueue

cluster = StorageCluster(sys.argv[1])
FileQueue(sys.argv[1], name="items").push(1)
job = cluster.launch(JobRequest("nobody-runs-it", Entrypoint.from_binary("true")))
if os.fork() == 0:
    sys.exit(cluster.poll(job).job_id != job)
assert os.wait()[1] == 0, "the child failed"
cluster.poll(job)

async def wait(core):
    print("waits", flush=True)
    await core.clock.sleep(600)

cluster.run(wait)
"""


def test_an_interrupted_program_and_its_child_end_without_a_word_of_connections(root: str) -> None:
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", INTERRUPTED, root]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE)
    lines = said.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-3] == "KeyboardInterrupt"
    assert lines[-1].startswith(f"fray: 1 job that this program launched goes on; `fray stop --root {root} nobody-")
    assert "nclosed" not in said


@pytest.mark.parametrize("root", [S3], indirect=True)
def test_a_file_dropped_into_the_bucket_with_other_tools_runs(root: str, tmp_path: Path) -> None:
    files, path = fsspec.core.url_to_fs(root, use_listings_cache=False, skip_instance_cache=True)
    spec = {"name": "dropped", "entrypoint": {"command": [sys.executable, "-c", "print('hello')"]}}

    def jobs() -> list[dict[str, Any]]:
        return [json.loads(files.cat_file(key)) for key in files.find(f"{path}/jobs") if key.endswith(".json")]

    with agents(root, tmp_path):
        files.pipe_file(f"{path}/inbox/job.json", json.dumps(spec).encode())
        wait_until(lambda: [job["status"] for job in jobs()] == ["succeeded"])
        (job,) = jobs()
        log = files.cat_file(f"{path}/work/{job['id']}/1/0/log-00000001")
        assert log.endswith(b" stdout F hello\n")
        assert not files.find(f"{path}/inbox")


@pytest.mark.slow
def test_an_agent_lives_through_rights_that_were_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emulator = Emulator()
    with servers.gcs_emulator(emulator) as server:
        monkeypatch.setenv(server.address, server.url)
        run(_init(server.root))
        with agents(server.root, tmp_path) as (agent,):
            say = ["run", "--root", server.root, "--", sys.executable, "-c"]
            assert fray(*say, "print('once')") == "once\n"
            emulator.denied = frozenset(["GET", "POST", "LIST", "DELETE"])
            before = emulator.asked["POST"]
            wait_until(lambda: emulator.asked["POST"] >= before + 3)
            assert agent.process.poll() is None, "the agent ended"
            emulator.denied = frozenset()
            assert fray(*say, "print('again')") == "again\n"
            assert agent.process.poll() is None
