"""Storing workspaces: once for each content, and which project belongs to a job."""

import hashlib
import importlib.util
import json
import os
import pwd
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest

from fray.cluster import LocalCluster, StorageCluster
from fray.errors import InvalidInput
from fray.types import Entrypoint, EnvironmentConfig, JobRequest
from fray.workspace import upload
from fray.workspace.archive import PackedFolder, recall, remember
from fray.workspace.choice import WorkspaceChoice, with_workspaces, workspace_choice
from fray.workspace.projects import Project, find_project, project_of_call, read_project
from fray.workspace.selection import workspace_files
from fray.workspace.upload import StoredWorkspace, store_workspace
from fray_coordinator.core import Core, open_core
from fray_coordinator.jobs.submission import submit
from fray_coordinator.protocol.job_identity import first_difference
from fray_layouts.spec import EnvironmentSpec, JobSpec
from fray_layouts.spec_parsing import parse_spec


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/fray"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of one module, whose files seem to have been changed last a while ago."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nrequires-python = ">=3.11"\ndependencies = ["x"]\n'
    )
    (folder / "work.py").write_text("def work():\n    return 1\n")
    return folder


@pytest.fixture
async def core(tmp_path: Path) -> Core:
    """A participant of a cluster on local files, in real time: packing takes place in threads."""
    return await open_core(str(tmp_path / "root"))


async def stored_later(core: Core, folder: Path, seconds: float = 3600.0) -> StoredWorkspace:
    """Store the workspace as if the files had been changed last this long ago."""
    now = time.time() + seconds
    with mock.patch.object(upload.time, "time", return_value=now):
        return await store_workspace(core, folder)


async def test_it_is_stored_under_its_digest(core: Core, project: Path) -> None:
    stored = await store_workspace(core, project)
    found = await core.store.get(stored.spec.blob)
    assert found is not None
    assert stored.spec.blob.endswith(hashlib.sha256(found.data).hexdigest())
    assert (stored.spec.size, stored.spec.files) == (len(found.data), 2)
    assert (stored.spec.dependencies, stored.python, stored.uploaded) == ("pyproject.toml", ">=3.11", True)
    assert str(stored).startswith(f"workspace {project}: 2 files, ")
    assert str(stored).endswith(f"sha256 {stored.spec.blob[14:26]}, uploaded")


async def test_an_unchanged_folder_is_neither_read_nor_stored_again(tmp_path: Path, core: Core, project: Path) -> None:
    first = await stored_later(core, project)
    other = await open_core(core.root)
    before = other.store.usage.snapshot()
    with mock.patch.object(upload, "packed", side_effect=AssertionError("it was packed again")):
        again = await store_workspace(other, project)
        assert (await store_workspace(other, project)).spec == again.spec
    assert (again.spec, again.python, again.uploaded) == (first.spec, first.python, False)
    after = other.store.usage.snapshot()
    assert (after.writes - before.writes, after.lists - before.lists, after.reads - before.reads) == (0, 1, 0)
    elsewhere = await open_core(str(tmp_path / "elsewhere"))
    assert (await store_workspace(elsewhere, project)).uploaded


async def test_only_another_content_is_stored(core: Core, project: Path) -> None:
    first = await stored_later(core, project)
    os.utime(project / "work.py")
    touched = await stored_later(core, project)
    assert (touched.spec, touched.uploaded) == (first.spec, False)
    (project / "work.py").write_text("def work():\n    return 2\n")
    changed = await stored_later(core, project)
    assert changed.uploaded
    assert changed.spec.blob != first.spec.blob
    (project / "new.py").write_text("")
    assert (await stored_later(core, project)).spec.files == 3


def test_a_folder_that_may_have_changed_unseen_is_not_remembered(project: Path) -> None:
    files = workspace_files(project)
    changed = max(file.status.st_ctime for file in files)
    became = PackedFolder(digest="d", size=1, files=2)
    remember(project, files, became, listed_at=changed)
    assert recall(project, files) is None
    remember(project, files, became, listed_at=changed + 10.0)
    known = recall(project, files)
    assert known is not None
    assert known.digest == "d"
    assert recall(project, files[:1]) is None


async def test_a_cache_that_cannot_be_used_costs_time_only(core: Core, project: Path, cache: Path) -> None:
    await stored_later(core, project)
    (kept,) = (cache / "packed").iterdir()
    for damage in (b"", b"[]", b'{"digest": 1}'):
        kept.write_bytes(damage)
        assert not (await stored_later(core, project)).uploaded
    os.chmod(cache, 0o777)
    assert not (await stored_later(core, project)).uploaded


async def test_a_lowered_limit_holds_for_known_entries(
    core: Core, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stored_later(core, project)
    monkeypatch.setenv("FRAY_WORKSPACE_LIMIT", "10B")
    with pytest.raises(InvalidInput, match="packed it has more than 10 B"):
        await store_workspace(core, project)
    monkeypatch.setenv("FRAY_WORKSPACE_LIMIT", "much")
    with pytest.raises(InvalidInput, match="FRAY_WORKSPACE_LIMIT: 'much'"):
        await store_workspace(core, project)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"work.py": ""}, Project("", "")),
        ({"pyproject.toml": "[tool.ruff]\n"}, Project("", "")),
        ({"pyproject.toml": '[project]\nname = "a"\nrequires-python = ">=3.12"\n'}, Project("", ">=3.12")),
        ({"pyproject.toml": '[project]\ndependencies = ["x"]\n'}, Project("pyproject.toml", "")),
        ({"pyproject.toml": '[project]\ndynamic = ["dependencies"]\n'}, Project("pyproject.toml", "")),
        ({"pyproject.toml": '[project.optional-dependencies]\ntpu = ["x"]\n'}, Project("pyproject.toml", "")),
        ({"pyproject.toml": '[build-system]\nrequires = ["maturin"]\n'}, Project("pyproject.toml", "")),
        ({"pyproject.toml": '[tool.poetry.dependencies]\nx = "1"\n'}, Project("pyproject.toml", "")),
        ({"pyproject.toml": "project = 1\n", "requirements.txt": ""}, Project("requirements.txt", "")),
        ({"uv.lock": "", "requirements.txt": "", "pyproject.toml": ""}, Project("uv.lock", "")),
        (
            {".python-version": "3.12\n", "pyproject.toml": '[project]\nrequires-python = ">=3.11"'},
            Project("", "==3.12.*"),
        ),
        ({"pyproject.toml": "project = {dynamic = 1}\ntool.poetry = 1"}, Project("", "")),
        ({".python-version": "cpython-3.13.2\n"}, Project("", "==3.13.*")),
        ({".python-version": "pypy3.10\n"}, Project("", "")),
        ({".python-version": ""}, Project("", "")),
    ],
)
def test_a_projects_files_give_its_environment(tmp_path: Path, files: dict[str, str], says: Project) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert read_project(tmp_path, files) == says
    assert read_project(tmp_path, []) == Project("", "")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[project", r"workspace: '.*pyproject.toml'.*it is not TOML"),
        (b"\xff", r"workspace: '.*pyproject.toml'.*it is not TOML"),
        (b'[project]\nrequires-python = "^3.11"', r"requires-python in .*pyproject.toml: '\^3.11' .*such as >=3.11"),
        (b"[project]\nrequires-python = 3", r"requires-python in .*pyproject.toml: 3 "),
    ],
)
async def test_a_broken_project_file_is_named(core: Core, project: Path, content: bytes, why: str) -> None:
    (project / "pyproject.toml").write_bytes(content)
    with pytest.raises(InvalidInput, match=why):
        await store_workspace(core, project)


def test_a_project_is_the_nearest_folder_that_looks_like_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "top/service/src"
    inner.mkdir(parents=True)
    assert find_project(tmp_path) is None
    (tmp_path / "top/.git").write_text("")
    assert find_project(inner) == tmp_path / "top"
    (tmp_path / "top/service/uv.lock").write_text("")
    assert find_project(inner) == tmp_path / "top/service"
    monkeypatch.setenv("HOME", str(tmp_path / "top/service"))
    assert find_project(inner) is None
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # nobody knows this user
    assert find_project(inner) == tmp_path / "top/service"


@pytest.mark.parametrize(
    ("settings", "is_member"),
    [
        ('members = ["packages/*"]', True),
        ('members = ["packages/a"]\n', True),
        ('members = ["**"]', True),
        ('members = ["*"]', False),
        ('members = ["packages/*"]\nexclude = ["packages/a"]', False),
        ("members = 3", False),
        ("members = [", False),
    ],
)
def test_a_member_of_a_uv_workspace_is_in_the_project_of_the_workspace(
    settings: str, is_member: bool, tmp_path: Path
) -> None:
    inner = tmp_path / "top/packages/a"
    (inner / "src").mkdir(parents=True)
    (inner / "pyproject.toml").write_text("")
    (tmp_path / "top/pyproject.toml").write_text(f"[tool.uv.workspace]\n{settings}")
    assert find_project(inner / "src") == (tmp_path / "top" if is_member else inner)


def test_requirements_alone_make_a_project_but_not_a_part_of_a_larger_one(tmp_path: Path) -> None:
    inner = tmp_path / "top/docs/src"
    inner.mkdir(parents=True)
    (tmp_path / "top/docs/requirements.txt").write_text("six\n")
    assert find_project(inner) == tmp_path / "top/docs"
    (tmp_path / "top/pyproject.toml").write_text("")
    assert find_project(inner) == tmp_path / "top"


def loaded(project: Path, name: str = "a_module_of_a_project") -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, project / "work.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[name] = module
    return module


def test_a_callable_brings_the_project_of_its_module(tmp_path: Path, project: Path) -> None:
    assert project_of_call(loaded(project).work) == project
    assert project_of_call(partial(partial(loaded(project).work, 1), 2)) == project
    editable = tmp_path / "other"
    editable.mkdir()
    (editable / "work.py").write_text("def work(): pass\n")
    (editable / "pyproject.toml").write_text('[project]\nname = "pytest"\n')  # installed here under this name
    assert project_of_call(loaded(editable, "another_module").work) == editable


def test_a_callable_of_a_package_brings_the_current_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = (
        json.dumps,  # of Python itself
        mock.patch,
        pytest.raises,  # installed, among the packages
        test_a_callable_brings_the_project_of_its_module,  # of Fray's own project, which agents have
        LocalCluster.launch,  # of Fray, called by a program that is a package
    )
    assert [project_of_call(call) for call in calls] == [None] * len(calls)  # the current project is Fray's own
    monkeypatch.chdir(project)
    assert [project_of_call(call) for call in calls] == [project] * len(calls)
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)  # as in a notebook
    assert project_of_call(LocalCluster.launch) == project


async def test_a_module_outside_of_projects_is_named_before_its_job_runs(
    core: Core, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "work.py").write_text("def work(): pass\n")
    monkeypatch.chdir(alone)
    await spec_of(core, WorkspaceChoice(call=json.dumps))
    await spec_of(core, WorkspaceChoice())
    assert not caplog.messages
    await spec_of(core, WorkspaceChoice(call=partial(loaded(alone, "a_lonely_module").work, 1)))
    assert caplog.messages == [
        "job a gets no copy of work.py: its folder is not a project (it has no pyproject.toml, uv.lock, .git or "
        f"requirements.txt); EnvironmentConfig(workspace={str(alone)!r}) copies it"
    ]


async def spec_of(core: Core, choice: WorkspaceChoice | None, job: str = "", **environment: object) -> EnvironmentSpec:
    spec = parse_spec({"name": "a", "entrypoint": {"command": ["true"]}, "environment": environment})
    ((complete,), _) = await with_workspaces(core, [spec], [choice], job)
    return complete.environment


def request(entrypoint: Callable[[], object] | Entrypoint, workspace: str | None) -> JobRequest:
    return JobRequest("job", entrypoint, environment=EnvironmentConfig(workspace=workspace))


async def test_a_request_brings_the_workspace_that_it_asks_for(
    core: Core, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, work = Entrypoint.from_binary("true"), loaded(project).work

    async def brings(entrypoint: Callable[[], object] | Entrypoint, workspace: str | None) -> bool:
        return (await spec_of(core, workspace_choice(request(entrypoint, workspace)))).workspace is not None

    monkeypatch.chdir(project.parent)
    assert not await brings(command, None)
    assert await brings(work, None)
    assert await brings(JobRequest("plain", work).entrypoint, "auto")
    assert not await brings(dict, None)
    assert not await brings(work, "")
    assert await brings(dict, "project")
    with pytest.raises(InvalidInput, match=r"environment.workspace: 'auto' .*no project here .*name the folder"):
        await brings(command, "auto")
    monkeypatch.chdir(project)
    assert await brings(command, "auto")
    assert await brings(command, None)
    assert await brings(dict, None)


async def test_a_job_starts_in_the_project_where_its_submitter_is(
    core: Core, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "jobs/a").mkdir(parents=True)

    async def starts_in(choice: WorkspaceChoice) -> str:
        workspace = (await spec_of(core, choice)).workspace
        assert workspace is not None
        return workspace.folder

    for here, folder in ((project, ""), (project / "jobs/a", "jobs/a")):
        monkeypatch.chdir(here)
        assert await starts_in(WorkspaceChoice()) == folder
        assert await starts_in(WorkspaceChoice(project)) == ""
    monkeypatch.chdir("/")
    assert await starts_in(WorkspaceChoice(call=loaded(project).work)) == ""


async def test_several_jobs_of_one_folder_are_packed_once(core: Core, project: Path) -> None:
    specs = [parse_spec({"name": "a", "entrypoint": {"command": ["true"]}})] * 3
    choices = [WorkspaceChoice(project), None, WorkspaceChoice(project)]
    complete, stored = await with_workspaces(core, specs, choices)
    assert [spec.environment.workspace is not None for spec in complete] == [True, False, True]
    assert complete[0] == complete[2]
    assert complete[0].environment.python == ">=3.11"
    assert len(stored) == 1


async def test_a_child_has_its_parent_s_environment(core: Core, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = await spec_of(core, WorkspaceChoice(project), extras=["tpu"], pip_packages=["y"], docker_image="i:1")
    parent = JobSpec(name="parent", entrypoint=parse_spec(_COMMAND).entrypoint, environment=own)
    (submitted,) = await submit(core, [parent])
    monkeypatch.chdir("/")
    child = await spec_of(core, workspace_choice(JobRequest("c", dict)), submitted.job.id, env_vars={"A": "1"})
    assert child == EnvironmentSpec(
        env_vars={"A": "1"},
        workspace=own.workspace,
        extras=["tpu"],
        pip_packages=["y"],
        python=">=3.11",
        docker_image="i:1",
    )
    assert (await spec_of(core, WorkspaceChoice(), submitted.job.id, extras=["cpu"])).extras == ["cpu"]
    assert await spec_of(core, None, submitted.job.id) == EnvironmentSpec()
    (bare,) = await submit(core, [parse_spec(_COMMAND)])
    monkeypatch.chdir(project)
    assert await spec_of(core, WorkspaceChoice(), bare.job.id) == EnvironmentSpec()
    assert (await spec_of(core, WorkspaceChoice(required=True), bare.job.id)).workspace is not None


_COMMAND = {"name": "a", "entrypoint": {"command": ["true"]}}


def test_resubmission_compares_the_content_of_a_commands_input_and_workspace() -> None:
    def a_job(month: str, digit: int, **entrypoint: object) -> JobSpec:
        workspace = {"blob": f"blobs/{month}/{digit:064x}"}
        return parse_spec({"name": "a", "entrypoint": entrypoint, "environment": {"workspace": workspace}})

    first = a_job("2026-11", 1, command=["true"])
    assert first_difference(first, a_job("2026-12", 1, command=["true"])) == ""
    assert first_difference(first, a_job("2026-11", 2, command=["true"])) == "environment.workspace.blob"
    read, read_later = ({"command": ["cat"], "stdin": f"blobs/{month}/{3:064x}"} for month in ("2026-11", "2026-12"))
    assert first_difference(a_job("2026-11", 1, **read), a_job("2026-11", 1, **read_later)) == ""
    assert first_difference(first, a_job("2026-11", 1, **{**read, "command": ["true"]})) == "entrypoint.stdin"
    call = {"pickle": "eA=="}
    assert first_difference(a_job("2026-11", 1, callable=call), a_job("2026-11", 2, callable=call)) == ""


def test_a_missing_folder_is_refused_where_the_job_is_launched(tmp_path: Path) -> None:
    cluster = StorageCluster(str(tmp_path / "root"))
    with pytest.raises(InvalidInput, match=r"workspace: '/no/where'.*there is no such folder"):
        cluster.launch(request(dict, "/no/where"))
    assert cluster.list_jobs() == []
    cluster.close()


def test_a_private_cluster_packs_nothing() -> None:
    with LocalCluster(use_processes=False) as cluster:
        assert cluster.result(cluster.launch(request(lambda: 5, "/no/where"))) == 5
