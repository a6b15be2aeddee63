"""Container images: on this host before their attempts start, and what a task that runs in one needs of the host."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

from fray_agents.environments.errors import EnvironmentFailed, HostUnfit
from fray_agents.environments.uv import BuildLog
from fray_agents.host.container_engine import ContainerEngine, EngineFailed
from fray_agents.host.directories import user_dir
from fray_coordinator.core import Core
from fray_coordinator.store.opening import local_folder

_NO_SUCH_IMAGE = re.compile(
    r"manifest unknown|name unknown|manifest for .* not found|repository .* not found|does not exist"
    r"|access .* is denied|error response .*: denied|unauthorized"
    r"|invalid reference format|repository name must be|did not resolve to an alias",
    re.IGNORECASE,
)
"""What engines and registries say of an image that is not there for anybody, or not for this user."""

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The PATH of an image that sets none, as engines have it."""

_WORDS_LIMIT = 2000
"""Characters of the engine's explanation that go into the job's record; all of it is in the job's log."""


async def pull_image(engine: ContainerEngine, image: str, log: BuildLog, tell: Callable[[str], None]) -> str:
    """Have the image on this host, pulled from its registry if it is not there; the PATH that it sets.

    Raises:
        EnvironmentFailed: there is no such image.
        HostUnfit: its registry, or the engine, does not answer as it should.
    """
    described = ("image", "inspect", "--format={{json .Config.Env}}", "--", image)
    try:
        try:
            found = await engine.run(*described)
        except EngineFailed:
            tell(f"pulling the image {image}")
            log.write(await engine.run("pull", "--", image))
            found = await engine.run(*described)
    except EngineFailed as error:
        log.write(str(error))
        raise _failure(engine, image, str(error)) from error
    finally:
        log.close()
    variables: dict[str, str] = dict(line.split("=", 1) for line in json.loads(found) or [])
    return variables.get("PATH", DEFAULT_PATH)


def shared_folders(core: Core) -> list[Path]:
    """The folders of the host that every container has: this user's, where sockets are, and a root that is files."""
    _, is_folder, path = core.root.partition("file://")
    return [user_dir(), *([local_folder(unquote(path))] if is_folder else [])]


def _failure(engine: ContainerEngine, image: str, said: str) -> EnvironmentFailed | HostUnfit:
    words = " ".join(said.split())[-_WORDS_LIMIT:]
    if _NO_SUCH_IMAGE.search(said):
        return EnvironmentFailed(f"there is no image {image!r} for this agent; {engine.name} says: {words}")
    return HostUnfit(f"the image {image!r} cannot be pulled on this host; {engine.name} says: {words}")
