"""The lock that tells this host's agents apart from its dead ones.

Each agent process holds a lock on a file of its own, and so do its runners, by inheritance: a lock that can be taken
proves that the agent and everything it started are gone, and no time-out need be waited for.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fray_coordinator import burial
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord
from fray_layouts.names import Agents
from fray_layouts.records import AgentRecord

log = logging.getLogger("fray")


@dataclass(frozen=True, slots=True)
class HostLock:
    """This agent's lock; `fd` is what its runners inherit."""

    path: Path
    fd: int

    def release(self) -> None:
        """Give the lock up and remove its file; only when nothing is held any more."""
        self.path.unlink(missing_ok=True)
        os.close(self.fd)


def lock_folder(root: str) -> Path:
    """Where this host's agents of the cluster under `root` keep their locks."""
    digest = hashlib.sha256(root.encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"fray-{os.getuid()}" / "agents" / digest


def take(root: str, agent_id: str) -> HostLock:
    """Create and lock the file of a new agent."""
    folder = lock_folder(root)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{agent_id}.lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return HostLock(path, fd)


async def bury_predecessors(core: Core, own: HostLock) -> list[str]:
    """Declare dead and bury this host's agents whose locks are free; returns their ids."""
    buried = []
    for path in sorted(own.path.parent.glob("*.lock")):
        if path == own.path:
            continue
        fd = _try_lock(path)
        if fd is None:
            continue
        try:
            try:
                if await _bury(core, path.stem):
                    buried.append(path.stem)
            except BadRecord as error:
                log.warning("%s is not buried yet; the coordinator's pass goes on: %s", path.stem, error)
            path.unlink(missing_ok=True)
        finally:
            os.close(fd)
    return buried


async def _bury(core: Core, agent_id: str) -> bool:
    found = await core.records.read(Agents.key(agent_id), AgentRecord)
    while found is not None and found.record.state == "live":
        killed = await burial.kill(core, found)
        found = killed or await core.records.read(found.key, AgentRecord)
    if found is None:
        return False
    await burial.bury(core, found)
    return True


def _try_lock(path: Path) -> int | None:
    """A locked file descriptor, or None if someone holds the lock or removed the file."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd
