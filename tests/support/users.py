"""Finds out what another user of this host could do: as root by trying, otherwise from owner and mode."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  imported now, because that user may have no access to the interpreter
import os
import pickle
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

STRANGER = 54321
"""A user who owns nothing and is in no other group."""


def is_root() -> bool:
    return os.geteuid() == 0


@contextmanager
def place_for_all(mode: int = 0o755) -> Iterator[Path]:
    """A folder that every user may enter; the tests' own folders are below a closed one."""
    folder = Path(tempfile.mkdtemp(prefix="fray-test-"))
    try:
        folder.chmod(mode)
        yield folder
    finally:
        shutil.rmtree(folder)


def unprivileged(act: Callable[[], T], uid: int = STRANGER, group: int = STRANGER) -> T:
    """Run `act` in a process without root's rights: as `uid` if this is root, otherwise as the user of the tests."""
    out, into = os.pipe()
    child = os.fork()
    if not child:
        try:
            if is_root():
                os.setgroups([])
                os.setgid(group)
                os.setuid(uid)
            answer = pickle.dumps(act())
            with os.fdopen(into, "wb") as pipe:
                pipe.write(answer)
            os._exit(0)
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
            os._exit(1)
    os.close(into)
    with os.fdopen(out, "rb") as pipe:
        answer = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "it raised; see stderr"
    result: T = pickle.loads(answer)
    return result


def may_stranger(path: Path, mode: int) -> bool:
    """Whether another user has access `mode` (as for `os.access`) to `path`, whose parent folders are open to all."""
    if is_root():
        return unprivileged(lambda: os.access(path, mode))
    return path.stat().st_mode & mode == mode
