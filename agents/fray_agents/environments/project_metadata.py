"""What an installed project has besides its modules: metadata, entry points and scripts.

Projects run from their workspaces, so a changed line needs no new environment. These files are all that is installed of
them: `importlib.metadata` finds the project, and its scripts are programs on PATH. They are made from the project's
pyproject.toml; its build backend, which may need the history of its repository, is not run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fray_agents.environments.cache import EnvironmentFailed

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_SCRIPT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_OBJECT = re.compile(r"\s*([A-Za-z_][\w.]*)\s*:\s*([A-Za-z_][\w.]*)\s*(?:\[.*\]\s*)?")
"""Matches a reference to a function, such as "trainer.cli:main", perhaps with extras."""

_VERSION_IN_CODE = re.compile(r"^(?:__version__|VERSION|version)\b[^=\n]*=\s*['\"]([^'\"\n]+)['\"]", re.MULTILINE)
_UNKNOWN_VERSION = "0+unknown"
"""The version of a project whose pyproject.toml says that something computes it, if its code does not state it."""

_SCRIPT = """\
#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")"/python "$0" "$@"
' '''
import sys

from {module} import {first}

if __name__ == "__main__":
    sys.exit({function}())
"""
"""A program for both sh and Python: sh starts the Python beside it, wherever the environment is."""


@dataclass(frozen=True, slots=True)
class InstalledProject:
    """The files of a project that is installed without its modules.

    Attributes:
        metadata: text of METADATA.
        entry_points: text of entry_points.txt.
        scripts: text of each program, by its name.
    """

    name: str
    version: str
    metadata: str
    entry_points: str
    scripts: Mapping[str, str]

    def install(self, site: Path, programs: Path) -> None:
        """Write the files into an environment's folders of packages and programs.

        Existing programs stay, and so does the same version if one of the packages has brought it.
        """
        folder = site / f"{re.sub('[-_.]+', '_', self.name).lower()}-{self.version}.dist-info"
        if folder.exists():
            return
        folder.mkdir()
        (folder / "METADATA").write_text(self.metadata, encoding="utf-8")
        (folder / "INSTALLER").write_text("fray\n", encoding="utf-8")
        (folder / "entry_points.txt").write_text(self.entry_points, encoding="utf-8")
        for name, text in self.scripts.items():
            program = programs / name
            if not os.path.lexists(program):
                program.write_text(text, encoding="utf-8")
                program.chmod(0o755)


def installed_project(folder: Path, pyproject: Mapping[str, Any]) -> InstalledProject | None:
    """The files of the project in a workspace; None if uv would not install it, because it has no build system.

    Raises:
        EnvironmentFailed: its name or one of its entry points is not valid.
    """
    table = toml_table(pyproject, "project")
    name = table.get("name")
    is_package = toml_table(toml_table(pyproject, "tool"), "uv").get("package", "build-system" in pyproject)
    if is_package is not True or not isinstance(name, str):
        return None
    if not _NAME.fullmatch(name):
        raise EnvironmentFailed(f"the project's name in pyproject.toml is not valid: {name[:100]!r}")
    version = _version(folder, pyproject, name)
    scripts, windows = toml_table(table, "scripts"), toml_table(table, "gui-scripts")
    groups = {"console_scripts": scripts, "gui_scripts": windows}
    others = toml_table(table, "entry-points")
    groups |= {group: toml_table(others, group) for group in others}
    headers = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    wanted = [("Requires-Python", table.get("requires-python"))]
    wanted += [("Requires-Dist", requirement) for requirement in _dependencies(table)]
    headers += [f"{header}: {value}" for header, value in wanted if isinstance(value, str) and "\n" not in value]
    sections = (f"[{group}]\n{_lines(names)}" for group, names in groups.items() if names and "\n" not in group)
    programs = {script: _script(script, function) for script, function in {**windows, **scripts}.items()}
    return InstalledProject(name, version, "\n".join(headers) + "\n", "\n".join(sections), programs)


def _dependencies(table: Mapping[str, Any]) -> list[Any]:
    stated = table.get("dependencies")
    return stated if isinstance(stated, list) else []


def _lines(names: Mapping[str, Any]) -> str:
    return "".join(f"{name} = {target}\n" for name, target in names.items() if "\n" not in f"{name}{target}")


def _script(name: str, function: object) -> str:
    """The text of a program that calls a function."""
    found = _OBJECT.fullmatch(function) if isinstance(function, str) else None
    if found is None or not _SCRIPT_NAME.fullmatch(name):
        raise EnvironmentFailed(
            f"pyproject.toml has a script that is not valid: {name[:100]!r} = {str(function)[:100]!r}; give a name "
            'without a folder and a function, such as crop-train = "crop.train:main"'
        )
    return _SCRIPT.format(module=found[1], first=found[2].partition(".")[0], function=found[2])


def _version(folder: Path, pyproject: Mapping[str, Any], name: str) -> str:
    """The version that pyproject.toml states, else the one that the project's code states."""
    stated = toml_table(pyproject, "project").get("version")
    if isinstance(stated, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+!_-]*", stated):
        return stated
    package = re.sub("[-.]+", "_", name)
    said = toml_table(toml_table(toml_table(pyproject, "tool"), "hatch"), "version").get("path")
    places = [said] if isinstance(said, str) else [f"src/{package}/__init__.py", f"{package}/__init__.py"]
    for place in places:
        file = (folder / place).resolve()
        try:
            text = file.read_text(encoding="utf-8") if file.is_relative_to(folder.resolve()) else ""
        except (OSError, ValueError):
            continue
        if found := _VERSION_IN_CODE.search(text):
            return re.sub(r"[^A-Za-z0-9.+!_]", "-", found[1])
    return _UNKNOWN_VERSION


def toml_table(parent: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The table with that name; an empty one if there is none."""
    value = parent.get(name)
    return value if isinstance(value, dict) else {}
