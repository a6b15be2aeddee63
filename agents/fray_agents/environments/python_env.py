"""Python environments: built once per host for all jobs that ask for the same packages, and held while a job runs.

The key of an environment covers everything that decides its content: the interpreter, the platform, the files that
state the packages, the extras, and additional requirements. A project runs from its workspace, so a changed line needs
no new environment. The key includes the workspace only if something has to be built from it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from fray_agents.environments.cache import EnvironmentFailed, HostCache, HostUnfit
from fray_agents.environments.fray_layer import build_layer, fray_folders, layer_key, layer_kind, path_configuration
from fray_agents.environments.packages import Packages, read_packages
from fray_agents.environments.uv import BuildLog, run_uv
from fray_agents.environments.workspace import copy_tree
from fray_agents.host.capacity import find_pythons, find_uv
from fray_coordinator.protocol.environments import chosen_python, python_shortage, will_do
from fray_layouts.records import Software
from fray_layouts.spec import JobSpec, needs_environment
from fray_runtime.directories import in_file_thread
from fray_runtime.pickling import OWN_PYTHON

KIND = "environments"
"""The kind of these entries in the cache."""

_FORMAT = 1
"""Part of each key; raised whenever a new release would build the same key differently."""

_TICK = 1.0
"""Seconds between two reports of a build's progress."""

_VENV, _PROJECT = "venv", "project"
"""Folders of an entry: the environment, and a copy of the workspace while it is built."""


@dataclass(frozen=True, slots=True)
class PythonEnvironment:
    """An environment that is held.

    Attributes:
        python: path of its interpreter.
        has_project: the project is installed in it, so its source must not precede it on the module path.
        projects: folders of the workspace whose modules come first on the module path.
        folders: the folders that its interpreter reads: the environment, the interpreter that it was built with, the
            Fray layer, and the agent's own packages, to which the layer links.
    """

    python: str
    has_project: bool
    projects: tuple[str, ...]
    folders: tuple[str, ...]


def needs_interpreter(spec: JobSpec) -> bool:
    """Whether the job needs an interpreter other than the agent's, for its packages or its version of Python."""
    return needs_environment(spec.environment) or not will_do(spec, OWN_PYTHON)


async def hold_environment(
    cache: HostCache,
    spec: JobSpec,
    workspace: Path | None,
    held: AsyncExitStack,
    log: Path | None,
    on_activity: Callable[[str], None],
) -> PythonEnvironment:
    """The environment of a job that needs one; it is built if it does not exist.

    Args:
        workspace: the job's own code, unpacked.
        held: releases the environment.
        log: file for the output of a build.
        on_activity: called about once a second during a build, with its progress as text for people.

    Raises:
        EnvironmentFailed: it cannot be built on any host.
        HostUnfit, UntrustedDirectory, OSError: it cannot be built on this one.
    """
    uv, pythons = await asyncio.to_thread(lambda: (find_uv(), find_pythons()))
    software = Software(python=OWN_PYTHON, pythons=sorted(pythons) if uv else [])
    python = chosen_python(spec, software)
    if not python:
        raise EnvironmentFailed(_no_python(spec, software))
    if uv is None:
        raise HostUnfit("this host no longer has uv, which installs the job's packages")
    packages = await asyncio.to_thread(read_packages, spec.environment, workspace)
    build = _Build(cache, spec, workspace, packages, python, pythons[python], uv)
    progress = _Progress(on_activity)
    build_log = BuildLog(log, progress.note)
    async with progress:
        own = await build.own_packages(held, build_log)
        return await build.environment(held, own, build_log)


def installed_packages(content: Path) -> list[str]:
    """The packages of an environment by its folder in the cache, as "name==version"; [] for any other folder."""
    found = content.glob(f"{_VENV}/lib/python*/site-packages/*.dist-info")
    return sorted("==".join(folder.name.removesuffix(".dist-info").split("-", 1)) for folder in found)


def _no_python(spec: JobSpec, software: Software) -> str:
    call = spec.entrypoint.callable
    submitted = f", or submit from Python {OWN_PYTHON}" if call is not None and call.python else ""
    wanted = call.python if call is not None and call.python else spec.environment.python
    return (
        f"no agent of pool {spec.pool} can run it: {python_shortage(spec, software)}; "
        f"install Python {wanted} and uv on the agents' hosts{submitted}"
    )


@dataclass(frozen=True, slots=True)
class _OwnPackages:
    """The agent's own part of an environment. key: its part of the key; configuration: text of a `.pth` file."""

    key: list[str]
    configuration: str
    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Build:
    """One environment to build. interpreter: the one that it is built with."""

    cache: HostCache
    spec: JobSpec
    workspace: Path | None
    packages: Packages
    python: str
    interpreter: str
    uv: str

    async def own_packages(self, held: AsyncExitStack, log: BuildLog) -> _OwnPackages:
        """The Fray layer; or all of the agent's own packages, if the job's are added to these."""
        if not self.packages.of_project and self.python == OWN_PYTHON:
            sites = [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
            lines = [f"import site; site.addsitedir({path!r})\n" for path in sites]
            return _OwnPackages(sites, "".join(lines), (*sites, *fray_folders().values()))
        key = await asyncio.to_thread(layer_key)

        async def build(directory: Path) -> None:
            await build_layer(directory, self.python, self.interpreter, self.uv, log)

        layer = await held.enter_async_context(self.cache.hold(layer_kind(self.python), key, build))
        configuration = path_configuration(layer.path)
        return _OwnPackages([str(layer.path)], configuration, (str(layer.path), sys.prefix, *fray_folders().values()))

    async def environment(self, held: AsyncExitStack, own: _OwnPackages, log: BuildLog) -> PythonEnvironment:
        """The environment itself, with the agent's own part."""

        async def build(directory: Path) -> None:
            await self._install(directory, own, log)

        entry = await held.enter_async_context(self.cache.hold(KIND, self.key(own), build))
        base = await asyncio.to_thread(os.path.realpath, self.interpreter)
        folders = (str(entry.path), os.path.dirname(os.path.dirname(base)), *own.folders)
        projects = (self.packages.has_project, self.packages.folders)
        return PythonEnvironment(str(entry.path / _VENV / "bin" / "python"), *projects, folders)

    def key(self, own: _OwnPackages) -> str:
        """The key of the environment's entry."""
        environment = self.spec.environment
        decides = {
            "format": _FORMAT,
            "platform": [platform.machine(), *platform.libc_ver()],
            "python": [self.python, os.path.realpath(self.interpreter)],
            "own": own.key,
            "stated": self.packages.stated,
            "extras": environment.extras,
            "groups": environment.groups,
            "pip_packages": environment.pip_packages,
            "workspace": environment.workspace.blob.rpartition("/")[2]
            if environment.workspace is not None and self.packages.needs_folder
            else "",
        }
        return hashlib.sha256(json.dumps(decides, sort_keys=True, default=str).encode()).hexdigest()

    async def _install(self, directory: Path, own: _OwnPackages, log: BuildLog) -> None:
        venv = directory / _VENV
        making = ["venv", "--quiet", "--no-project", "--relocatable", "--python", self.interpreter, str(venv)]
        await run_uv(self.uv, making, log, cwd=directory)
        project = directory
        if self.workspace is not None:
            project = self.workspace
            if self.packages.needs_folder:  # builds write into the folder of the sources
                project = directory / _PROJECT
                await in_file_thread(copy_tree, self.workspace, project)
        python = ["--python", str(venv / "bin" / "python")]
        for command in self.packages.commands:
            at = command.index("--") if "--" in command else len(command)
            await run_uv(
                self.uv,
                [*command[:at], *python, *command[at:]],
                log,
                cwd=project,
                variables={"UV_PROJECT_ENVIRONMENT": str(venv)},
            )
        site = venv / "lib" / f"python{self.python}" / "site-packages"
        (site / "fray_agent.pth").write_text(own.configuration, encoding="utf-8")
        for installed in self.packages.projects:
            await in_file_thread(installed.install, site, venv / "bin")
        if self.packages.needs_folder:
            await in_file_thread(shutil.rmtree, directory / _PROJECT, ignore_errors=True)


class _Progress:
    """Reports once a second how long a build has taken and how far it is."""

    def __init__(self, on_activity: Callable[[str], None]) -> None:
        self._on_activity = on_activity
        self._began = time.monotonic()
        self._packages = ""
        self._ticking: asyncio.Task[None] | None = None

    def note(self, packages: str) -> None:
        """Report how many packages are prepared or installed."""
        self._packages = packages
        self._report()

    async def __aenter__(self) -> None:
        self._ticking = asyncio.create_task(self._tick())

    async def __aexit__(self, *error: object) -> None:
        assert self._ticking is not None
        self._ticking.cancel()
        with suppress(asyncio.CancelledError):
            await self._ticking

    async def _tick(self) -> None:
        while True:
            self._report()
            await asyncio.sleep(_TICK)

    def _report(self) -> None:
        seconds = f"{time.monotonic() - self._began:.0f} s"
        self._on_activity(", ".join(filter(None, ["building the environment", seconds, self._packages])))
