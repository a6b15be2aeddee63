"""The provider `local`: each machine is a few agents, processes of this host that outlive the process that starts them.

A machine is a folder of this user on this host. Each of its agents holds a lock on a file there from before its start
until its end. So a lock that can be taken proves that the agent has ended, and no process has to watch.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from fray_agents.host.capacity import host_name
from fray_agents.provisioning.identity import agent_arguments, is_of_pool, machine_labels, provider_name
from fray_agents.provisioning.provider import MachineRequest, ProviderError
from fray_coordinator.protocol.scaling.view import ListedMachine, ListedState
from fray_layouts.records import ProvisioningSpec
from fray_runtime.current_task import task_environ
from fray_runtime.directories import UntrustedDirectory, private_dir, try_lock, user_dir
from fray_runtime.variables import read_variable

END_GRACE = 40.0
"""Seconds from a machine's removal until its agents are killed: an agent gives jobs 25 s to end, and then leaves."""

_ABOUT, _BUSY, _ENDING = "machine.json", "busy.lock", "ending"
_LOG_BYTES = 2000
"""Bytes of the end of an agent's log that are read for its last line."""
_FRAY = (sys.executable, "-m", "fray")
_DETACHED = '"$@" & echo $! >"$0"'
"""The shell starts an agent and ends at once, so that no process has to wait for the agent as its parent."""


class _LocalMachine(msgspec.Struct, kw_only=True):
    """The content of `machine.json` in a machine's folder."""

    labels: dict[str, str]
    name: str
    batch: str
    hosts: int


class LocalProvider:
    """Machines of one pool as processes of this host."""

    def __init__(self, cluster: str, pool: str, spec: ProvisioningSpec) -> None:
        self._cluster = cluster
        self._pool = pool
        self._zones = spec.zones

    async def list(self) -> Sequence[ListedMachine]:
        return await asyncio.to_thread(self._list)

    async def create(self, request: MachineRequest) -> str:
        await asyncio.to_thread(self._create, request)
        return ""

    async def delete(self, name: str, zone: str, batch: str = "") -> None:
        await asyncio.to_thread(self._delete, name)

    async def check(self) -> Sequence[ProviderError]:
        await asyncio.to_thread(self._machines)
        return []

    async def close(self) -> None:
        pass

    def _list(self) -> Sequence[ListedMachine]:
        folders = sorted(self._machines().iterdir())
        return [listed for folder in folders if (listed := self._look_at(folder)) is not None]

    def _look_at(self, folder: Path) -> ListedMachine | None:
        """The machine in a folder; None if it is another pool's, or has ended after its removal."""
        about = _read_about(folder)
        if about is None or not is_of_pool(about.labels, self._cluster, self._pool):
            return None
        if (folder / _ENDING).exists():
            return None if _end(folder, about.hosts) else self._listed(about, ListedState.ENDING)
        locks = [folder / f"host-{host}.lock" for host in range(about.hosts)]
        if dead := next((lock for lock in locks if lock.exists() and not _is_held(lock)), None):
            return self._listed(about, ListedState.LOST, _last_words(dead.with_suffix(".log")))
        if all(lock.exists() for lock in locks):
            return self._listed(about, ListedState.READY)
        if _is_held(folder / _BUSY):
            return self._listed(about, ListedState.CREATING)
        return self._listed(about, ListedState.LOST, "the process that created it ended before all agents were started")

    def _listed(self, about: _LocalMachine, state: ListedState, error: str = "") -> ListedMachine:
        return ListedMachine(self._pool, about.name, host_name(), state, about.batch, error=error)

    def _create(self, request: MachineRequest) -> None:
        for name in request.names:
            folder = private_dir(self._folder(name))
            with _exclusive_use(folder):
                if (folder / _ENDING).exists():
                    raise ProviderError("unavailable", f"the machine {name} is being removed; ask for another one")
                _start(folder, request, name, machine_labels(self._cluster, self._pool, name, request.names[0]))

    def _delete(self, name: str) -> None:
        folder = self._folder(name)
        about = _read_about(folder)
        if about is None:
            return
        with suppress(FileNotFoundError), _exclusive_use(folder):
            (folder / _ENDING).touch(exist_ok=True)
            _signal(folder, about.hosts, signal.SIGTERM)

    def _folder(self, name: str) -> Path:
        return self._machines() / provider_name(self._cluster, self._pool, name)

    def _machines(self) -> Path:
        """The folder of this host's machines. Raises ProviderError: they are on another host, or it cannot be used."""
        if read_variable("FRAY_JOB_ID", task_environ()):
            raise ProviderError("denied", "its machines are processes, which would end with this job; scale it outside")
        if self._zones and host_name() not in self._zones:
            where = ", ".join(self._zones)
            raise ProviderError("denied", f"its machines are processes of {where}, not of this host; scale it there")
        try:
            return user_dir("machines")
        except (OSError, UntrustedDirectory) as error:
            raise ProviderError("unavailable", f"this host has no folder for machines: {error}") from None


def _start(folder: Path, request: MachineRequest, name: str, labels: dict[str, str]) -> None:
    """Start the agents that were not started yet; agents that have ended are not started again."""
    if _read_about(folder) is None:
        about = _LocalMachine(labels=labels, name=name, batch=request.names[0], hosts=request.hosts)
        new = folder / f"{_ABOUT}.new"
        new.write_bytes(msgspec.json.encode(about))
        new.rename(folder / _ABOUT)
    for host in range(request.hosts):
        lock = folder / f"host-{host}.lock"
        if not lock.exists():
            _start_agent(lock, agent_arguments(request, name, host))


def _start_agent(lock: Path, arguments: Sequence[str]) -> None:
    """Start an agent that holds the lock; the lock's file gets its process id."""
    nameless = lock.with_suffix(".new")  # so that nobody finds the lock of an agent free while it starts
    fd = os.open(nameless, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        nameless.rename(lock)
        with lock.with_suffix(".log").open("ab") as log:
            subprocess.run(
                ["sh", "-c", _DETACHED, str(lock), *_FRAY, *arguments],
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[fd],
                start_new_session=True,
                cwd=lock.parent,
                env=_outer_environment(),
            )
    except (OSError, subprocess.CalledProcessError) as error:
        raise ProviderError("unavailable", f"no process can be started on this host: {error}") from None
    finally:
        os.close(fd)


def _outer_environment() -> dict[str, str]:
    """This process's environment without Fray's variables for tasks: a task's process may hold the scaler's lease."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FRAY_")}


def _end(folder: Path, hosts: int) -> bool:
    """Remove the machine once all its agents have ended; whether they have. Agents that take too long are killed."""
    try:
        since = (folder / _ENDING).stat().st_mtime
    except FileNotFoundError:
        return True
    if any(_is_held(folder / f"host-{host}.lock") for host in range(hosts)):
        if time.time() - since > END_GRACE:
            _signal(folder, hosts, signal.SIGKILL)
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return True


def _signal(folder: Path, hosts: int, number: signal.Signals) -> None:
    """Signal the agents that hold their locks: while one does, the process id in the lock's file is its own."""
    for host in range(hosts):
        lock = folder / f"host-{host}.lock"
        if _is_held(lock):
            with suppress(FileNotFoundError, ValueError, ProcessLookupError):
                os.kill(int(lock.read_text()), number)


def _is_held(lock: Path) -> bool:
    """Whether a process holds the lock; False if the file does not exist."""
    fd = try_lock(lock, fcntl.LOCK_SH)  # shared, so that two processes that test at once do not count as holders
    if fd is not None:
        os.close(fd)
        return False
    return lock.exists()


@contextmanager
def _exclusive_use(folder: Path) -> Iterator[None]:
    """Hold the exclusive right to change the machine; waits for it."""
    fd = os.open(folder / _BUSY, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _read_about(folder: Path) -> _LocalMachine | None:
    try:
        return msgspec.json.decode((folder / _ABOUT).read_bytes(), type=_LocalMachine)
    except (OSError, msgspec.DecodeError):
        return None  # it is being created, or is gone


def _last_words(log: Path) -> str:
    """The last line of an agent's log, if it gives a reason for its end; an INFO line is none."""
    with suppress(OSError):
        last = log.read_bytes()[-_LOG_BYTES:].decode(errors="replace").strip().rpartition("\n")[2]
        return "" if " INFO " in last else last
    return ""
