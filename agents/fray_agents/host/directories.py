"""Directories that are this user's alone: on a host, outside of every root, Fray uses no others.

Whoever owned one, or could write into it, could run code as this user (Unix sockets, work directories) or declare a
live agent dead (agent locks). The temporary directory itself is open to all; its sticky bit keeps what is ours.
"""

import errno
import logging
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from fray_agents.host.forks import no_forks
from fray_layouts.errors import Permanent

log = logging.getLogger("fray")


SHORTAGE_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that pass without anybody's doing anything about Fray: no space, descriptors or memory."""


def is_shortage(error: Exception) -> bool:
    """Whether the error says that the host has too little of something now."""
    return isinstance(error, OSError) and error.errno in SHORTAGE_ERRNOS


class UntrustedDirectory(Permanent):
    """A directory that only this user may use is somebody else's, or others may write into it, or it cannot be made."""

    def __init__(self, path: Path, why: str) -> None:
        remedy = "look at it and remove it, or set TMPDIR (for the cache XDG_CACHE_HOME) to a directory of this user"
        super().__init__(f"{path} {why}; {remedy}")


def user_dir(*names: str) -> Path:
    """`fray-<uid>/<names>` under the temporary directory, created where it is absent. Raises `UntrustedDirectory`."""
    path = private_dir(Path(tempfile.gettempdir(), f"fray-{os.geteuid()}"))
    for name in names:
        path = private_dir(path / name)
    return path


def cache_dir() -> Path:
    """Where this user's agents keep what later ones can use: `fray` under XDG_CACHE_HOME, else under `~/.cache`.

    Where neither can be made (a user without a home) it is under the temporary directory. Raises UntrustedDirectory: it
    is not this user's alone.
    """
    parent = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    if not parent.is_absolute():
        return user_dir("cache")
    try:
        parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return user_dir("cache")
    return private_dir(parent / "fray")


def private_dir(path: Path) -> Path:
    """Create the directory `path`, whose parent exists; if it exists, check that it is this user's alone.

    Raises:
        UntrustedDirectory: it cannot be that.
        OSError: a shortage, which may pass.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass  # whose it is, is checked below
    except OSError as error:
        if is_shortage(error):
            raise
        raise UntrustedDirectory(path, f"cannot be made ({error.strerror})") from None
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (NotADirectoryError, PermissionError) as error:
        raise UntrustedDirectory(path, f"is no directory of this user ({error.strerror})") from None
    try:
        status = os.fstat(handle)
        if status.st_uid != os.geteuid():
            raise UntrustedDirectory(path, f"belongs to user {status.st_uid}")
        if status.st_mode & 0o022:
            raise UntrustedDirectory(path, "can be written by other users")
        if status.st_mode & 0o077:  # nobody else has put anything there, and nobody else may read it from now on
            os.fchmod(handle, 0o700)
    finally:
        os.close(handle)
    return path


async def remove_tree(directory: Path) -> None:
    """Remove a directory and all that is in it, whatever its mode and however deep; what stays is logged."""
    if not _remove_empty(directory):
        from fray_agents.host.file_threads import in_file_thread  # not for an actor's server, which is small

        await in_file_thread(_remove_tree, directory)


def _remove_empty(directory: Path) -> bool:
    """Whether it is gone. Of most agents nothing is left, and a thread costs more than this."""
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _remove_tree(directory: Path) -> None:
    with suppress(RecursionError):
        shutil.rmtree(directory, ignore_errors=True)
    if not os.path.lexists(directory):
        return
    command = 'chmod -R u+rwX -- "$0"; exec rm -rf -- "$0"'
    with no_forks:
        removal = subprocess.Popen(
            ["sh", "-c", command, directory], stderr=subprocess.PIPE, text=True, errors="replace"
        )
    _, trouble = removal.communicate()
    if os.path.lexists(directory):
        log.warning("%s cannot be removed: %s", directory, trouble.strip()[-500:])
