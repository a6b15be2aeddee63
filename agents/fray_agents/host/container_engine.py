"""The container engine of this host, podman or docker: found at start, and queried when it is first needed.

Only an engine of this machine counts. An engine elsewhere, or in a virtual machine, has neither the directories of
tasks nor processes that a runner can see.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fray_agents.host.processes import kill_group, start_bound_process
from fray_layouts.errors import Temporary
from fray_runtime.variables import read_variable

_DOCKER_SOCKET = "/var/run/docker.sock"

_MAX_PROCESSES = 32 * 1024
"""Most processes of a user that a container may allow: podman lowers its own limit to this, and cannot raise it."""

_COMMON_FLAGS = (
    "--init",  # a program that is the first in its namespace ignores SIGTERM
    "--network=host",
    "--volume=/dev/shm:/dev/shm",  # shared memory as large as the host's
    "--security-opt=label=disable",  # SELinux keeps a container from directories that are not labelled for it
    "--no-healthcheck",
    "--pull=never",
)


class EngineFailed(Temporary):
    """The engine refused a request or could not carry it out; the text is the engine's own."""


class ContainerEngine:
    """podman or docker.

    Args:
        name: "podman" or "docker".
        program: path of its client.
    """

    def __init__(self, name: str, program: str) -> None:
        self.name = name
        self.program = program
        self._flags: list[str] | None = None

    async def flags(self) -> list[str]:
        """The flags of every container on this host.

        Raises:
            EngineFailed: the engine does not answer, or runs on another machine.
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
            flags.append("--cgroups=disabled")  # its processes stay in the task's cgroup, with its limits
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
        """The command that runs a created container, with its input, output and exit code."""
        attach = [self.program, "start", "--attach", "--interactive"]
        return [*attach, *(["--sig-proxy=false"] if self.name == "podman" else []), container]

    def remove_command(self, container: str) -> list[str]:
        """The command that kills and removes a container, whatever its state."""
        force = [self.program, "rm", "--force", "--volumes"]
        return [*force, *(["--time=0", "--ignore"] if self.name == "podman" else []), container]

    def device_flags(self, kind: str, root: Path = Path("/")) -> list[str]:
        """The flags that give a container all devices of a kind; variables tell the task which are its own.

        Args:
            kind: "cpu", "gpu" or "tpu", as in a spec.
            root: the folder in which `/dev` is looked for.
        """
        if kind == "tpu":
            return ["--privileged", "--ulimit=memlock=-1:-1"]
        if kind != "gpu":
            return []
        if shutil.which("nvidia-smi"):
            return ["--device=nvidia.com/gpu=all" if self.name == "podman" else "--gpus=all"]
        return [f"--device={path}" for path in ("/dev/kfd", "/dev/dri") if (root / path.lstrip("/")).exists()]

    async def run(self, *arguments: str, env: Mapping[str, str] | None = None) -> str:
        """Run the engine's client until it exits; returns its output.

        Args:
            env: its environment; by default this process's.

        Raises:
            EngineFailed: it failed, or cannot be executed.
        """
        try:
            process = await start_bound_process(
                self.program, *arguments, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
        except OSError as error:
            raise EngineFailed(f"{self.program} cannot be executed: {error.strerror}") from error
        try:
            out, err = await process.communicate()
        finally:
            kill_group(process)
        if process.returncode:
            raise EngineFailed(err.decode(errors="replace").strip() or f"{self.name} ended with {process.returncode}")
        return out.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """The container in which a task runs.

    Attributes:
        engine: the engine that runs it.
        image: its name; the host has it already.
        mounts: paths of the host that the container has under the same names, besides the task's own directory.
        device_flags: see `ContainerEngine.device_flags`.
        layer: for callables that the image's own Python runs: the minor version that it must have, and the folders of
            modules that come before and after the image's.
    """

    engine: ContainerEngine
    image: str
    mounts: Sequence[Path] = ()
    device_flags: Sequence[str] = ()
    layer: tuple[str, Path, Path] | None = None


def find_engine(environ: Mapping[str, str] = os.environ) -> ContainerEngine | None:
    """The engine of this host; None if there is none. This starts no process; use shows whether the engine works.

    Args:
        environ: the environment whose `PATH` and `DOCKER_HOST` count.
    """
    if podman := shutil.which("podman", path=environ.get("PATH")):
        return ContainerEngine("podman", podman)
    docker = shutil.which("docker", path=environ.get("PATH"))
    return (
        ContainerEngine("docker", docker)
        if docker and _is_local_docker(read_variable("DOCKER_HOST", environ) or "")
        else None
    )


def _is_local_docker(docker_host: str) -> bool:
    """Whether docker's daemon runs on this machine and this user may use it."""
    scheme, _, path = (docker_host or f"unix://{_DOCKER_SOCKET}").partition("://")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        return scheme == "unix" and probe.connect_ex(path) == 0


def _user_flag(user: int, group: int) -> str:
    """The ids of the agent's user, who then owns files that a container writes; 0 if the engine maps 0 to that user."""
    return f"--user={user}:{group}"


def _ulimits() -> list[str]:
    """The limits of this process, because the engine's defaults may exceed what it is allowed to set."""
    files = "{}:{}".format(*resource.getrlimit(resource.RLIMIT_NOFILE))
    limits = (
        _MAX_PROCESSES if limit == resource.RLIM_INFINITY else min(limit, _MAX_PROCESSES)
        for limit in resource.getrlimit(resource.RLIMIT_NPROC)
    )
    return [f"--ulimit=nofile={files}", "--ulimit=nproc={}:{}".format(*limits)]
