"""Jobs with an image: on which hosts they run, with what, and whose fault it is when they cannot.

The engine is a fake on the agents' PATH; `make test-containers` has a real one.
"""

import os
from pathlib import Path

import pytest

from fray_coordinator.core import Core
from fray_coordinator.jobs.submission import put_blob
from fray_coordinator.jobs.why_waiting import why_waiting
from fray_layouts.records import JobRecord
from tests.support import fake_engine
from tests.support.agents import agent_record, agents, ended, job, launch, quick_core
from tests.support.archives import file, packed
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a fake podman, which is on the PATH."""
    folder = tmp_path / "engine"
    folder.mkdir()
    fake_engine.install(folder)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def have(folder: Path, image: str) -> None:
    """Put the image on this host."""
    (folder / "state/images").mkdir(exist_ok=True)
    (folder / "state/images" / image.replace("/", "_")).touch()


async def test_a_command_runs_in_its_image_in_a_copy_of_the_workspace(tmp_path: Path, engine: Path) -> None:
    have(engine, "registry/team/image:1")
    workspace = packed(file("say.sh", b"#!/bin/sh\necho $PWD; echo 5 > $FRAY_RESULT\n", mode=0o755))
    async with quick_core(tmp_path / "root") as core:
        with agents(core.root, tmp_path / "work"):
            environment = {
                "docker_image": "registry/team/image:1",
                "workspace": {"blob": await put_blob(core, workspace)},
            }
            done = await ended(core, await launch(core, ["./say.sh"], environment=environment))
    assert done.exit is not None
    assert (done.status, done.exit.message) == ("succeeded", "")
    assert done.result is not None
    assert done.result.value == 5
    made = (engine / "state/calls").read_text()
    assert f"--volume={tmp_path}/root:{tmp_path}/root" in made
    assert '"pull"' not in made


async def test_an_image_that_is_not_there_is_pulled(tmp_path: Path, engine: Path) -> None:
    async with quick_core(tmp_path / "root") as core:
        with agents(core.root, tmp_path / "work"):
            for _ in range(2):
                done = await ended(core, await launch(core, ["true"], environment={"docker_image": "busybox"}))
                assert done.status == "succeeded"
    assert (engine / "state/calls").read_text().count('"pull", "--", "busybox"') == 1


@pytest.mark.parametrize(
    ("image", "says"),
    [
        ("nobody/has-this", "reading manifest latest in docker.io/nobody/has-this: manifest unknown"),
        ("--privileged", "invalid reference format"),
    ],
)
async def test_an_image_that_does_not_exist_fails_the_job_at_once_in_the_engines_words(
    image: str, says: str, tmp_path: Path, engine: Path
) -> None:
    (engine / "state/refuse-pull").write_text(f"Error: {says}")
    async with quick_core(tmp_path / "root") as core:
        with agents(core.root, tmp_path / "work"):
            submitted = await launch(core, ["true"], environment={"docker_image": image}, max_retries_failure=3)
            done = await ended(core, submitted)
    assert done.exit is not None
    assert (done.status, done.attempt, done.exit.kind, done.exit.log_chunks) == ("failed", 1, "environment-failed", 1)
    assert f"there is no image '{image}'" in done.exit.message
    assert says in done.exit.message


async def test_a_registry_that_does_not_answer_is_the_hosts_trouble(tmp_path: Path, engine: Path) -> None:
    (engine / "state/refuse-pull").write_text("Error: pinging container registry: dial tcp: no such host")
    async with quick_core(tmp_path / "root") as core:
        with agents(core.root, tmp_path / "work"):
            submitted = await launch(core, ["true"], environment={"docker_image": "busybox"})
            tried = await eventually(lambda: retried(core, submitted))
    assert (tried.history[0].exit.kind, len(tried.avoid_hosts)) == ("start-failed", 1)
    assert "no such host" in tried.history[0].exit.message


async def retried(core: Core, job_id: str) -> JobRecord | None:
    """The record after an attempt that another one will follow."""
    found = await job(core, job_id)
    return found if found.history else None


async def test_a_host_without_an_engine_leaves_such_jobs_alone_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    async with quick_core(tmp_path / "root") as core:
        with agents(core.root, tmp_path / "work") as [agent]:
            submitted = await launch(core, ["true"], environment={"docker_image": "busybox"})
            assert (await ended(core, await launch(core, "print(1)"))).status == "succeeded"
            waiting = await job(core, submitted)
            assert waiting.status == "pending"
            why = why_waiting(waiting, [await agent_record(core, agent.id)], core.now())
    assert "podman or docker" in why
