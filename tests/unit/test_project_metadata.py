"""What is installed of a project that runs from its workspace: metadata, entry points and scripts."""

import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest

from fray_agents.environments.cache import EnvironmentFailed
from fray_agents.environments.project_metadata import InstalledProject, installed_project

BUILT = "[build-system]\nrequires = []\n"


def found(folder: Path, text: str) -> InstalledProject | None:
    return installed_project(folder, tomllib.loads(text))


def test_only_a_package_is_installed(tmp_path: Path) -> None:
    named = '[project]\nname = "crop"\n'
    assert found(tmp_path, named) is None
    assert found(tmp_path, f"{named}{BUILT}[tool.uv]\npackage = false\n") is None
    assert found(tmp_path, BUILT) is None
    assert found(tmp_path, f"{named}[tool.uv]\npackage = true\n") is not None
    assert found(tmp_path, f"{named}{BUILT}") is not None


def test_it_is_found_by_the_standard_library_and_its_scripts_run(tmp_path: Path) -> None:
    project = found(
        tmp_path,
        '[project]\nname = "Crop-Tools"\nversion = "1.2"\nrequires-python = ">=3.11"\ndependencies = ["numpy>=2"]\n'
        '[project.scripts]\ncrop-train = "crop.cli:Tool.main"\npython = "crop.cli:main"\n'
        '[project.entry-points.fields]\nwheat = "crop.cli:Tool"\n' + BUILT,
    )
    assert project is not None
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python").symlink_to(sys.executable)
    project.install(tmp_path, programs)
    (tmp_path / "crop_tools-1.2.dist-info/INSTALLER").write_text("uv")
    project.install(tmp_path, programs)
    assert (tmp_path / "crop_tools-1.2.dist-info/INSTALLER").read_text() == "uv", "one of the packages has brought it"
    [installed] = distributions(path=[str(tmp_path)])
    assert (installed.name, installed.version, installed.requires) == ("Crop-Tools", "1.2", ["numpy>=2"])
    assert {(entry.group, entry.name, entry.value) for entry in installed.entry_points} == {
        ("console_scripts", "crop-train", "crop.cli:Tool.main"),
        ("console_scripts", "python", "crop.cli:main"),
        ("fields", "wheat", "crop.cli:Tool"),
    }
    (tmp_path / "crop").mkdir()
    code = "import sys\n\n\nclass Tool:\n    main = staticmethod(lambda: print(sys.argv[1:]) or 3)\n"
    (tmp_path / "crop/cli.py").write_text(code)
    moved = programs.rename(tmp_path / "moved")
    environ = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([moved / "crop-train", "a b"], env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "['a b']\n"), done.stderr


@pytest.mark.parametrize(
    ("files", "settings", "version"),
    [
        ({}, "", "0+unknown"),
        ({"src/crop_x/__init__.py": '"""Fields."""\n__version__ = "2.1"\n'}, "", "2.1"),
        ({"crop_x/__init__.py": "__version__: str = '2.2/..'\n"}, "", "2.2-.."),
        ({"about.py": 'VERSION = "3"\n'}, '[tool.hatch.version]\npath = "about.py"\n', "3"),
        ({}, '[tool.hatch.version]\npath = "../../../etc/passwd"\n', "0+unknown"),
    ],
)
def test_a_computed_version_is_taken_from_the_code(
    files: dict[str, str], settings: str, version: str, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    project = found(tmp_path, f'[project]\nname = "crop-x"\ndynamic = ["version"]\n{BUILT}{settings}')
    assert project is not None
    assert project.version == version


@pytest.mark.parametrize(
    "text",
    [
        'name = "../crop"\n',
        'name = "crop"\nscripts = {"../x" = "a:b"}\n',
        'name = "crop"\nscripts = {x = "a"}\n',
        'name = "crop"\nscripts = {x = "a:b; import os"}\n',
        'name = "crop"\nscripts = {x = 3}\n',
    ],
)
def test_names_that_could_be_paths_or_code_are_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match="not valid"):
        found(tmp_path, f"[project]\n{text}{BUILT}")
