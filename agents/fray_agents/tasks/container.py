"""The container of a task: created before its runner starts the task in it, removed as soon as the runner is gone.

**No container outlives its runner.** A shell waits at a pipe whose other end only the runner holds, and removes the
container when that end is closed, even if agent and runner are killed at once. It holds the agent's lock until then.
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
from fray_runtime.forks import start_process

log = logging.getLogger("fray")

_GUARD = """
trap "" TERM INT HUP
read -r _
for _ in 1 2 3 4 5 6 7 8 9 10; do "$@" 2>&1 && exit; sleep 0.2; done
exit 1
"""
"""Waits until the pipe is closed, then removes the container. podman refuses that while the container is ending."""

_ENGINE_VARIABLES = (
    "PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "XDG_", "LD_", "GO", "DBUS_", "SSL_", "NOTIFY_SOCKET", "LISTEN_",
    "DOCKER_", "BUILDKIT_", "CONTAINER", "_CONTAINERS_", "PODMAN_", "STORAGE_", "REGISTRY_", "REGISTRIES_", "BUILDAH_",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
"""Prefixes of variables that change how an engine's client itself behaves."""


class TaskContainer:
    """One container, from `create` until `wait_removed` returns."""

    def __init__(self, spec: ContainerSpec) -> None:
        self._spec = spec
        self._name = f"fray-{secrets.token_hex(8)}"
        self._guard: asyncio.subprocess.Process | None = None

    @property
    def start_command(self) -> list[str]:
        """The command that starts the container."""
        return self._spec.engine.start_command(self._name)

    @asynccontextmanager
    async def guarded(self, lock_fd: int | None) -> AsyncIterator[int]:
        """Have a guard process remove the container when its runner is gone.

        The block gets a descriptor that only the runner may keep open: the guard acts when it is closed.

        Args:
            lock_fd: descriptor of a held lock, which stays held until the container is removed.

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
        """Create the container, which will run `command`.

        Args:
            env: variables besides the image's own; their values are on no command line, which other users can read.
            directory: the task's; it and all mounts have the same paths in the container as on the host.
            cwd: the working directory of the command.

        Raises:
            EngineFailed: the engine cannot create it.
        """
        spec, engine = self._spec, self._spec.engine
        home = {} if os.geteuid() == 0 else {"HOME": cwd}  # the image has no entry for this host's user
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
        """Return when the container is removed; its runner must be gone."""
        if self._guard is not None:
            said, _ = await self._guard.communicate()
            if self._guard.returncode:
                log.warning("a container could not be removed: %s", said.decode(errors="replace").strip())


def _is_for_file(name: str) -> bool:
    """Whether a variable must stay out of the client's own environment, or its name off the client's command line."""
    return name.startswith(_ENGINE_VARIABLES) or not name.isidentifier()  # podman treats `*` as a wildcard


def _write_variables(path: Path, variables: Mapping[str, str]) -> None:
    """Write a file with a line for each variable, readable by this user alone."""
    for name, value in variables.items():
        if "\n" in value:
            raise EngineFailed(f"variable {name} has several lines, but {path.name} holds one line for each variable")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.writelines(f"{name}={value}\n" for name, value in variables.items())
