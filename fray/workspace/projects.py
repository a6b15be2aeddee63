"""Finds the project around a folder or a module, and reads which packages and which Python it needs."""

import os
import re
import sys
import sysconfig
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from fray_layouts.errors import InvalidInput

_MARKERS = (("pyproject.toml", "uv.lock", ".git"), ("requirements.txt",))
"""Files that mark the top folder of a project. Those of the second kind count where none of the first is above: parts
of a larger project, such as its documentation, often have a requirements.txt of their own."""

_LISTINGS = ("uv.lock", "requirements.txt")
"""Files that state a project's packages more exactly than its pyproject.toml, the most exact first."""

_VERSION = re.compile(r"(?:cpython[-@]?)?(\d+\.\d+)(?:\.\d+)?")
"""A line of `.python-version` that names a version of CPython."""


class Project(NamedTuple):
    """The environment that a project asks for.

    Attributes:
        dependencies: name of the file in its top folder that states its packages; "" if there is none.
        python: a specifier (PEP 440) of the Python versions that it runs on; "" for any.
    """

    dependencies: str
    python: str


def find_project(place: Path) -> Path | None:
    """The top folder of the innermost project that contains `place`; None if it is in no project.

    A member of a uv workspace is in the project of that workspace, whose lock covers it. The home directory and the
    root never count as projects, because they contain all files of a user.
    """
    place = place.absolute()
    barred = (Path(os.path.expanduser("~")), Path(place.anchor))
    folders = list(takewhile(lambda folder: folder not in barred, (place, *place.parents)))
    tops = (folder for kind in _MARKERS for folder in folders if any((folder / marker).exists() for marker in kind))
    top = next(tops, None)
    above = [] if top is None else [folder for folder in folders if folder in top.parents]
    return next((folder for folder in above if top is not None and _has_member(folder, top)), top)


def _has_member(folder: Path, project: Path) -> bool:
    """Whether a folder is the top of a uv workspace in which the project is a member."""
    file = folder / "pyproject.toml"
    if not file.exists():
        return False
    try:
        uv = _tables(_content(file), file).get("tool", {}).get("uv")
    except InvalidInput:  # packing that folder would raise it; here it is only a parent
        return False
    workspace = uv.get("workspace") if isinstance(uv, dict) else None
    settings = workspace if isinstance(workspace, dict) else {}

    def named(setting: str) -> bool:
        patterns = settings.get(setting)
        relative = project.relative_to(folder)
        texts = [pattern for pattern in patterns if isinstance(pattern, str)] if isinstance(patterns, list) else []
        return any(_matches(relative.parts, pattern.strip("/").split("/")) for pattern in texts)

    return named("members") and not named("exclude")


def _matches(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    """Whether a path matches a pattern, in which ** stands for any number of folders."""
    if not patterns:
        return not parts
    if patterns[0] == "**":
        return any(_matches(parts[skipped:], patterns[1:]) for skipped in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], patterns[0]) and _matches(parts[1:], patterns[1:])


def read_project(folder: Path, names: Collection[str]) -> Project:
    """Read the environment that the project in a folder asks for. names: the files that are in its workspace.

    Raises:
        InvalidInput: its pyproject.toml is not TOML, or has a wrong `requires-python`.
    """
    pyproject = folder / "pyproject.toml"
    says = parse_pyproject(_content(pyproject), pyproject) if pyproject.name in names else Project("", "")
    dependencies = next((file for file in _LISTINGS if file in names), says.dependencies)
    pinned = _pinned_python(folder / ".python-version") if ".python-version" in names else ""
    return Project(dependencies, pinned or says.python)


def parse_pyproject(data: bytes, file: Path) -> Project:
    """Read the environment that a `pyproject.toml` asks for. Raises InvalidInput like `read_project`."""
    tables = _tables(data, file)
    asked = tables.get("project", {}).get("requires-python", "")
    if not _is_specifier(asked):
        raise InvalidInput(f"requires-python in {file}", asked, "give Python versions such as >=3.11")
    return Project(file.name if _states_packages(tables) else "", asked)


def project_of_call(function: Callable[..., Any]) -> Path | None:
    """The project that a callable needs: its module's, else the current directory's; None if there is none.

    A module that is installed as a package, not for editing, is in no project of its own. For Fray's own functions,
    which its jobs call, it is the project of the program that launches them. Each agent has Fray, so the folder in
    which Fray itself is developed does not count.
    """
    while isinstance(function, partial):
        function = function.func
    module = getattr(function, "__module__", None) or type(function).__module__
    if module.partition(".")[0] == "fray":
        module = "__main__"
    file = getattr(sys.modules.get(module), "__file__", None)
    return (_project_of_file(file) if file is not None else None) or current_project()


def lonely_module(function: Callable[..., Any]) -> Path | None:
    """The file of a callable's module if that is in no project, so that no job gets it; None for any other callable.

    A script's own code travels with the pickled callable, whether or not the script is in a project.
    """
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__module__", None) or type(function).__module__
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None or name == "__main__":
        return None
    path = Path(file).resolve()
    is_known = any(path.is_relative_to(place) for place in _installed_places()) or find_project(path.parent) is not None
    return None if is_known else path


def current_project() -> Path | None:
    """The project around the current directory, which programs send; None if there is none, or if it is Fray's own."""
    project = find_project(Path.cwd())
    return None if project is None or project == _own_project() else project


@lru_cache(maxsize=1000)
def _project_of_file(file: str) -> Path | None:
    path = Path(file).resolve()
    if any(path.is_relative_to(place) for place in _installed_places()):
        return None
    project = find_project(path.parent)
    return None if project is None or project == _own_project() else project


@lru_cache(maxsize=1)
def _own_project() -> Path | None:
    """The folder in which this Fray is developed; None if Fray is installed as a package."""
    file = Path(__file__).resolve()
    installed = any(file.is_relative_to(place) for place in _installed_places())
    return None if installed else find_project(file.parent)


def _installed_places() -> set[Path]:
    return {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidInput("workspace", str(file), f"it cannot be read ({error.strerror}); make it readable") from None


def _tables(data: bytes, file: Path) -> dict[str, dict[str, Any]]:
    """The top-level tables of a TOML file."""
    import tomllib  # imported late: projects that were packed before do not need it

    try:
        found = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:  # not TOML, or not UTF-8
        raise InvalidInput("workspace", str(file), f"it is not TOML ({error}); correct it") from None
    return {name: table for name, table in found.items() if isinstance(table, dict)}


def _states_packages(pyproject: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a project has anything to install. A file with only the settings of tools has not."""
    project, tools = pyproject.get("project", {}), pyproject.get("tool", {})
    if (
        "build-system" in pyproject
        or pyproject.get("dependency-groups")
        or any(project.get(key) for key in ("dependencies", "optional-dependencies"))
    ):
        return True
    listings = (project.get("dynamic"), tools.get("poetry"))
    return any(isinstance(names, list | dict) and "dependencies" in names for names in listings)


def _is_specifier(text: object) -> bool:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return isinstance(text, str) and bool(SpecifierSet(text) or True)
    except InvalidSpecifier:
        return False


def _pinned_python(file: Path) -> str:
    try:
        lines = file.read_text(errors="replace").split()
    except OSError:
        return ""  # packing the workspace raises the error
    found = _VERSION.fullmatch(lines[0]) if lines else None
    return f"=={found[1]}.*" if found else ""
