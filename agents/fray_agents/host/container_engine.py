"""The container engine of this host, podman or docker: found at start, asked about itself when it is first needed.

Only an engine of this machine counts. One elsewhere, or in a virtual machine, has neither the directories of tasks nor
processes that a runner can see.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fray_agents.runner.process_tree import PR_SET_PDEATHSIG, prctl
from fray_layouts.errors import Temporary

_DOCKER_SOCKET = "/var/run/docker.sock"

_MAX_PROCESSES = 32 * 1024
"""Processes of a user that a container may be allowed: podman lowers its own limit to this, and may not raise it."""

_COMMON_FLAGS = (
    "--init",  # a program that is the first of its namespace ignores SIGTERM
    "--network=host",
    "--volume=/dev/shm:/dev/shm",  # shared memory as large as the host's
    "--security-opt=label=disable",  # SELinux keeps a container from directories that are not labelled for it
    "--no-healthcheck",
    "--pull=never",
)


class EngineFailed(Temporary):
    """The engine refused, or could not do, what it was asked to; its text is the engine's own."""


class ContainerEngine:
    """podman or docker.

    Args:
        name: which of them.
        program: its path.
    """

    def __init__(self, name: str, program: str) -> None:
        self.name = name
        self.program = program
        self._flags: list[str] | None = None

    async def flags(self) -> list[str]:
        """The flags of every container on this host.

        Raises:
            EngineFailed: it does not answer, or is not on this machine.
        """
        if self._flags is None:
            info = json.loads(await self.run("info", "--format={{json .}}"))
            own = self._podman_flags(info["host"]) if self.name == "podman" else self._docker_flags(info)
            self._flags = [*_COMMON_FLAGS, *_ulimits(), *own]
        return self._flags

    def _podman_flags(self, host: dict[str, Any]) -> list[str]:
        if host["serviceIsRemote"]:
            raise EngineFailed("this podman runs containers on another machine")
        flags = [_user_flag(os.geteuid(), os.getegid()), "--log-driver=passthrough"]
        rootless, unified = host["security"]["rootless"], host["cgroupVersion"] == "v2"
        if rootless:
            flags.append("--userns=keep-id")
        if unified and host["ociRuntime"]["name"] == "crun":
            flags.append("--cgroups=disabled")  # they stay in that of the task, with its limits
        elif unified or not rootless:
            flags.append("--pids-limit=-1")
        return flags

    def _docker_flags(self, info: dict[str, Any]) -> list[str]:
        if info.get("ServerErrors"):
            raise EngineFailed("; ".join(info["ServerErrors"]))
        if info["Name"] != socket.gethostname():
            raise EngineFailed(f"this docker runs containers on another machine, {info['Name']}")
        rootless = any("name=rootless" in option for option in info["SecurityOptions"])
        user = [_user_flag(0, 0)] if rootless else [_user_flag(os.geteuid(), os.getegid()), "--userns=host"]
        return [*user, "--log-driver=none", "--pids-limit=-1"]

    def start_command(self, container: str) -> list[str]:
        """Runs a created container, which reads and prints what this command does, and ends as it does."""
        attach = [self.program, "start", "--attach", "--interactive"]
        return [*attach, *(["--sig-proxy=false"] if self.name == "podman" else []), container]

    def remove_command(self, container: str) -> list[str]:
        """Kills and removes a container, whatever its state."""
        force = [self.program, "rm", "--force", "--volumes"]
        return [*force, *(["--time=0", "--ignore"] if self.name == "podman" else []), container]

    def device_flags(self, kind: str, root: Path = Path("/")) -> list[str]:
        """The flags that give a container all of the host's devices of a kind; variables say which ones are its own.

        Args:
            kind: "cpu", "gpu" or "tpu", as in a spec.
            root: where `/dev` is looked for.
        """
        if kind == "tpu":
            return ["--privileged", "--ulimit=memlock=-1:-1"]
        if kind != "gpu":
            return []
        if shutil.which("nvidia-smi"):
            return ["--device=nvidia.com/gpu=all" if self.name == "podman" else "--gpus=all"]
        return [f"--device={path}" for path in ("/dev/kfd", "/dev/dri") if (root / path.lstrip("/")).exists()]

    async def run(self, *arguments: str, env: Mapping[str, str] | None = None) -> str:
        """Run the engine's client to its end; what it printed.

        Args:
            env: its environment; by default this process's.

        Raises:
            EngineFailed: it failed, or cannot be executed.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                self.program,
                *arguments,
                env=env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                preexec_fn=partial(prctl, PR_SET_PDEATHSIG, signal.SIGKILL),
            )
        except OSError as error:
            raise EngineFailed(f"{self.program} cannot be executed: {error.strerror}") from error
        try:
            out, err = await process.communicate()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if process.returncode:
            raise EngineFailed(err.decode(errors="replace").strip() or f"{self.name} ended with {process.returncode}")
        return out.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """The container that a task runs in.

    Attributes:
        engine: runs it.
        image: is there.
        mounts: paths of the host that it has under the same names, besides the task's own directory.
        device_flags: see `ContainerEngine.device_flags`.
        layer: where callables are run by the image's own Python: the minor version that this has to be, and the folders
            with the modules that go before and behind the image's.
    """

    engine: ContainerEngine
    image: str
    mounts: Sequence[Path] = ()
    device_flags: Sequence[str] = ()
    layer: tuple[str, Path, Path] | None = None


def find_engine(environ: Mapping[str, str] = os.environ) -> ContainerEngine | None:
    """The engine of this host; None if there is none. Costs no process: whether it works is seen when it is used.

    Args:
        environ: where `PATH` and `DOCKER_HOST` are looked for.
    """
    if podman := shutil.which("podman", path=environ.get("PATH")):
        return ContainerEngine("podman", podman)
    docker = shutil.which("docker", path=environ.get("PATH"))
    return ContainerEngine("docker", docker) if docker and _listens(environ.get("DOCKER_HOST", "")) else None


def _listens(docker_host: str) -> bool:
    """Whether docker's daemon is on this machine, and this user may use it."""
    scheme, _, path = (docker_host or f"unix://{_DOCKER_SOCKET}").partition("://")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        return scheme == "unix" and probe.connect_ex(path) == 0


def _user_flag(user: int, group: int) -> str:
    """The ids of the agent's user, who then owns what a container writes; 0 where the engine maps that to them."""
    return f"--user={user}:{group}"


def _ulimits() -> list[str]:
    """The limits of this process: an engine's own defaults may be above what it is allowed to set."""
    files = "{}:{}".format(*resource.getrlimit(resource.RLIMIT_NOFILE))
    limits = (
        _MAX_PROCESSES if limit == resource.RLIM_INFINITY else min(limit, _MAX_PROCESSES)
        for limit in resource.getrlimit(resource.RLIMIT_NPROC)
    )
    return [f"--ulimit=nofile={files}", "--ulimit=nproc={}:{}".format(*limits)]
