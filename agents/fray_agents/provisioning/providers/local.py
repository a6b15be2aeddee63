"""The provider `local`: each machine is a few agents, processes of this host that outlive whoever started them.

A machine is a folder of this user on this host. Each of its agents holds a lock on a file there from before it starts
until it has ended, so a lock that can be taken proves an end, and no process has to watch.
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

from fray_agents.host.agent_lock import try_lock
from fray_agents.host.directories import UntrustedDirectory, private_dir, user_dir
from fray_agents.host.place import host_name
from fray_agents.provisioning.agent_arguments import agent_arguments
from fray_agents.provisioning.identity import is_of_pool, machine_labels, provider_name
from fray_agents.provisioning.provider import MachineRequest, ProviderError
from fray_agents.tasks.current_task import task_environ
from fray_coordinator.protocol.scaling.listed import ListedMachine, ListedState
from fray_layouts.records import ProvisioningSpec

END_GRACE = 40.0
"""Seconds from a machine's removal until its agents are killed: an agent lets jobs end in 25, and then leaves."""

_ABOUT, _BUSY, _ENDING = "machine.json", "busy.lock", "ending"
_LOG_BYTES = 2000
_FRAY = (sys.executable, "-m", "fray")
_DETACHED = '"$@" & echo $! >"$0"'
"""The shell that starts an agent ends at once, so the agent is nobody's child who would have to wait for it."""


class _LocalMachine(msgspec.Struct, kw_only=True):
    """`machine.json` in the folder of a machine."""

    labels: dict[str, str]
    name: str
    batch: str
    hosts: int


class LocalProvider:
    """Machines of one pool as processes of this host."""

    def __init__(self, cluster_id: str, pool: str, spec: ProvisioningSpec) -> None:
        self._cluster_id = cluster_id
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
        """The machine in a folder; None if it is another pool's, or was to end and has."""
        about = _read_about(folder)
        if about is None or not is_of_pool(about.labels, self._cluster_id, self._pool):
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
        return self._listed(about, ListedState.LOST, "who made it ended before all of its agents were started")

    def _listed(self, about: _LocalMachine, state: ListedState, error: str = "") -> ListedMachine:
        return ListedMachine(self._pool, about.name, host_name(), state, about.batch, error=error)

    def _create(self, request: MachineRequest) -> None:
        for name in request.names:
            folder = private_dir(self._folder(name))
            with _sole_use(folder):
                if (folder / _ENDING).exists():
                    raise ProviderError("unavailable", f"the machine {name} is being removed; ask for another one")
                _start(folder, request, name, machine_labels(self._cluster_id, self._pool, name, request.names[0]))

    def _delete(self, name: str) -> None:
        folder = self._folder(name)
        about = _read_about(folder)
        if about is None:
            return
        with suppress(FileNotFoundError), _sole_use(folder):
            (folder / _ENDING).touch(exist_ok=True)
            _signal(folder, about.hosts, signal.SIGTERM)

    def _folder(self, name: str) -> Path:
        return self._machines() / provider_name(self._cluster_id, self._pool, name)

    def _machines(self) -> Path:
        """The folder of this host's machines. Raises ProviderError: they are on another host, or it cannot be used."""
        if "FRAY_JOB_ID" in task_environ():
            raise ProviderError("denied", "its machines are processes, which would end with this job; scale it outside")
        if self._zones and host_name() not in self._zones:
            where = ", ".join(self._zones)
            raise ProviderError("denied", f"its machines are processes of {where}, not of this host; scale it there")
        try:
            return user_dir("machines")
        except (OSError, UntrustedDirectory) as error:
            raise ProviderError("unavailable", f"this host has no folder for machines: {error}") from None


def _start(folder: Path, request: MachineRequest, name: str, labels: dict[str, str]) -> None:
    """Start the agents that were not started yet; those that have ended stay so."""
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
    """Start an agent that holds the lock, in whose file its process id stands."""
    nameless = lock.with_suffix(".new")  # nobody ever finds the free lock of an agent that is being started
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
    """The environment of this process without what Fray tells tasks: a task may hold the scaler's lease."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FRAY_")}


def _end(folder: Path, hosts: int) -> bool:
    """Whether all agents have ended; then nothing of the machine is left. Those that take too long are killed."""
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
    """Send a signal to the agents that hold their lock: as long as one does, the process id in it is its own."""
    for host in range(hosts):
        lock = folder / f"host-{host}.lock"
        if _is_held(lock):
            with suppress(FileNotFoundError, ValueError, ProcessLookupError):
                os.kill(int(lock.read_text()), number)


def _is_held(lock: Path) -> bool:
    """Whether somebody holds the lock; False if it is not there."""
    fd = try_lock(lock, fcntl.LOCK_SH)  # who looks at the same time is no holder
    if fd is not None:
        os.close(fd)
        return False
    return lock.exists()


@contextmanager
def _sole_use(folder: Path) -> Iterator[None]:
    """Wait until nobody else changes the machine, and be the only one who does."""
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
        return None  # it is being made, or gone


def _last_words(log: Path) -> str:
    """The end of what an agent printed, if it says why it ended: one that has left says nothing that is wrong."""
    with suppress(OSError):
        last = log.read_bytes()[-_LOG_BYTES:].decode(errors="replace").strip().rpartition("\n")[2]
        return "" if " INFO " in last else last
    return ""
