"""Directories that only this user can use; outside of roots, Fray uses no other directories of a host.

A user who owned one, or could write into it, could run code as this user (through Unix sockets and work directories) or
declare a live agent dead (through agent locks). Everybody can write to the temporary directory itself; its sticky bit
protects our entries.

The threads for long work with files, such as unpacking, copying and removing trees, are separate from the event loop's
own threads, which requests to a store need to look up names and to read lists: behind a queue of large copies a
heartbeat would come too late.
"""

import asyncio
import errno
import fcntl
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from fray_layouts.errors import Permanent
from fray_runtime.forks import no_forks
from fray_runtime.variables import read_variable

log = logging.getLogger("fray")
T = TypeVar("T")


SHORTAGE_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that may pass without any action on Fray: no space, descriptors or memory."""


def is_shortage(error: Exception) -> bool:
    """Whether the error says that the host lacks some resource now."""
    return isinstance(error, OSError) and error.errno in SHORTAGE_ERRNOS


class UntrustedDirectory(Permanent):
    """A directory that must be this user's alone belongs to or is writable by others, or cannot be created."""

    def __init__(self, path: Path, why: str) -> None:
        remedy = "look at it and remove it, or set TMPDIR (for the cache XDG_CACHE_HOME) to a directory of this user"
        super().__init__(f"{path} {why}; {remedy}")


HOST_TEMPORARY = Path("/tmp")
"""The directory in which all processes of a host find the same files, whatever their TMPDIR says."""


def user_dir(*names: str) -> Path:
    """`fray-<uid>/<names>` under the temporary directory, created where it is absent. Raises `UntrustedDirectory`."""
    return _user_dir_below(Path(tempfile.gettempdir()), names)


def host_dir(*names: str) -> Path:
    """`fray-<uid>/<names>` under `/tmp`, created where it is absent, for what does not depend on TMPDIR.

    That is what all processes of this user on the host have to share, and what needs a short path. Where `/tmp` cannot
    be used, it is under the temporary directory, and a warning says so. Raises `UntrustedDirectory`.
    """
    try:
        return _user_dir_below(HOST_TEMPORARY, names)
    except UntrustedDirectory as error:
        if Path(tempfile.gettempdir()) == HOST_TEMPORARY:
            raise
        directory = user_dir(*names)
        log.warning("%s; %s is used instead, which processes with another TMPDIR do not share", error, directory)
        return directory


def _user_dir_below(parent: Path, names: tuple[str, ...]) -> Path:
    path = private_dir(parent / f"fray-{os.geteuid()}")
    for name in names:
        path = private_dir(path / name)
    return path


def cache_dir() -> Path:
    """The folder for data that later agents of this user can reuse: `fray` in XDG_CACHE_HOME, else in `~/.cache`.

    If neither can be created (a user without a home), it is under the temporary directory. Raises UntrustedDirectory:
    it is not this user's alone.
    """
    parent = Path(read_variable("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
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
        UntrustedDirectory: it is not, or cannot be created.
        OSError: a shortage, which may pass.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass  # its owner is checked below
    except OSError as error:
        if is_shortage(error):
            raise
        raise UntrustedDirectory(path, f"cannot be created ({error.strerror})") from None
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (NotADirectoryError, PermissionError) as error:
        raise UntrustedDirectory(path, f"is not a directory of this user ({error.strerror})") from None
    try:
        status = os.fstat(handle)
        if status.st_uid != os.geteuid():
            raise UntrustedDirectory(path, f"belongs to user {status.st_uid}")
        if status.st_mode & 0o022:
            raise UntrustedDirectory(path, "can be written by other users")
        if status.st_mode & 0o077:  # no other user could write here so far, and none may read from now on
            os.fchmod(handle, 0o700)
    finally:
        os.close(handle)
    return path


async def remove_tree(directory: Path) -> None:
    """Remove a directory with its content, whatever its mode and depth; a failure is logged."""
    if not _remove_empty(directory):
        # only here: keeps an actor's server small

        await in_file_thread(_remove_tree, directory)


def _remove_empty(directory: Path) -> bool:
    """Remove an empty directory; whether it is gone. Most agents leave an empty one; this saves a thread."""
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


THREADS = 4
"""Threads that work at once: with more the disk would only switch between them."""


async def in_file_thread(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function in one of these threads, as `asyncio.to_thread` does in the loop's threads."""
    return await asyncio.get_running_loop().run_in_executor(_threads(), partial(function, *args, **kwargs))


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="fray-files")


os.register_at_fork(after_in_child=_threads.cache_clear)  # a child has none of its parent's threads


def try_lock(path: Path, kind: int = fcntl.LOCK_EX, flags: int = 0) -> int | None:
    """A locked file descriptor; None if somebody holds the lock or the file no longer has this name.

    Args:
        kind: LOCK_EX for one holder, LOCK_SH for many.
        flags: O_CREAT to create the file if it is absent.
    """
    with suppress(FileNotFoundError, BlockingIOError):
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.lstat(path)):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    return None
