"""The packages that a job asks for: what its project's files state, and the commands for uv.

This module reads the files only as far as the environment's key needs it, and to see whether the project itself must be
built; uv interprets them. They are users' files, so the job's failure reason says what is wrong with them.
"""

from __future__ import annotations

import errno
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fray_agents.environments.cache import EnvironmentFailed
from fray_agents.environments.project_metadata import InstalledProject, installed_project, toml_table
from fray_layouts.spec import EnvironmentSpec

MAX_STATED_BYTES = 32 * 1024**2
"""Most bytes of a file that states packages: the locks of the largest projects have some 5 MB."""

_COMPILING = re.compile(
    r"cffi|cython|hatch-mypyc|maturin|meson-python|mypy|nanobind|pybind11|scikit-build(-core)?|setuptools-rust"
)
"""Build requirements that show that a project has compiled parts."""

_EXTENSIONS = re.compile(r"ext_modules|rust_extensions|cffi_modules|cythonize")
_BUILD_FIELDS = ("name", "requires-python", "dependencies", "optional-dependencies", "dynamic")
_INDEX_FIELDS = {"name", "specifier", "marker", "extras", "index"}
"""Fields of a requirement in a lock if its package comes from an index."""
_REQUIREMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_INCLUDED = re.compile(r"(?:-r|-c|--requirements?|--constraints?)[ =]\s*(\S.*)")
_LOCAL = re.compile(
    r"-e\b|--editable\b|(-f|--find-links)[ =]+(?!\w+://)"
    r"|(?!-)([./]|file:|[^:]*@ *file:|[^:@]+/|[^:]+\.(whl|tar\.gz|zip)$)"
)
"""Matches a line that names a local folder or file, not a package of an index."""


@dataclass(frozen=True, slots=True)
class Packages:
    """The packages to install into an environment, and the uv commands for that.

    Attributes:
        stated: the inputs of the environment's key, besides Python and Fray.
        commands: the arguments of each run of uv, without those that name the environment.
        of_project: a project states them; otherwise they are added to the agent's own packages.
        needs_folder: local code is built too, so the key includes the whole workspace, and uv gets a copy of it.
        has_project: the project itself is installed, because it has compiled parts.
        folders: the folders of the projects that run from the workspace: its top, and the members of a uv workspace.
        projects: what is installed of those of them that are packages.
    """

    stated: Mapping[str, object]
    commands: list[list[str]]
    of_project: bool
    needs_folder: bool = False
    has_project: bool = False
    folders: tuple[str, ...] = ("",)
    projects: tuple[InstalledProject, ...] = ()


def read_packages(environment: EnvironmentSpec, folder: Path | None) -> Packages:
    """The packages of a job with this environment.

    Args:
        folder: its workspace; None if there is none.

    Raises:
        EnvironmentFailed: the files of its project cannot be read, or contradict one another.
    """
    stating = environment.workspace.dependencies if environment.workspace is not None else ""
    for what, names in (("extras", environment.extras), ("groups", environment.groups)):
        if names and stating not in ("uv.lock", "pyproject.toml"):
            raise EnvironmentFailed(
                f"{what} ({', '.join(names)}) need a uv.lock or pyproject.toml, but {stating or 'nothing'} states the "
                "packages"
            )
    if folder is None or not stating:
        on_top = environment.pip_packages
        return Packages({}, _on_top(on_top), of_project=False, needs_folder=folder is not None and _any_local(on_top))
    if stating == "requirements.txt":
        found = _of_requirements(environment, folder)
        project = _read_toml(folder, "pyproject.toml") if (folder / "pyproject.toml").is_file() else {}
    else:
        project = _read_toml(folder, "pyproject.toml")
        found = (_of_lock if stating == "uv.lock" else _of_project)(environment, folder, project)
    projects = [] if found.has_project else _installed(folder, project, found.folders)
    if not projects:
        return found
    return replace(
        found, projects=tuple(projects), stated={**found.stated, "installed": [asdict(each) for each in projects]}
    )


def _installed(folder: Path, project: dict[str, Any], folders: Iterable[str]) -> list[InstalledProject]:
    tables = ((folder / name, _read_toml(folder, f"{name}/pyproject.toml") if name else project) for name in folders)
    return [found for place, table in tables if (found := installed_project(place, table)) is not None]


def _on_top(requirements: list[str]) -> list[list[str]]:
    return [["pip", "install", "--", *requirements]] if requirements else []


def _extra_options(environment: EnvironmentSpec) -> list[str]:
    return [*(f"--extra={extra}" for extra in environment.extras), *_group_options(environment)]


def _group_options(environment: EnvironmentSpec) -> list[str]:
    return [f"--group={group}" for group in environment.groups]


def _of_lock(environment: EnvironmentSpec, folder: Path, project: dict[str, Any]) -> Packages:
    lock = _read_toml(folder, "uv.lock")
    members = {name: _read_toml(folder, f"{name}/pyproject.toml") for name in _member_folders(lock)}
    if unknown := [text for each in (project, *members.values()) for text in lock_mismatch(each, lock)]:
        raise EnvironmentFailed(
            f"uv.lock does not match pyproject.toml: it lacks {', '.join(unknown)}; run `uv lock` and submit again"
        )
    compiled = is_compiled(folder, project)
    run_here = not compiled and not any(is_compiled(folder / name, table) for name, table in members.items())
    sources = {_local_source(package) for package in _tables(lock, "package")}
    needs_folder = bool(sources - {"", *members}) or not run_here
    sync = ["sync", "--frozen", "--no-default-groups", *_extra_options(environment)]
    sync += ["--all-packages"] * bool(members) + ["--no-editable"] * needs_folder
    sync += [] if compiled else ["--no-install-workspace" if members and run_here else "--no-install-project"]
    stated = {"lock": _read_text(folder, "uv.lock"), "project": _stated_in(project)}
    stated |= {f"member {name}": _stated_in(table) for name, table in members.items()}
    folders = ("", *members) if run_here else ("",)
    return Packages(stated, [sync, *_on_top(environment.pip_packages)], True, needs_folder, compiled, folders)


def _member_folders(lock: dict[str, Any]) -> list[str]:
    """The folders of the members of a uv workspace, without its top."""
    names = _texts(toml_table(lock, "manifest"), "members")
    sources = (_local_source(package) for package in _tables(lock, "package") if package.get("name") in names)
    return [source for source in sources if source]


def _of_project(environment: EnvironmentSpec, folder: Path, project: dict[str, Any]) -> Packages:
    compiled = is_compiled(folder, project)
    settings = toml_table(toml_table(project, "tool"), "uv")
    needs_folder = (
        compiled
        or "dependencies" in _texts(toml_table(project, "project"), "dynamic")
        or "find-links" in settings
        or any(
            "path" in str(source) or "workspace" in str(source) for source in toml_table(settings, "sources").values()
        )
        or _any_local(environment.pip_packages)
    )
    extras = f"[{','.join(environment.extras)}]" if environment.extras else ""
    wanted = (
        [*_group_options(environment), "--", f"./{extras}"]
        if compiled
        else ["-r", "pyproject.toml", *_extra_options(environment), "--"]
    )
    command = ["pip", "install", *["--no-editable"] * needs_folder, *wanted, *environment.pip_packages]
    return Packages({"project": _stated_in(project)}, [command], True, needs_folder, compiled)


def _of_requirements(environment: EnvironmentSpec, folder: Path) -> Packages:
    files = requirement_files(folder)
    lines = [*environment.pip_packages, *(line for text in files.values() for line in _requirement_lines(text))]
    needs_folder = _any_local(lines)
    options = ["--no-editable"] * needs_folder
    command = ["pip", "install", *options, "-r", "requirements.txt", "--", *environment.pip_packages]
    return Packages({"requirements": files}, [command], True, needs_folder)


def requirement_files(folder: Path) -> dict[str, str]:
    """The text of requirements.txt and of the files that it includes, by path in the folder."""
    files: dict[str, str] = {}
    names = ["requirements.txt"]
    while names:
        name = names.pop()
        if name not in files:
            files[name] = _read_text(folder, name)
            included = filter(None, map(_INCLUDED.match, _requirement_lines(files[name])))
            here = os.path.dirname(name)
            names += [os.path.normpath(os.path.join(here, found[1])) for found in included if "://" not in found[1]]
    return files


def _requirement_lines(text: str) -> list[str]:
    return [re.split(r"(?:^|\s)#", line)[0].strip() for line in text.replace("\\\n", " ").splitlines()]


def _any_local(lines: Iterable[str]) -> bool:
    return any(_LOCAL.match(line.strip()) for line in lines)


def is_compiled(folder: Path, project: dict[str, Any]) -> bool:
    """Whether the project has parts that must be compiled before it can run."""
    required = (
        _REQUIREMENT_NAME.match(text.strip()) for text in _texts(toml_table(project, "build-system"), "requires")
    )
    names = (re.sub(r"[-_.]+", "-", found[0]).lower() for found in required if found)
    if any(map(_COMPILING.fullmatch, names)) or toml_table(toml_table(project, "tool"), "setuptools").get(
        "ext-modules"
    ):
        return True
    return (folder / "setup.py").is_file() and bool(_EXTENSIONS.search(_read_text(folder, "setup.py")))


def lock_mismatch(project: dict[str, Any], lock: dict[str, Any]) -> list[str]:
    """Requirements of a project that are missing in its lock; `uv sync --frozen` would omit them silently."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.utils import canonicalize_name

    table = toml_table(project, "project")
    own = canonicalize_name(str(table.get("name", "")))
    known: dict[str, set[SpecifierSet | None]] = {}  # None: not from an index, so any version matches
    for package in _tables(lock, "package"):
        if canonicalize_name(str(package.get("name", ""))) != own:
            continue
        for requirement in _tables(toml_table(package, "metadata"), "requires-dist"):
            specifiers = known.setdefault(canonicalize_name(str(requirement.get("name", ""))), set())
            try:
                specifiers.add(SpecifierSet(str(requirement.get("specifier", ""))))
            except InvalidSpecifier:
                continue
            if not requirement.keys() <= _INDEX_FIELDS:
                specifiers.add(None)
    extras = toml_table(table, "optional-dependencies")
    stated = [*_texts(table, "dependencies"), *(text for extra in extras for text in _texts(extras, extra))]
    unknown = []
    for text in stated:
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            unknown.append(text)
            continue
        name = canonicalize_name(wanted.name)
        if name != own and not known.get(name, set()) & {wanted.specifier, None}:
            unknown.append(text)
    return unknown


def _local_source(package: dict[str, Any]) -> str:
    """The folder or file that a package comes from; "" if that is the top folder, or an index or an address."""
    source = toml_table(package, "source")
    named = (source.get(kind, ".") for kind in ("editable", "virtual", "directory", "path"))
    return next((str(path) for path in named if path != "."), "")


def _stated_in(project: dict[str, Any]) -> dict[str, object]:
    """The part of a pyproject.toml that decides its packages; a new version or description does not change it."""
    table = toml_table(project, "project")
    return {
        "project": {name: table[name] for name in _BUILD_FIELDS if name in table},
        "build-system": project.get("build-system"),
        "groups": project.get("dependency-groups"),
        "uv": toml_table(project, "tool").get("uv"),
    }


def _read_text(folder: Path, name: str) -> str:
    try:
        path = (folder / name).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise EnvironmentFailed(f"{name}, which states packages, is outside the workspace")
        if path.stat().st_size > MAX_STATED_BYTES:
            raise EnvironmentFailed(f"{name} of the workspace has more than {MAX_STATED_BYTES:,} bytes")
        return path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise EnvironmentFailed(f"the workspace has no file {name}, which should state its packages") from None
    except (ValueError, RuntimeError) as error:  # not text; not a valid name; a loop of links
        raise EnvironmentFailed(f"{name} of the workspace cannot be read: {error}") from None
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise EnvironmentFailed(f"{name[:100]} of the workspace cannot be read: {error.strerror}") from None
        raise


def _read_toml(folder: Path, name: str) -> dict[str, Any]:
    text = _read_text(folder, name)
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise EnvironmentFailed(f"{name} of the workspace is not TOML: {error}") from None


def _tables(parent: dict[str, Any], name: str) -> list[dict[str, Any]]:
    value = parent.get(name)
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []


def _texts(parent: dict[str, Any], name: str) -> list[str]:
    value = parent.get(name)
    return [part for part in value if isinstance(part, str)] if isinstance(value, list) else []
