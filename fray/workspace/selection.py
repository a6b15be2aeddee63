"""The files of a folder that make up its workspace.

Those that git sees, tracked or not, less what it ignores, submodules too; without git all, less what the `.gitignore`
of any folder names. In both cases less what `.frayignore` in the top folder names, and less what is of no use
elsewhere: virtual environments and compiled bytecode.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fray_layouts.errors import InvalidInput

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILE = ".frayignore"
"""The file of the top folder that names what stays at home, in the syntax of `.gitignore`."""

_NEVER = frozenset({".git", ".hg", ".svn", "__pycache__"})
"""Names of folders that never go along: of version control, and bytecode, which changes with every run."""

_VENV_MARKER = "pyvenv.cfg"
"""The file in the top folder of every virtual environment, which works only where it was made."""

_SUBMODULE = b"160000"
"""The mode of a submodule in git's index."""

_REDIRECTIONS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
"""Variables that a git hook has, by which git would look at another folder."""

_FOR_IGNORING = f"name it in {IGNORE_FILE} if the job does not need it"


class WorkspaceFile(NamedTuple):
    """A file or symbolic link of a workspace: its path below the top folder, with "/", and what `lstat` says of it."""

    name: str
    status: os.stat_result

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.status.st_mode)


def workspace_files(folder: Path) -> list[WorkspaceFile]:
    """The files and links of the workspace of `folder`, sorted by their names' bytes. Nothing is read but ignore files.

    Raises:
        InvalidInput: there is no such folder, nothing is in it, git cannot list it, or something in it is neither file,
            folder nor link.
    """
    if not os.path.isdir(folder):
        raise InvalidInput("workspace", str(folder), "there is no such folder; name one that exists")
    names = _seen_by_git(folder) or _walked(folder)  # a folder that git ignores as a whole is one without git
    found = [
        WorkspaceFile(name, status)
        for name in sorted(_kept(folder, names), key=os.fsencode)
        if (status := _status(folder, name)) is not None
    ]
    if not found:
        raise InvalidInput("workspace", str(folder), "it has no files that are not ignored; name the project's folder")
    return found


def _status(folder: Path, name: str) -> os.stat_result | None:
    """What there is under a name; None for nothing (git's index may be ahead) and for a folder."""
    try:
        status = os.lstat(f"{folder}/{name}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _refused(name, f"it cannot be looked at ({error.strerror})") from None
    if stat.S_ISDIR(status.st_mode):
        return None
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISLNK(status.st_mode):
        raise _refused(name, "it is a device, a pipe or a socket, which cannot go along")
    return status


def _refused(name: str, why: str) -> InvalidInput:
    return InvalidInput("workspace", name, f"{why}; {_FOR_IGNORING}")


def _kept(folder: Path, names: Iterable[str]) -> Iterator[str]:
    """The names that neither `.frayignore` names nor are of no use elsewhere."""
    listed = set(names)
    environments = {f"{os.path.dirname(name)}/" for name in listed if name.endswith(f"/{_VENV_MARKER}")}
    ignored = _rules_in(folder / IGNORE_FILE)
    for name in listed:
        if not _NEVER.isdisjoint(name.split("/")[:-1]) or any(name.startswith(inside) for inside in environments):
            continue
        if ignored is None or not ignored.match_file(name):
            yield name


def _rules_in(file: Path) -> GitIgnoreSpec | None:
    """The rules of an ignore file; None if there is none."""
    try:
        return parse_rules(file.read_bytes(), file)
    except (FileNotFoundError, IsADirectoryError):
        return None
    except OSError as error:
        raise InvalidInput("workspace", str(file), f"it cannot be read ({error.strerror}); make it readable") from None


def parse_rules(data: bytes, file: Path) -> GitIgnoreSpec:
    """Parse an ignore file. Raises InvalidInput: a pattern means nothing."""
    from pathspec import GitIgnoreSpec  # most projects need none of it

    try:
        return GitIgnoreSpec.from_lines(os.fsdecode(data).splitlines())
    except (ValueError, re.error) as error:
        raise InvalidInput("workspace", str(file), f"a pattern in it means nothing ({error}); correct it") from None


def _seen_by_git(folder: Path) -> list[str] | None:
    """What git lists: tracked and untracked, submodules and repositories inside too. None where there is no git."""
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
    """All files below `folder` that no `.gitignore` on their way names."""
    return list(_walk(str(folder), "", []))


def _walk(top: str, below: str, rules: list[tuple[str, GitIgnoreSpec]]) -> Iterator[str]:
    """The files under `below`, which is "" or ends with "/". rules: of each folder on the way, the deepest last."""
    try:
        with os.scandir(f"{top}/{below}") as listing:
            entries = list(listing)
    except OSError as error:
        raise _refused(below, f"the folder cannot be read ({error.strerror})") from None
    names = {entry.name for entry in entries}
    if below and _VENV_MARKER in names:
        return
    own = _rules_in(Path(top, below, ".gitignore")) if ".gitignore" in names else None
    rules = rules if own is None else [*rules, (below, own)]
    for entry in entries:
        is_folder = entry.is_dir(follow_symlinks=False)
        name = f"{below}{entry.name}"
        if _is_ignored(f"{name}/" if is_folder else name, rules):
            continue
        if not is_folder:
            yield name
        elif entry.name not in _NEVER:
            yield from _walk(top, f"{name}/", rules)


def _is_ignored(name: str, rules: list[tuple[str, GitIgnoreSpec]]) -> bool:
    """What the deepest folder with a word about it says."""
    for prefix, spec in reversed(rules):
        said = spec.check_file(name.removeprefix(prefix)).include
        if said is not None:
            return said
    return False
