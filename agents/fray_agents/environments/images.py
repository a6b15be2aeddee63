"""Container images: pulled before attempts start, and the folders of the host that a task in one needs."""

import asyncio
import json
import re
import shutil
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from pathlib import Path

from fray_agents.environments.cache import MAX_EXPLANATION, EnvironmentFailed, HostCache, HostUnfit
from fray_agents.environments.fray_layer import BEFORE, BEHIND, build_layer, fray_folders, layer_key, layer_kind
from fray_agents.environments.uv import BuildLog
from fray_agents.host.capacity import find_pythons, find_uv
from fray_agents.host.container_engine import ContainerEngine, EngineFailed
from fray_coordinator.core import Core
from fray_coordinator.store.opening import folder_of_root
from fray_runtime.directories import user_dir
from fray_runtime.pickling import OWN_PYTHON

_NO_SUCH_IMAGE = re.compile(
    r"manifest unknown|name unknown|manifest for .* not found|repository .* not found|does not exist"
    r"|access .* is denied|error response .*: denied|unauthorized"
    r"|invalid reference format|repository name must be|did not resolve to an alias",
    re.IGNORECASE,
)
"""Messages of engines and registries about an image that does not exist, or not for this user."""

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The PATH of an image that sets none, as engines define it."""

_SYSTEM = frozenset({"/", "/usr", "/usr/local"})
"""Prefixes where operating systems, and the usual images, have Python and everything else."""


async def pull_image(engine: ContainerEngine, image: str, log: BuildLog, on_activity: Callable[[str], None]) -> str:
    """Pull the image from its registry unless this host has it; returns the PATH that it sets.

    Raises:
        EnvironmentFailed: there is no such image.
        HostUnfit: its registry, or the engine, failed or did not answer.
    """
    described = ("image", "inspect", "--format={{json .Config.Env}}", "--", image)
    try:
        try:
            found = await engine.run(*described)
        except EngineFailed:
            on_activity(f"pulling the image {image}")
            log.write(await engine.run("pull", "--", image))
            found = await engine.run(*described)
    except EngineFailed as error:
        log.write(str(error))
        raise _failure(engine, image, str(error)) from error
    finally:
        log.close()
    variables: dict[str, str] = dict(line.split("=", 1) for line in json.loads(found) or [])
    return variables.get("PATH", DEFAULT_PATH)


async def hold_layer(
    cache: HostCache, python: str, held: AsyncExitStack, log: BuildLog
) -> tuple[tuple[str, Path, Path], list[Path]]:
    """The parts that a callable needs besides an image's own Python (see `ContainerSpec.layer`), and their folders.

    Args:
        python: minor version of Python that the image must have.
        held: releases those folders.

    Raises:
        EnvironmentFailed, HostUnfit, OSError: they cannot be prepared.
    """
    uv, interpreters = await asyncio.to_thread(lambda: (find_uv(), find_pythons()))
    if python != OWN_PYTHON and (uv is None or python not in interpreters):
        raise HostUnfit(
            f"this host lacks Python {python} or uv, which it needs to install Fray's dependencies for the image"
        )
    key = await asyncio.to_thread(layer_key)

    async def build(directory: Path) -> None:
        await build_layer(directory, python, interpreters[python], uv or "", log)

    layer = await held.enter_async_context(cache.hold(layer_kind(python), key, build))

    async def copy(directory: Path) -> None:  # the targets of its links may be where the image has its own packages
        await asyncio.to_thread(shutil.copytree, layer.path / BEHIND, directory / BEHIND)

    copied = await held.enter_async_context(cache.hold(f"{layer_kind(python)}-copied", key, copy))
    folders = [layer.path, copied.path, *map(Path, fray_folders().values())]
    return (python, layer.path / BEFORE, copied.path / BEHIND), folders


def environment_folders(folders: Collection[str]) -> list[Path]:
    """The folders of a host environment to mount into a container.

    Raises:
        HostUnfit: the environment's interpreter is in the operating system's folders, of which the image has its own.
    """
    if _SYSTEM.intersection(folders):
        raise HostUnfit(
            "the job's packages would be installed for this host's system Python, which cannot be used in an image; "
            "run the agent with a Python of its own (uv python install), or have the packages in the image"
        )
    return [Path(folder) for folder in folders]


def shared_folders(core: Core) -> list[Path]:
    """The folders of the host that every container gets: this user's, with its sockets, and a root on local files."""
    root = folder_of_root(core.root)
    return [user_dir(), *([root] if root is not None else [])]


def _failure(engine: ContainerEngine, image: str, said: str) -> EnvironmentFailed | HostUnfit:
    words = " ".join(said.split())[-MAX_EXPLANATION:]
    if _NO_SUCH_IMAGE.search(said):
        return EnvironmentFailed(f"there is no image {image!r} for this agent; {engine.name} says: {words}")
    return HostUnfit(f"the image {image!r} cannot be pulled on this host; {engine.name} says: {words}")
