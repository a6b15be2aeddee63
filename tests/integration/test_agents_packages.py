"""Jobs with packages of their own, from the claim to the end of the attempt."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from click.testing import CliRunner

from fray.cli.root_command import cli
from fray_agents.environments.python_env import KIND, installed_packages
from fray_coordinator.jobs.submission import put_blob
from fray_layouts.records import JobRecord
from tests.integration.test_agents_workspaces import log_of
from tests.support.agents import agents, ended, job, launch, quick_core
from tests.support.archives import file, packed
from tests.support.waiting import eventually
from tests.support.wheels import make_wheel, only_wheels

PROJECT = b'[project]\nname = "p"\nversion = "0"\ndependencies = ["alpha<2"]\n'


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host whose cache is empty, and whose packages are three wheels."""
    for name, version in (("alpha", "1.0"), ("alpha", "2.0"), ("beta", "1.0")):
        make_wheel(tmp_path / "wheels", name, version)
    for name, value in only_wheels(tmp_path / "wheels", tmp_path / "uv").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def built(host: Path) -> list[Path]:
    return list((host / "cache/fray/built" / KIND).glob("*/content"))


async def test_a_job_runs_with_its_projects_packages_and_an_edit_builds_nothing(host: Path) -> None:
    code = ["python", "-c", "import alpha, code_of_project; print(alpha.VERSION, code_of_project.LINE)"]
    async with quick_core(host / "root") as core:
        with agents(core.root, host / "work"):

            async def run(line: bytes) -> JobRecord:
                archive = packed(file("code_of_project.py", b"LINE = " + line), file("pyproject.toml", PROJECT))
                workspace = {"blob": await put_blob(core, archive), "dependencies": "pyproject.toml"}
                return await ended(core, await launch(core, code, environment={"workspace": workspace}))

            first = await run(b"1")
            assert first.status == "succeeded", first.exit
            assert " + alpha==1.0" in await log_of(core, first), "what uv said is the beginning of the log"
            assert (await log_of(core, first)).splitlines()[-1] == "1.0 1"
            again = await run(b"2")
            assert await log_of(core, again) == "1.0 2\n"
            assert len(built(host)) == 1


@pytest.mark.slow
async def test_a_callable_runs_with_packages_on_top_of_the_agents_own(host: Path) -> None:
    def call() -> list[str]:
        import sys

        import alpha
        import beta

        return [alpha.VERSION, beta.VERSION, "venv" if sys.prefix != sys.base_prefix else ""]

    pickle = base64.b64encode(cloudpickle.dumps((call, (), {}))).decode()
    async with quick_core(host / "root") as core:
        with agents(core.root, host / "work"):
            record = await ended(
                core,
                await launch(
                    core,
                    "",
                    entrypoint={"callable": {"pickle": pickle}},
                    environment={"pip_packages": ["alpha", "beta"]},
                ),
            )
            assert record.status == "succeeded", record.exit
            assert record.result is not None
            assert record.result.value == ["2.0", "1.0", "venv"]


@pytest.mark.slow
async def test_a_package_that_does_not_exist_fails_the_job_at_once_in_uvs_words(host: Path) -> None:
    async with quick_core(host / "root") as core:
        with agents(core.root, host / "work"):
            environment = {"pip_packages": ["no-such-package"]}
            record = await ended(core, await launch(core, "print(1)", environment=environment, max_retries_failure=3))
            assert record.status == "failed"
            assert record.exit is not None
            assert (record.exit.kind, record.attempt) == ("environment-failed", 1)
            assert "no-such-package was not found" in record.exit.message
            assert "no-such-package was not found" in await log_of(core, record)
            assert built(host) == []


@pytest.mark.slow
async def test_a_version_that_no_host_has_fails_the_job_and_names_both(host: Path) -> None:
    async with quick_core(host / "root") as core:
        with agents(core.root, host / "work"):
            record = await ended(
                core, await launch(core, "", entrypoint={"callable": {"pickle": "AA==", "python": "3.99"}})
            )
            assert record.exit is not None
            assert (record.exit.kind, record.attempt) == ("environment-failed", 1)
            assert "3.99 (which pickled the callable) wanted, 3." in record.exit.message


@pytest.mark.slow
async def test_an_index_that_is_away_is_the_hosts_trouble_and_the_job_is_tried_again(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("UV_NO_INDEX", "UV_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    async with quick_core(host / "root") as core:
        with agents(core.root, host / "work"):
            job_id = await launch(core, "print(1)", environment={"pip_packages": ["alpha"]})

            async def requeued() -> JobRecord | None:
                record = await job(core, job_id)
                return record if record.status == "pending" and record.history else None

            record = await eventually(requeued)
            assert record.history[0].exit.kind == "start-failed"
            assert "127.0.0.1:9" in record.history[0].exit.message
            assert record.avoid_hosts


@pytest.mark.slow
async def test_an_environment_that_was_warmed_is_the_one_that_jobs_find(host: Path) -> None:
    project = host / "project"
    project.mkdir()
    (project / "pyproject.toml").write_bytes(PROJECT)

    def fray(*words: str) -> Any:
        done = CliRunner().invoke(cli, ["env", *words, "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    warmed = await asyncio.to_thread(fray, "warm", "--workspace", str(project))
    async with quick_core(host / "root") as core:
        with agents(core.root, host / "work"):
            workspace = {"blob": await put_blob(core, packed(file("pyproject.toml", PROJECT)))}
            environment = {"workspace": {**workspace, "dependencies": "pyproject.toml"}}
            code = ["python", "-c", "import sys; print(sys.executable)"]
            record = await ended(core, await launch(core, code, environment=environment))
            assert await log_of(core, record) == f"{warmed['python']}\n"
    entries = {entry["kind"]: entry["packages"] for entry in await asyncio.to_thread(fray, "ls")}
    assert entries[KIND] == ["alpha==1.0"]
    assert len(await asyncio.to_thread(fray, "clear")) == len(entries)
    assert await asyncio.to_thread(fray, "ls") == []


@pytest.mark.slow
async def test_an_agent_builds_a_pools_environment_before_any_job_asks_for_it(host: Path) -> None:
    project = host / "project"
    project.mkdir()
    (project / "pyproject.toml").write_bytes(PROJECT)

    def fray(*words: str) -> Any:
        done = CliRunner().invoke(cli, ["env", *words, "--root", str(host / "root"), "--pool", "default", "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    async with quick_core(host / "root") as core:
        named = await asyncio.to_thread(fray, "warm", "--workspace", str(project), "--with", "beta")
        assert [(each["pip_packages"], each["workspace"]["dependencies"]) for each in named] == [
            (["beta"], "pyproject.toml")
        ]
        assert await asyncio.to_thread(fray, "ls") == named
        assert built(host) == []
        with agents(core.root, host / "work"):
            (environment,) = await eventually(lambda: asyncio.to_thread(built, host))
        assert installed_packages(environment) == ["alpha==1.0", "beta==1.0"]
        assert await asyncio.to_thread(fray, "clear") == []


def test_a_project_that_states_no_packages_has_no_environment_to_warm(host: Path) -> None:
    (host / "empty").mkdir()
    (host / "empty/code.py").touch()
    done = CliRunner().invoke(cli, ["env", "warm", "--workspace", str(host / "empty")])
    assert done.exit_code == 2
    assert "names no packages; name some with --with" in done.output
