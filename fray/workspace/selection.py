"""Selects the files of a folder that make up its workspace.

With git, they are the files that git sees, tracked or not, except those that it ignores; submodules are included.
Without git, they are all files except those that the `.gitignore` of any folder names. In both cases files that
`.frayignore` in the top folder names are left out, and so are files that are useless on other hosts: virtual
environments and compiled bytecode.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fray.workspace.ignore_rules import IgnoreRules
from fray_layouts.errors import InvalidInput

IGNORE_FILE = ".frayignore"
"""File in the top folder that names files to leave out, in the syntax of `.gitignore`."""

_NEVER = frozenset({".git", ".hg", ".svn", "__pycache__"})
"""Names of folders that are always left out: those of version control, and bytecode, which changes with every run."""

_VENV_MARKER = "pyvenv.cfg"
"""File in the top folder of every virtual environment. A virtual environment works only where it was created."""

_SUBMODULE = b"160000"
"""The mode of a submodule in git's index."""

_REDIRECTIONS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
"""Variables that git hooks have, and that would make git use another folder."""

_FOR_IGNORING = f"list it in {IGNORE_FILE} if the job does not need it"


class WorkspaceFile(NamedTuple):
    """A file or symbolic link of a workspace: its path below the top folder, with "/", and its `lstat` result."""

    name: str
    status: os.stat_result

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.status.st_mode)


def workspace_files(folder: Path) -> list[WorkspaceFile]:
    """The files and links of the workspace of `folder`, sorted by their names' bytes. Only ignore files are read.

    Raises:
        InvalidInput: the folder does not exist, it has no files, git cannot list it, or it contains something that is
            neither a file, a folder nor a link.
    """
    if not os.path.isdir(folder):
        raise InvalidInput("workspace", str(folder), "there is no such folder; name one that exists")
    names = _seen_by_git(folder) or _walked(folder)  # a folder that git ignores entirely is treated as one without git
    found = [
        WorkspaceFile(name, status)
        for name in sorted(_kept(folder, names), key=os.fsencode)
        if (status := _status(folder, name)) is not None
    ]
    if not found:
        raise InvalidInput("workspace", str(folder), "it has no files that are not ignored; name the project's folder")
    return found


def _status(folder: Path, name: str) -> os.stat_result | None:
    """The status of a file or link; None for a folder, or if it does not exist (git's index may be out of date)."""
    try:
        status = os.lstat(f"{folder}/{name}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _refused(name, f"its status cannot be read ({error.strerror})") from None
    if stat.S_ISDIR(status.st_mode):
        return None
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISLNK(status.st_mode):
        raise _refused(name, "it is a device, a pipe or a socket, which cannot be packed")
    return status


def _refused(name: str, why: str) -> InvalidInput:
    return InvalidInput("workspace", name, f"{why}; {_FOR_IGNORING}")


def _kept(folder: Path, names: Iterable[str]) -> Iterator[str]:
    """The names without those that `.frayignore` names and those that are useless on other hosts."""
    listed = set(names)
    environments = {f"{os.path.dirname(name)}/" for name in listed if name.endswith(f"/{_VENV_MARKER}")}
    rules = _rules_in(folder / IGNORE_FILE)
    if rules and rules.meaningless:
        what = os.fsdecode(rules.meaningless[0])
        raise InvalidInput("workspace", str(folder / IGNORE_FILE), f"the pattern {what!r} matches nothing; correct it")
    ignored = cache(lambda name, is_folder: rules is not None and bool(rules.verdict(os.fsencode(name), is_folder)))
    for name in listed:
        if not _NEVER.isdisjoint(name.split("/")[:-1]) or any(name.startswith(inside) for inside in environments):
            continue
        if not any(ignored(parent, True) for parent in _parents(name)) and not ignored(name, False):
            yield name


def _parents(name: str) -> Iterator[str]:
    """The folders that a name is in, the topmost first."""
    return (name[: slash.start()] for slash in re.finditer("/", name))


def _rules_in(file: Path) -> IgnoreRules | None:
    """The rules of an ignore file; None if there is none."""
    try:
        return IgnoreRules(file.read_bytes())
    except (FileNotFoundError, IsADirectoryError):
        return None
    except OSError as error:
        raise InvalidInput("workspace", str(file), f"it cannot be read ({error.strerror}); make it readable") from None


def _seen_by_git(folder: Path) -> list[str] | None:
    """The files that git lists, tracked or not, also those of submodules and inner repositories. None without git."""
    if not any((place / ".git").exists() for place in (folder.absolute(), *folder.absolute().parents)):
        return None
    command = [
        "git",
        "-C",
        str(folder),
        "ls-files",
        "-z",
        "-t",
        "--stage",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    environ = {name: value for name, value in os.environ.items() if name not in _REDIRECTIONS}
    try:
        listing = subprocess.run(command, env=environ, capture_output=True, check=True).stdout
    except FileNotFoundError:  # no git on this machine
        return None
    except subprocess.CalledProcessError as error:
        words = " ".join(error.stderr.decode(errors="replace").split())
        raise InvalidInput("workspace", str(folder), f"git cannot list its files ({words}); correct that") from None
    found: list[str] = []
    for row in listing.split(b"\0")[:-1]:
        tag, row = row[:1], row[2:]
        mode, _, path = (b"", b"", row) if tag == b"?" else (row[:6], *row.partition(b"\t")[1:])
        name = os.fsdecode(path)
        if mode == _SUBMODULE or name.endswith("/"):
            inner = name.rstrip("/")
            below = _seen_by_git(folder / inner) if (folder / inner / ".git").exists() else None
            found += [f"{inner}/{one}" for one in below or ()]
        else:
            found.append(name)
    return found


def _walked(folder: Path) -> list[str]:
    """All files below `folder` that no `.gitignore` of their parent folders names."""
    return list(_walk(str(folder), "", []))


def _walk(top: str, below: str, rules: list[tuple[str, IgnoreRules]]) -> Iterator[str]:
    """The files under `below`, which is "" or ends with "/". rules: those of each parent folder, the deepest last."""
    try:
        with os.scandir(f"{top}/{below}") as listing:
            entries = list(listing)
    except OSError as error:
        raise _refused(below, f"the folder cannot be read ({error.strerror})") from None
    names = {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}  # git follows no link here either
    if below and _VENV_MARKER in names:
        return
    own = _rules_in(Path(top, below, ".gitignore")) if ".gitignore" in names else None
    rules = rules if own is None else [*rules, (below, own)]
    for entry in entries:
        is_folder = entry.is_dir(follow_symlinks=False)
        name = f"{below}{entry.name}"
        if _is_ignored(name, is_folder, rules):
            continue
        if not is_folder:
            yield name
        elif entry.name not in _NEVER:
            yield from _walk(top, f"{name}/", rules)


def _is_ignored(name: str, is_folder: bool, rules: list[tuple[str, IgnoreRules]]) -> bool:
    """Whether the rules ignore a name. The deepest folder with a rule that matches it decides."""
    for prefix, own in reversed(rules):
        ignored = own.verdict(os.fsencode(name.removeprefix(prefix)), is_folder)
        if ignored is not None:
            return ignored
    return False
