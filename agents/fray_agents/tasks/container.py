"""The container of a task: made before its runner starts the task in it, removed as soon as the runner is gone.

**No container outlives its runner.** A shell waits at a pipe whose other end the runner alone holds, and removes the
container when that is closed, be it that agent and runner are killed at once. It holds the agent's lock until then.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from fray_agents.host.container_engine import ContainerSpec, EngineFailed
from fray_agents.host.forks import start_process

log = logging.getLogger("fray")

_GUARD = """
trap "" TERM INT HUP
read -r _
for _ in 1 2 3 4 5 6 7 8 9 10; do "$@" 2>&1 && exit; sleep 0.2; done
exit 1
"""
"""Waits for the end of the pipe, then removes the container. podman refuses that while the container ends by itself."""

_ENGINE_VARIABLES = (
    "PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "XDG_", "LD_", "GO", "DBUS_", "SSL_", "NOTIFY_SOCKET", "LISTEN_",
    "DOCKER_", "BUILDKIT_", "CONTAINER", "_CONTAINERS_", "PODMAN_", "STORAGE_", "REGISTRY_", "REGISTRIES_", "BUILDAH_",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
"""Beginnings of the variables that an engine's client obeys itself."""


class TaskContainer:
    """One container, from `create` until `wait_removed` returns."""

    def __init__(self, spec: ContainerSpec) -> None:
        self._spec = spec
        self._name = f"fray-{secrets.token_hex(8)}"
        self._guard: asyncio.subprocess.Process | None = None

    @property
    def start_command(self) -> list[str]:
        """Runs it."""
        return self._spec.engine.start_command(self._name)

    @asynccontextmanager
    async def guarded(self, lock_fd: int | None) -> AsyncIterator[int]:
        """Have it removed when its runner is gone, to which the block gives the descriptor that this returns.

        Args:
            lock_fd: descriptor of a held lock that stays held until it is removed.

        Raises:
            OSError: this host cannot start another process now.
        """
        guard_end, runner_end = os.pipe()
        try:
            self._guard = await start_process(
                *("sh", "-c", _GUARD, "fray-container-guard", *self._spec.engine.remove_command(self._name)),
                stdin=guard_end,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
                pass_fds=() if lock_fd is None else (lock_fd,),
            )
            yield runner_end
        finally:
            os.close(guard_end)
            os.close(runner_end)

    async def create(self, command: Sequence[str], env: Mapping[str, str], directory: Path, cwd: str) -> None:
        """Make it, to run `command`.

        Args:
            env: variables besides the image's own; they are on no command line, which any user of the host may read.
            directory: of the task; it and all mounts are in the container under the same names.
            cwd: where the command starts.

        Raises:
            EngineFailed: the engine cannot make it.
        """
        spec, engine = self._spec, self._spec.engine
        home = {} if os.geteuid() == 0 else {"HOME": cwd}  # an image knows no user of this host
        env = home | dict(env)
        own = {name: value for name, value in env.items() if _is_for_file(name)}
        await asyncio.to_thread(_write_variables, directory / "container.env", own)
        await engine.run(
            "create",
            "--interactive",
            *await engine.flags(),
            *spec.device_flags,
            f"--name={self._name}",
            f"--label=fray.task={directory}",
            *(f"--volume={path}:{path}" for path in dict.fromkeys([*spec.mounts, directory])),
            f"--workdir={cwd}",
            f"--env-file={directory / 'container.env'}",
            *(f"--env={name}" for name in env if name not in own),
            "--entrypoint=",
            spec.image,
            *command,
            env={**os.environ, **{name: value for name, value in env.items() if name not in own}},
        )

    async def wait_removed(self) -> None:
        """Return when nothing of it is left; its runner is gone."""
        if self._guard is not None:
            said, _ = await self._guard.communicate()
            if self._guard.returncode:
                log.warning("a container could not be removed: %s", said.decode(errors="replace").strip())


def _is_for_file(name: str) -> bool:
    """Whether a variable must not be in the client's own environment, or its name not on the client's command line."""
    return name.startswith(_ENGINE_VARIABLES) or not name.isidentifier()  # to podman `*` stands for any


def _write_variables(path: Path, variables: Mapping[str, str]) -> None:
    """A file with a line for each variable, for this user alone."""
    for name, value in variables.items():
        if "\n" in value:
            raise EngineFailed(f"the variable {name} has several lines; {path.name} has one for each")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.writelines(f"{name}={value}\n" for name, value in variables.items())
