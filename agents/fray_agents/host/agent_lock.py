"""The lock that shows whether an agent of this host is alive.

Each agent process holds a lock on a file of its own, and its runners inherit the lock. So a lock that can be taken
proves that the agent and everything that it started are gone, without waiting for a time-out. The file gets its name
only once it is locked, so nobody ever finds the lock of a live agent free. It contains the path of the agent's work
directory.
"""

import fcntl
import hashlib
import logging
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from fray_runtime.directories import UntrustedDirectory, private_dir, user_dir

log = logging.getLogger("fray")

MAX_PATH_BYTES = 4096
"""Bytes of the longest path on Linux (PATH_MAX)."""


@dataclass(frozen=True, slots=True)
class AgentLock:
    """A held lock on an agent's file; runners inherit its descriptor `fd`."""

    path: Path
    fd: int

    def work_dir(self, parent: Path | None) -> Path:
        """Create the directory of this agent's tasks; a process that finds this lock free later removes it.

        Args:
            parent: the folder in which to create it; None: one under the temporary directory.

        Raises:
            UntrustedDirectory: another user could write there.
        """
        if parent is None:
            parent = user_dir("work")
        parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        directory = parent.absolute() / self.path.stem
        os.write(self.fd, os.fsencode(directory))
        return private_dir(directory)

    def release(self) -> None:
        """Release the lock and remove its file, once the agent holds nothing any more."""
        self.path.unlink(missing_ok=True)
        os.close(self.fd)


def lock_folder(root: str) -> Path:
    """The folder with the locks of this host's agents of the cluster under `root`; `acquire_lock` creates it."""
    return user_dir("agents") / hashlib.sha256(root.encode()).hexdigest()[:16]


def acquire_lock(root: str, agent_id: str) -> AgentLock:
    """Create and lock the file of a new agent. Raises `UntrustedDirectory`."""
    folder = private_dir(lock_folder(root))
    path = folder / f"{agent_id}.lock"
    while True:
        # Under a name that is no agent's. A process that finds it free treats it as one that a dead agent left.
        nameless = folder / f"{agent_id}~{secrets.token_hex(4)}.lock"
        fd = os.open(nameless, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            nameless.rename(path)
        except (BlockingIOError, FileNotFoundError):
            os.close(fd)
        except BaseException:
            nameless.unlink(missing_ok=True)
            os.close(fd)
            raise
        else:
            return AgentLock(path, fd)


def work_dir_of(agent_id: str, fd: int) -> Path | None:
    """The work directory in a dead agent's lock file; None if it does not exist, or is not this user's."""
    directory = Path(os.fsdecode(os.pread(fd, MAX_PATH_BYTES, 0)))
    if directory.name != agent_id or not os.path.lexists(directory):
        return None
    try:
        return private_dir(directory)
    except UntrustedDirectory as error:
        log.warning("the work directory of %s is not removed: %s", agent_id, error)
        return None
