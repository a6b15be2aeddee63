"""Environments that uv builds from the requirements of jobs. No network: the tests make the packages as wheels."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import fray
from fray_agents.environments import python_env
from fray_agents.environments.cache import EnvironmentFailed, HostCache, HostUnfit
from fray_agents.environments.python_env import PythonEnvironment, hold_environment, needs_interpreter
from fray_agents.environments.uv import BuildLog, run_uv
from fray_agents.host.capacity import find_uv
from fray_agents.tasks import callable_main
from fray_layouts.spec import JobSpec
from fray_layouts.spec_parsing import parse_spec
from fray_runtime.pickling import OWN_PYTHON
from tests.support.waiting import eventually
from tests.support.wheels import make_wheel, only_wheels

PROJECT = """\
[project]
name = "project"
version = "0.1"
requires-python = ">=3.11"
dependencies = ["alpha>=1"]
[project.optional-dependencies]
more = ["beta"]
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packages: alpha in two releases, beta, and one that Fray needs, too."""
    folder = tmp_path_factory.mktemp("wheels")
    make_wheel(folder, "alpha", "1.0")
    make_wheel(folder, "alpha", "2.0")
    make_wheel(folder, "beta", "1.0", ("alpha<2",))
    make_wheel(folder, "cloudpickle", "99.0")
    return folder


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    cache = tmp_path_factory.getbasetemp() / "uv-cache"
    for name, value in only_wheels(wheels, cache).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def cache(tmp_path: Path) -> HostCache:
    return HostCache(tmp_path / "cache", 10**10)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PROJECT)
    return folder


def job(stating: str | None = None, digest: str = "0" * 64, **environment: Any) -> JobSpec:
    if stating is not None:
        environment["workspace"] = {"blob": f"blobs/202601/{digest}", "dependencies": stating}
    return parse_spec({"name": "j", "entrypoint": {"command": ["x"]}, "environment": environment})


@asynccontextmanager
async def held(cache: HostCache, spec: JobSpec, folder: Path | None = None) -> AsyncIterator[PythonEnvironment]:
    async with AsyncExitStack() as stack:
        yield await hold_environment(cache, spec, folder, stack, None, lambda text: None)


def run(environment: PythonEnvironment, code: str) -> Any:
    """The content of `out` after the environment's interpreter has run the code."""
    done = subprocess.run(
        [environment.python, "-c", f"import json\n{code}\nprint(json.dumps(out))"],
        capture_output=True,
        text=True,
        check=True,
        cwd=os.sep,
    )
    return json.loads(done.stdout)


PACKAGES = (
    "import importlib.metadata, sys\n"
    "own = [path for path in sys.path if path.startswith(sys.prefix)]\n"
    "out = {found.name: found.version for found in importlib.metadata.distributions(path=own)}"
)


def test_a_job_without_requirements_runs_with_the_agents_own_interpreter() -> None:
    assert not any(map(needs_interpreter, (job(), job(""), job(python=">=3.11"))))
    assert all(map(needs_interpreter, (job("uv.lock"), job(pip_packages=["alpha"]), job(python=">=3.99"))))


async def test_a_projects_dependencies_and_extras_are_installed_not_the_project(
    cache: HostCache, project: Path
) -> None:
    async with held(cache, job("pyproject.toml", extras=["more"], pip_packages=["cloudpickle"]), project) as found:
        assert not found.has_project
        assert run(found, PACKAGES) == {"alpha": "1.0", "beta": "1.0", "cloudpickle": "99.0"}
    assert sorted(os.listdir(project)) == ["pyproject.toml"]


@pytest.mark.slow
async def test_a_lock_is_kept_to_and_requirements_come_on_top(cache: HostCache, project: Path) -> None:
    uv = find_uv()
    assert uv is not None
    text = PROJECT.replace("alpha>=1", "alpha>=1,<2")
    (project / "pyproject.toml").write_text(text)
    await run_uv(uv, ["lock"], BuildLog(), cwd=project)
    async with held(cache, job("uv.lock"), project) as found:
        assert run(found, PACKAGES) == {"alpha": "1.0"}
    async with held(cache, job("uv.lock", extras=["more"], pip_packages=["cloudpickle"]), project) as found:
        assert run(found, PACKAGES) == {"alpha": "1.0", "beta": "1.0", "cloudpickle": "99.0"}
    (project / "pyproject.toml").write_text(text.replace('"alpha>=1,<2"', '"alpha>=1,<2", "cloudpickle"'))
    with pytest.raises(EnvironmentFailed, match=r"uv.lock does not match .* lacks cloudpickle; run `uv lock`"):
        async with held(cache, job("uv.lock"), project):
            pass


async def test_requirements_are_followed_into_the_files_that_they_include(cache: HostCache, project: Path) -> None:
    (project / "more").mkdir()
    (project / "requirements.txt").write_text("-r more/extra.txt\nalpha\n")
    (project / "more/extra.txt").write_text("-c limits.txt\nbeta")
    (project / "more/limits.txt").write_text("alpha<2")
    async with held(cache, job("requirements.txt"), project) as found:
        assert run(found, PACKAGES) == {"alpha": "1.0", "beta": "1.0"}
        first = found.python
    (project / "more/limits.txt").write_text("alpha<2,>=1")
    async with held(cache, job("requirements.txt"), project) as found:
        assert found.python != first


async def test_dependency_groups_are_installed_if_asked_for(cache: HostCache, project: Path) -> None:
    groups = '[dependency-groups]\ndev = ["beta", {include-group = "small"}]\nsmall = ["cloudpickle"]\n'
    (project / "pyproject.toml").write_text(PROJECT + groups)
    async with held(cache, job("pyproject.toml"), project) as found:
        assert "beta" not in run(found, PACKAGES)
    async with held(cache, job("pyproject.toml", groups=["dev"]), project) as found:
        assert run(found, PACKAGES).keys() >= {"alpha", "beta", "cloudpickle"}
    uv = find_uv()
    assert uv is not None
    await run_uv(uv, ["lock"], BuildLog(), cwd=project)
    async with held(cache, job("uv.lock", groups=["small"]), project) as found:
        assert run(found, PACKAGES).keys() == {"alpha", "cloudpickle"}


async def test_without_a_project_packages_come_on_top_of_the_agents_own(cache: HostCache) -> None:
    async with held(cache, job(pip_packages=["alpha"])) as found:
        code = "import alpha, pytest, fray; out = [alpha.VERSION, fray.__file__]"
        assert run(found, code) == ["2.0", fray.__file__]


async def test_the_agents_fray_is_there_and_the_projects_packages_win_over_frays_dependencies(
    cache: HostCache, project: Path
) -> None:
    (project / "requirements.txt").write_text("cloudpickle==99.0")
    async with held(cache, job("requirements.txt"), project) as found:
        code = "import fray_agents.tasks.callable_main as own, os, cloudpickle, msgspec\n"
        own, version = run(found, f"{code}out = [os.path.realpath(own.__file__), cloudpickle.VERSION]")
        assert own == callable_main.__file__
        assert version == "99.0"
        code = "import importlib.util\nout = importlib.util.find_spec('pytest') is None"
        assert run(found, code), "what the agent has besides Fray is not for jobs"


async def test_a_changed_line_needs_no_new_environment_and_a_changed_requirement_does(
    cache: HostCache, project: Path
) -> None:
    async with held(cache, job("pyproject.toml"), project) as found:
        first = found.python
    (project / "code.py").write_text("changed = True")
    (project / "pyproject.toml").write_text(PROJECT.replace("0.1", "0.2") + "[tool.other]\nx = 1\n")
    async with held(cache, job("pyproject.toml", "1" * 64), project) as found:
        assert found.python == first
    (project / "pyproject.toml").write_text(PROJECT.replace("alpha>=1", "alpha<2"))
    async with held(cache, job("pyproject.toml"), project) as found:
        assert found.python != first


BACKEND = """\
import os, zipfile
METADATA = ["Metadata-Version: 2.1", "Name: project", "Version: 0.1", "Requires-Dist: alpha>=1"]
WHEEL = ["Wheel-Version: 1.0", "Root-Is-Purelib: true", "Tag: py3-none-any"]
def build_wheel(folder, settings=None, metadata=None):
    open("left-by-the-build", "w").close()
    name = "project-0.1-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as archive:
        archive.writestr("compiled.py", open("source.c").read())
        archive.writestr("project-0.1.dist-info/METADATA", chr(10).join(METADATA))
        archive.writestr("project-0.1.dist-info/WHEEL", chr(10).join(WHEEL))
        archive.writestr("project-0.1.dist-info/RECORD", "")
    return name
"""


@pytest.mark.slow
async def test_a_project_with_compiled_parts_is_built_for_each_workspace(
    cache: HostCache, project: Path, wheels: Path
) -> None:
    make_wheel(wheels, "cython")
    backend = '[build-system]\nrequires = ["Cython"]\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (project / "pyproject.toml").write_text(PROJECT + backend)
    (project / "backend.py").write_text(BACKEND)
    for number in ("1", "2"):
        (project / "source.c").write_text(f"VALUE = {number}")
        async with held(cache, job("pyproject.toml", number * 64), project) as found:
            assert found.has_project
            assert run(found, "import compiled, alpha; out = [compiled.VALUE, alpha.VERSION]") == [int(number), "2.0"]
    assert not (project / "left-by-the-build").exists()


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"pip_packages": ["absent-package"]}, "absent-package was not found"),
        ({"pip_packages": ["alpha>=2", "beta"]}, "beta.* unsatisfiable"),
        ({"pip_packages": ["alpha ==="]}, "Failed to parse"),
        (
            {"extras": ["more"], "pip_packages": ["alpha"]},
            r"extras \(more\) need a uv.lock or pyproject.toml, but nothing states the packages",
        ),
        ({"groups": ["dev"]}, r"groups \(dev\) need a uv.lock or pyproject.toml, but nothing states the packages"),
        ({"python": "==3.99.*"}, rf"==3\.99\.\* wanted, {OWN_PYTHON}.* here.*; install Python ==3\.99\.\* and uv"),
    ],
)
async def test_an_environment_that_no_host_can_build_fails_the_job(
    cache: HostCache, environment: dict[str, Any], words: str
) -> None:
    with pytest.raises(EnvironmentFailed, match=words):
        async with held(cache, job(**environment)):
            pass
    assert [entry for entry in cache.entries() if entry.kind == python_env.KIND] == []


async def test_a_callable_of_another_version_fails_with_both_versions_and_a_remedy(cache: HostCache) -> None:
    spec = job()
    spec.entrypoint.command, spec.entrypoint.callable = (
        [],
        parse_spec({"name": "j", "entrypoint": {"callable": {"pickle": "AA==", "python": "3.99"}}}).entrypoint.callable,
    )
    with pytest.raises(EnvironmentFailed, match=rf"3\.99 .* {OWN_PYTHON}.* here.* submit from Python {OWN_PYTHON}"):
        async with held(cache, spec):
            pass


async def test_an_index_that_does_not_answer_is_the_hosts_trouble(
    cache: HostCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("UV_NO_INDEX", "UV_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(HostUnfit, match=r"127\.0\.0\.1:9.*refused"):
        async with held(cache, job(pip_packages=["alpha"])):
            pass


async def test_the_build_is_told_and_its_output_is_kept(cache: HostCache, tmp_path: Path) -> None:
    told: list[str] = []
    async with AsyncExitStack() as stack:
        spec = job(pip_packages=["alpha"])
        await hold_environment(cache, spec, None, stack, tmp_path / "log", told.append)
    assert " + alpha==2.0" in (tmp_path / "log").read_text().splitlines()
    assert "building the environment, 0 s" in told
    assert any("1 of 1 packages" in text for text in told)


SLEEPER = "#!/bin/sh\necho $$ > pid\nexec sleep 1000\n"


@pytest.fixture
def sleeper(tmp_path: Path) -> Path:
    """A program that never ends, in place of uv. Its pid is in the file `pid`."""
    program = tmp_path / "uv"
    program.write_text(SLEEPER)
    program.chmod(0o755)
    return program


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def test_a_build_that_is_cancelled_ends_uv(sleeper: Path, tmp_path: Path) -> None:
    building = asyncio.create_task(run_uv(str(sleeper), [], BuildLog(), cwd=tmp_path))
    await eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    assert _is_gone(int((tmp_path / "pid").read_text()))


async def test_uv_ends_with_an_agent_that_is_killed(sleeper: Path, tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom fray_agents.environments.uv import BuildLog, run_uv\n"
        "asyncio.run(run_uv(sys.argv[1], [], BuildLog(), cwd=Path(sys.argv[2])))"
    )
    agent = await asyncio.create_subprocess_exec(sys.executable, "-c", code, sleeper, tmp_path)
    try:
        await eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    finally:
        agent.send_signal(signal.SIGKILL)
        await agent.wait()
    await eventually(lambda: _is_gone(int((tmp_path / "pid").read_text())))


async def test_a_uv_that_cannot_be_run_is_the_hosts_trouble(tmp_path: Path) -> None:
    with pytest.raises(HostUnfit, match="uv cannot be run on this host"):
        await run_uv(str(tmp_path / "absent"), [], BuildLog())
