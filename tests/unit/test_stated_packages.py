"""The packages that a project's files state, as far as Fray reads them."""

from pathlib import Path
from typing import Any

import pytest

from fray_agents.environments.cache import EnvironmentFailed
from fray_agents.environments.packages import Packages, is_compiled, lock_mismatch, read_packages
from fray_layouts.spec import EnvironmentSpec, WorkspaceSpec

LOCK = {
    "package": [
        {
            "name": "p",
            "source": {"virtual": "."},
            "metadata": {
                "requires-dist": [
                    {"name": "alpha", "specifier": ">=1,<2"},
                    {"name": "beta", "marker": "extra == 'more'"},
                    {"name": "gamma", "git": "https://host/gamma"},
                ]
            },
        }
    ]
}


def stated(folder: Path, stating: str, **files: str) -> Packages:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    workspace = WorkspaceSpec(blob="blobs/202601/" + "0" * 64, dependencies=stating)
    return read_packages(EnvironmentSpec(workspace=workspace), folder)


@pytest.mark.parametrize(
    ("dependencies", "unknown"),
    [
        (["Alpha<2,>=1"], []),
        (["alpha>=1"], ["alpha>=1"]),
        (["gamma>=3", "p[more]"], []),
        (["delta"], ["delta"]),
        (["no requirement"], ["no requirement"]),
    ],
)
def test_a_lock_knows_each_requirement_in_its_version(dependencies: list[str], unknown: list[str]) -> None:
    project = {"project": {"name": "P", "dependencies": dependencies, "optional-dependencies": {"more": ["beta"]}}}
    assert lock_mismatch(project, LOCK) == unknown


@pytest.mark.parametrize(
    ("project", "compiled"),
    [
        ({}, False),
        ({"build-system": {"requires": ["hatchling"]}}, False),
        ({"build-system": {"requires": ["scikit_build_core>=0.5"]}}, True),
        ({"build-system": {"requires": ["setuptools", "Cython"]}}, True),
        ({"tool": {"setuptools": {"ext-modules": [{"name": "x"}]}}}, True),
    ],
)
def test_a_project_with_compiled_parts_is_recognized_by_its_build_backend(
    project: dict[str, Any], compiled: bool, tmp_path: Path
) -> None:
    assert is_compiled(tmp_path, project) == compiled
    (tmp_path / "setup.py").write_text("setup(ext_modules=[Extension('x')])")
    assert is_compiled(tmp_path, project)


@pytest.mark.parametrize("line", ["-e .", ".", "./libs/x", "libs/x", "x @ file:///x", "x.whl", "--find-links wheels"])
def test_a_requirement_that_is_a_folder_or_a_file_makes_the_environment_the_workspaces_own(
    line: str, tmp_path: Path
) -> None:
    assert stated(tmp_path, "requirements.txt", requirements__txt=f"alpha\n{line} # here\n").needs_folder


@pytest.mark.parametrize(
    "line", ["x", "x[a] >=1", "x @ https://host/x.whl", "git+https://host/x", "--find-links https://host/", "# ./x"]
)
def test_a_requirement_from_an_index_or_an_address_does_not(line: str, tmp_path: Path) -> None:
    assert not stated(tmp_path, "requirements.txt", requirements__txt=line).needs_folder


def test_a_lock_with_packages_of_its_own_is_built_from_the_workspace(tmp_path: Path) -> None:
    lock = '[[package]]\nname = "member"\nsource = { editable = "member" }\n'
    found = stated(tmp_path, "uv.lock", pyproject__toml="", uv__lock=lock)
    assert found.needs_folder
    assert not found.has_project


@pytest.mark.parametrize(
    ("stating", "files", "words"),
    [
        ("pyproject.toml", {}, "no file pyproject.toml"),
        ("uv.lock", {"pyproject__toml": ""}, "no file uv.lock"),
        ("pyproject.toml", {"pyproject__toml": "=["}, "pyproject.toml of the workspace is not TOML"),
        ("pyproject.toml", {"pyproject__toml": "a=" + "[" * 5000}, "pyproject.toml of the workspace is not TOML"),
        (
            "requirements.txt",
            {"requirements__txt": "-r ../../secret"},
            "secret, which states packages, is outside the workspace",
        ),
        (
            "requirements.txt",
            {"requirements__txt": "-r /etc/passwd"},
            "passwd, which states packages, is outside the workspace",
        ),
        ("requirements.txt", {"requirements__txt": "-c " + "x" * 5000}, "cannot be read: File name too long"),
        ("requirements.txt", {"requirements__txt": "-r a\0b"}, "cannot be read: embedded null byte"),
        ("requirements.txt", {"requirements__txt": "-r absent.txt"}, "no file absent.txt"),
    ],
)
def test_files_that_cannot_be_used_are_the_jobs_fault_and_named(
    stating: str, files: dict[str, str], words: str, tmp_path: Path
) -> None:
    with pytest.raises(EnvironmentFailed, match=words):
        stated(tmp_path, stating, **files)


@pytest.mark.parametrize("text", ["project = 1", "[project]\ndependencies = {}", "[tool]\nuv = []\n[build-system]"])
def test_a_project_of_an_odd_form_is_left_to_uv(text: str, tmp_path: Path) -> None:
    assert stated(tmp_path, "pyproject.toml", pyproject__toml=text).commands


@pytest.mark.parametrize("stating", ["uv.lock", "requirements.txt", "pyproject.toml"])
def test_a_package_is_installed_without_its_modules_and_its_scripts_decide_the_environment(
    stating: str, tmp_path: Path
) -> None:
    text = '[project]\nname = "p"\nversion = "1"\nscripts = {run = "p:main"}\n'
    files = {"uv__lock": "", "requirements__txt": "", "pyproject__toml": text}
    assert not stated(tmp_path, stating, **files).projects
    files["pyproject__toml"] += "[build-system]\n"
    found = stated(tmp_path, stating, **files)
    assert [list(project.scripts) for project in found.projects] == [["run"]]
    changed = {**files, "pyproject__toml": files["pyproject__toml"].replace("p:main", "p:other")}
    assert stated(tmp_path, stating, **changed).stated != found.stated


MEMBERS = """
[manifest]
members = ["top", "plain", "script"]
[[package]]
name = "top"
source = { virtual = "." }
[[package]]
name = "plain"
source = { editable = "packages/plain" }
[[package]]
name = "script"
source = { virtual = "packages/script" }
"""


def test_the_members_of_a_uv_workspace_run_from_it(tmp_path: Path) -> None:
    for name in ("plain", "script"):
        (tmp_path / "packages" / name).mkdir(parents=True)
        (tmp_path / "packages" / name / "pyproject.toml").write_text(f'[project]\nname = "{name}"\n')
    member = tmp_path / "packages/plain/pyproject.toml"
    member.write_text('[project]\nname = "plain"\n[build-system]\n')
    found = stated(tmp_path, "uv.lock", pyproject__toml="", uv__lock=MEMBERS)
    assert (found.folders, found.needs_folder) == (("", "packages/plain", "packages/script"), False)
    assert [project.name for project in found.projects] == ["plain"]
    assert {"--all-packages", "--no-install-workspace"} <= set(found.commands[0])
    member.write_text('[project]\nname = "plain"\ndependencies = ["absent"]\n')
    with pytest.raises(EnvironmentFailed, match="it lacks absent"):
        stated(tmp_path, "uv.lock", pyproject__toml="", uv__lock=MEMBERS)
    member.write_text('[project]\nname = "plain"\n[build-system]\nrequires = ["cython"]\n')
    built = stated(tmp_path, "uv.lock", pyproject__toml="", uv__lock=MEMBERS)
    assert (built.folders, built.needs_folder) == (("",), True)
    outside = MEMBERS.replace("packages/plain", "../other")
    with pytest.raises(EnvironmentFailed, match=r"outside the workspace|no file"):
        stated(tmp_path, "uv.lock", pyproject__toml="", uv__lock=outside)


def test_requirements_that_include_one_another_end(tmp_path: Path) -> None:
    found = stated(tmp_path, "requirements.txt", requirements__txt="-r a.txt", a__txt="-r ./requirements.txt\nx")
    assert found.stated == {"requirements": {"requirements.txt": "-r a.txt", "a.txt": "-r ./requirements.txt\nx"}}
