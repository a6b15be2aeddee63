"""Jobs that bring their code: where it is unpacked, whether attempts share it, and what happens if it is no code."""

from __future__ import annotations

import base64
import signal
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from fray_agents.environments.workspace import KIND
from fray_coordinator.core import Core
from fray_coordinator.jobs.logs import read_logs
from fray_coordinator.jobs.submission import put_blob
from fray_layouts.records import JobRecord
from tests.support.agents import agents, ended, launch, quick_core
from tests.support.archives import file, link, packed
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

PROJECT = packed(
    file("data/words.txt", b"first\n"),
    link("data/latest.txt", "words.txt"),
    file("run.sh", b"#!/bin/sh\ncat data/latest.txt\n", mode=0o755),
    file("src/greeting/__init__.py", b"TEXT = 'hello from the workspace'\n"),
    file("top.py", b"NAME = 'top'\n"),
)


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def below(folder: Path, pattern: str) -> list[str]:
    """Names of the paths that match."""
    return sorted(path.name for path in folder.glob(pattern))


async def log_of(core: Core, job: JobRecord) -> str:
    """The log of the last attempt, without times."""
    return "".join(f"{line}\n" for line in await read_logs(core, job))


async def run(core: Core, workspace: bytes | str, code: str | list[str], **fields: Any) -> JobRecord:
    blob = workspace if isinstance(workspace, str) else await put_blob(core, workspace)
    environment = {"workspace": {"blob": blob}, **fields.pop("environment", {})}
    return await ended(core, await launch(core, code, environment=environment, **fields))


async def test_a_command_starts_in_a_copy_of_its_own(tmp_path: Path, cache_home: Path) -> None:
    code = """
import os
there = sorted(os.listdir())
import greeting, top
print(greeting.TEXT, top.NAME, there, open("data/latest.txt").read().strip())
open("data/words.txt", "w").write("changed")
os.chmod("run.sh", 0)
"""
    async with quick_core(tmp_path / "root") as core:
        with agents(core.root, tmp_path / "work"):
            for _ in range(2):
                job = await run(core, PROJECT, code)
                said = "hello from the workspace top ['data', 'run.sh', 'src', 'top.py'] first\n"
                assert (job.status, await log_of(core, job)) == ("succeeded", said)
            job = await run(core, PROJECT, ["./run.sh"])
            assert await log_of(core, job) == "first\n"
            job = await run(
                core, PROJECT, ["sh", "-c", "echo $PYTHONPATH"], environment={"env_vars": {"PYTHONPATH": "/own"}}
            )
            work, source, own = (await log_of(core, job)).strip().split(":")
            assert (source, own) == (f"{work}/src", "/own")
            assert below(cache_home, f"fray/built/{KIND}/*/*") == ["content", "lock"]
            await eventually(lambda: below(tmp_path, "work/*/*") == [])


async def test_a_callable_imports_from_it_whether_its_process_was_prestarted_or_not(tmp_path: Path) -> None:
    def call() -> list[str]:
        import os

        there = sorted(os.listdir())  # Python may add compiled files
        import greeting
        import top

        return [greeting.TEXT, top.NAME, *there, os.environ["PYTHONPATH"]]

    pickle = base64.b64encode(cloudpickle.dumps((call, (), {}))).decode()
    async with quick_core(tmp_path / "root") as core:
        with agents(core.root, tmp_path / "work"):
            for _ in range(3):
                job = await run(core, PROJECT, "", entrypoint={"callable": {"pickle": pickle}})
                assert job.result is not None, job.exit
                *seen, path = job.result.value
                assert seen == ["hello from the workspace", "top", "data", "run.sh", "src", "top.py"]
                assert path.split(":")[0].endswith(f"{job.id}~1/work")


async def test_a_workspace_that_is_none_fails_the_job_at_once(tmp_path: Path) -> None:
    wrong: list[tuple[bytes | str, str]] = [
        (packed(file("../outside", b"x")), "'../outside' is not a plain relative path"),
        (b"no archive", "it is not a zstd stream"),
        (f"blobs/2026-01/{'0' * 64}", "the job's workspace is gone"),
    ]
    async with quick_core(tmp_path / "root") as core:
        with agents(core.root, tmp_path / "work"):
            for workspace, says in wrong:
                job = await run(core, workspace, "", max_retries_failure=3)
                assert job.exit is not None
                assert (job.status, job.attempt, job.exit.kind) == ("failed", 1, "environment-failed")
                assert says in job.exit.message
            await eventually(lambda: below(tmp_path, "work/*/*") == [])


async def test_an_agent_that_is_killed_while_it_unpacks_leaves_nothing_half(tmp_path: Path, cache_home: Path) -> None:
    large = packed(*[file(f"{number // 100}/{number}", b"x") for number in range(2_000)])
    code = "import os, pathlib\nprint(sum(path.is_file() for path in pathlib.Path().rglob('*')))"
    async with quick_core(tmp_path / "root") as core:
        blob = await put_blob(core, large)
        with agents(core.root, tmp_path / "work") as (agent,):
            code = f"import os, time\nif os.environ['FRAY_ATTEMPT'] == '1': time.sleep(600)\n{code}"
            job_id = await launch(core, code, environment={"workspace": {"blob": blob}})
            await eventually(lambda: below(cache_home, "*/*/*/*/building-*/*") or below(cache_home, "*/*/*/*/content"))
            agent.send(signal.SIGKILL)
        with agents(core.root, tmp_path / "work"):
            job = await ended(core, job_id)
            assert (job.status, job.attempt, await log_of(core, job)) == ("succeeded", 2, "2000\n")
    assert below(cache_home, "fray/built/*/*/*") == ["content", "lock"]


async def test_two_agents_of_a_host_have_one_cache(tmp_path: Path, cache_home: Path) -> None:
    code = "import pathlib\nprint(len(list(pathlib.Path().iterdir())))"
    workspace = packed(*[file(str(number), b"x") for number in range(500)])
    async with quick_core(tmp_path / "root") as core:
        blob = await put_blob(core, workspace)
        with agents(core.root, tmp_path / "work", count=2, cores=1):
            wanted = {"environment": {"workspace": {"blob": blob}}}
            jobs = [await ended(core, job) for job in [await launch(core, code, **wanted) for _ in range(4)]]
            assert [await log_of(core, job) for job in jobs] == ["500\n"] * 4
    assert below(cache_home, "fray/built/*/*/*") == ["content", "lock"]
