"""Prepares attempts: builds everything that a job brings on this host, and holds it until the attempt is over."""

import asyncio
import os
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from fray_agents.environments import images, workspace
from fray_agents.environments.cache import EnvironmentFailed, HostCache, HostUnfit, PreparationFailed, host_cache
from fray_agents.environments.python_env import hold_environment, needs_interpreter
from fray_agents.environments.uv import BuildLog
from fray_agents.host.container_engine import ContainerEngine, ContainerSpec, find_engine
from fray_coordinator.core import Core
from fray_layouts.records import JobRecord
from fray_layouts.spec import needs_environment
from fray_runtime.directories import remove_tree
from fray_runtime.pickling import OWN_PYTHON

_BUILD_LOG = "environment.log"
"""Name of the file in an attempt's directory with the output of building its environment."""


@dataclass(frozen=True)
class Prepared:
    """The environment that was prepared for an attempt.

    Attributes:
        python: the interpreter of callables; first on PATH if it is not the agent's own.
        workspace: the attempt's copy of the workspace; None if there is none.
        start: the folder in it where the attempt starts.
        has_project: the workspace's project is installed, so its source is not on the module path.
        projects: folders of the workspace's projects, "" for its top.
        env: variables in addition to the task's.
        container: the container to run in; None: the host.
        search_path: PATH if the task's variables have none.
        log: file with the first lines of the job's log; None if the preparation printed nothing.
    """

    python: str = sys.executable
    workspace: Path | None = None
    start: Path | None = None
    has_project: bool = False
    projects: tuple[str, ...] = ("",)
    env: Mapping[str, str] = field(default_factory=dict)
    container: ContainerSpec | None = None
    search_path: str = os.defpath
    log: Path | None = None

    @property
    def python_path(self) -> list[Path]:
        """Folders that are searched for modules first."""
        if self.workspace is None or self.has_project:
            return []
        return [path for project in self.projects for path in import_folders(self.workspace / project)]

    def environment(self, own: Mapping[str, str]) -> dict[str, str]:
        """The task's environment: `own`, its environment without this preparation, with the changes for it."""
        env = {**own, **self.env}
        if self.python != sys.executable:
            env["PATH"] = os.pathsep.join([os.path.dirname(self.python), env.get("PATH", self.search_path)])
        return env


def import_folders(workspace: Path) -> list[Path]:
    """The folders of a project that are searched for modules: its top, and its `src`."""
    return [path for path in (workspace, workspace / "src") if path.is_dir()]


class Preparer:
    """Prepares the attempts of one agent.

    Args:
        cache_limit: bytes that the host's cache may use; None: see `host_cache`.
    """

    def __init__(self, core: Core, cache_limit: int | None = None) -> None:
        self._core = core
        self._cache_limit = cache_limit

    @cached_property
    def _cache(self) -> HostCache:
        return host_cache(self._cache_limit)

    @cached_property
    def _engine(self) -> ContainerEngine | None:
        return find_engine()

    async def prepare(
        self, job: JobRecord, directory: Path, held: AsyncExitStack, on_activity: Callable[[str], None]
    ) -> Prepared:
        """Prepare everything that the job brings.

        Args:
            directory: the attempt's; created if anything has to be put there.
            held: receives what must be released once the attempt is over.
            on_activity: called with the current activity, as text for people.

        Raises:
            EnvironmentFailed: it cannot be prepared on any host.
            HostUnfit, UntrustedDirectory, OSError: it cannot be prepared on this one.
        """
        spec = job.spec.environment
        prepared = Prepared()
        if spec.workspace is None and not spec.docker_image and not needs_interpreter(job.spec):
            return prepared
        held.push_async_callback(remove_tree, directory)
        await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
        log = directory / _BUILD_LOG
        try:
            if spec.workspace is not None:
                on_activity("unpacking the workspace")
                copy = await workspace.copied(self._core, self._cache, spec.workspace, directory / "work")
                prepared = replace(prepared, workspace=copy, start=_start(copy, spec.workspace.folder))
            folders: tuple[str, ...] = ()
            if needs_environment(spec) if spec.docker_image else needs_interpreter(job.spec):
                found = await hold_environment(self._cache, job.spec, prepared.workspace, held, log, on_activity)
                env = {"VIRTUAL_ENV": os.path.dirname(os.path.dirname(found.python))}
                prepared = replace(prepared, python=found.python, has_project=found.has_project, env=env)
                prepared = replace(prepared, projects=found.projects)
                folders = found.folders
            if spec.docker_image:
                prepared = await self._in_container(prepared, job, folders, held, BuildLog(log), on_activity)
        except PreparationFailed as error:
            error.log = _existing(log)
            raise
        return replace(prepared, log=_existing(log))

    async def _in_container(
        self,
        prepared: Prepared,
        job: JobRecord,
        folders: Collection[str],
        held: AsyncExitStack,
        log: BuildLog,
        on_activity: Callable[[str], None],
    ) -> Prepared:
        if self._engine is None:
            raise HostUnfit("this host no longer has podman or docker, one of which must run the job's image")
        image, device = job.spec.environment.docker_image, job.spec.resources.device
        search_path = await images.pull_image(self._engine, image, log, on_activity)
        call, layer, own = job.spec.entrypoint.callable, None, images.environment_folders(folders)
        if call is not None and not folders:
            layer, own = await images.hold_layer(self._cache, call.python or OWN_PYTHON, held, log)
        container = ContainerSpec(
            engine=self._engine,
            image=image,
            mounts=[*images.shared_folders(self._core), *own],
            device_flags=self._engine.device_flags(device.kind if device is not None else "cpu"),
            layer=layer,
        )
        return replace(prepared, container=container, search_path=search_path)


def _start(workspace: Path, folder: str) -> Path:
    """The folder where the job starts; created if the submitter's was empty, so that nothing of it was packed."""
    start = workspace / folder
    try:
        start.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise EnvironmentFailed(f"the job should start in {folder}, but its workspace has a file there") from error
    return start


def _existing(path: Path) -> Path | None:
    return path if path.exists() else None
