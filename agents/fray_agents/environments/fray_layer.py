"""The Fray layer: the agent's own Fray and its dependencies, for interpreters that have packages of their own.

An environment's interpreter finds the agent's Fray before its own packages, whatever they require. It finds Fray's
dependencies after its own packages: if a project has another release of one, the project's is used. They are not
resolved together, so they cannot conflict.

For the agent's own version of Python the layer consists of links to the agent's packages. For another version Fray's
code is linked, which every version can read, and its dependencies are installed, because most of them are compiled.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fray_agents.environments.uv import BuildLog, run_uv
from fray_agents.host.capacity import fray_version
from fray_runtime.pickling import OWN_PYTHON

FRAY_PACKAGES = ("fray", "fray_agents", "fray_coordinator", "fray_layouts", "fray_rpc", "fray_runtime")
"""The packages of the distribution; in a checkout they are in several folders."""

BEFORE, BEHIND = "before", "behind"
"""Folders of a layer: modules that come before an environment's own packages, and modules that come after them."""

_DISTRIBUTION = "fray-cluster"
_STORES = ("s3", "gcs")
"""Extras that a layer includes if the agent has them, so that a task can open the same stores as its agent."""


def layer_kind(python: str) -> str:
    """The kind of the layer's entry in the cache, for a minor version of Python."""
    return f"fray-{fray_version()}-{python}"


@cache
def layer_key() -> str:
    """The key of the layer's entry: the location of the agent's Fray, and its dependencies; computed once."""
    needed = {found.name: found.version for found in needed_distributions()}
    return hashlib.sha256(json.dumps([fray_folders(), sys.prefix, needed], sort_keys=True).encode()).hexdigest()


def path_configuration(layer: Path) -> str:
    """The text of a `.pth` file that adds a layer to the environment that contains the file."""
    before = str(layer / BEFORE)
    own = "next((n for n, path in enumerate(sys.path) if path.startswith(sys.prefix)), len(sys.path))"
    return f"import sys; {before!r} in sys.path or sys.path.insert({own}, {before!r})\n{layer / BEHIND}\n"


async def build_layer(directory: Path, python: str, interpreter: str, uv: str, log: BuildLog) -> None:
    """Build the layer for a minor version of Python.

    Raises:
        EnvironmentFailed, HostUnfit: as `run_uv`.
    """
    for folder in (BEFORE, BEHIND):
        (directory / folder).mkdir()
    for name, path in fray_folders().items():
        (directory / BEFORE / name).symlink_to(path)
    if python == OWN_PYTHON:
        await asyncio.to_thread(lambda: link_distributions(needed_distributions(), directory / BEHIND))
    else:
        own = {canonicalize_name(found.name) for found in needed_distributions()}
        wanted = [
            str(needed) for needed in _requirements(_DISTRIBUTION, _STORES) if canonicalize_name(needed.name) in own
        ]
        target = ["--python", interpreter, "--target", str(directory / BEHIND)]
        await run_uv(uv, ["pip", "install", *target, "--", *wanted], log)


def needed_distributions() -> list[Distribution]:
    """The installed distributions of Fray and all its dependencies."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, tuple[str, ...]]] = set()
    wanted: list[tuple[str, tuple[str, ...]]] = [(_DISTRIBUTION, _STORES)]
    while wanted:
        name, extras = wanted.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:  # it belongs to an extra that the agent does not have
            continue
        wanted += [(canonicalize_name(needed.name), tuple(needed.extras)) for needed in _requirements(name, extras)]
    return [found[name] for name in sorted(found)]


def link_distributions(distributions: Iterable[Distribution], target: Path) -> None:
    """Link the installed files below `target`: a folder of one distribution as a whole, others file by file."""
    files = [
        (site, file.parts, name)
        for name, found, site in ((found.name, found, Path(str(found.locate_file("")))) for found in distributions)
        for file in found.files or []
        if ".." not in file.parts and file.suffix != ".pth"
    ]
    _link(files, target)


def _link(files: list[tuple[Path, tuple[str, ...], str]], target: Path) -> None:
    """Link files, each given by its location so far, the rest of its path, and its distribution."""
    by_name: dict[str, list[tuple[Path, tuple[str, ...], str]]] = defaultdict(list)
    for place, parts, owner in files:
        by_name[parts[0]].append((place / parts[0], parts[1:], owner))
    for name, found in by_name.items():
        place, rest, owner = found[0]
        if not rest or all(other == owner for *_, other in found):
            (target / name).symlink_to(place)
        else:
            (target / name).mkdir()
            _link(found, target / name)


def _requirements(name: str, extras: tuple[str, ...]) -> Iterator[Requirement]:
    """The requirements of an installed distribution with these extras on this host, without their markers."""
    for text in distribution(name).requires or []:
        requirement = Requirement(text)
        marker, requirement.marker = requirement.marker, None
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def fray_folders() -> dict[str, str]:
    """The folders of the packages of the agent's own Fray, by name, in a checkout or where it is installed."""
    specs = {name: importlib.util.find_spec(name) for name in FRAY_PACKAGES}
    return {
        name: spec.submodule_search_locations[0]
        for name, spec in specs.items()
        if spec is not None and spec.submodule_search_locations
    }
