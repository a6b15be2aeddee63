"""Selects the files of a folder that make up its workspace.

**Rules.** Where git is absent, the rules of a `.gitignore` have the meaning that git gives them. They are translated
from git's own matching (`dir.c`, `wildmatch.c`): the libraries for this differ from it in escapes, classes, white space
and in what a rule says about a folder. A rule says something about the one name that it matches; what is in an ignored
folder is never asked about. Names are bytes, as they are for git.

**Files.** With git, they are the files that git sees, tracked or not, except those that it ignores; submodules are
included. Without git, they are all files except those that the `.gitignore` of any folder names. In both cases files
that `.frayignore` in the top folder names are left out, and so are files that are useless on other hosts: virtual
environments and compiled bytecode.
"""

from __future__ import annotations

import os
import re
import stat
import string
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fray_layouts.errors import InvalidInput

_BOM = b"\xef\xbb\xbf"
_SPECIAL = re.compile(rb"[*?\[\\]")

_CLASSES = {
    b"alnum": string.ascii_letters + string.digits,
    b"alpha": string.ascii_letters,
    b"blank": " \t",
    b"cntrl": "".join(map(chr, (*range(32), 127))),
    b"digit": string.digits,
    b"graph": "".join(map(chr, range(33, 127))),
    b"lower": string.ascii_lowercase,
    b"print": "".join(map(chr, range(32, 127))),
    b"punct": string.punctuation,
    b"space": string.whitespace,
    b"upper": string.ascii_uppercase,
    b"xdigit": string.hexdigits,
}
"""The characters of the classes of POSIX, in the C locale."""


class _MeaninglessPattern(Exception):
    """A pattern that matches nothing, as for git: an empty class or one without an end, a backslash at the end."""


class IgnoreRule(NamedTuple):
    """A line of an ignore file.

    Attributes:
        ignores: what it says about a name that it matches; False for a line with "!".
        folders_only: it matches folders only.
        last_part_only: it is compared with the last part of a path, else with the whole path below the file's folder.
    """

    ignores: bool
    folders_only: bool
    last_part_only: bool
    prefix: bytes
    rest: re.Pattern[bytes]

    def matches(self, path: bytes, is_folder: bool) -> bool:
        if self.folders_only and not is_folder:
            return False
        name = path.rpartition(b"/")[2] if self.last_part_only else path
        return name.startswith(self.prefix) and self.rest.fullmatch(name, len(self.prefix)) is not None


class IgnoreRules:
    """The rules of one file.

    Attributes:
        meaningless: the lines that can match nothing.
    """

    def __init__(self, data: bytes) -> None:
        self.meaningless: list[bytes] = []
        self._rules: list[IgnoreRule] = []
        for line in data.removeprefix(_BOM).split(b"\n"):
            if line.startswith(b"#") or not (pattern := _without_spaces(line.removesuffix(b"\r"))):
                continue
            try:
                self._rules.append(_rule(pattern))
            except _MeaninglessPattern:
                self.meaningless.append(pattern)
        self._rules.reverse()

    def verdict(self, path: bytes, is_folder: bool) -> bool | None:
        """What the last rule that matches a path says, whether it is ignored; None if no rule matches.

        path: below the file's folder, without a slash at its end.
        """
        return next((rule.ignores for rule in self._rules if rule.matches(path, is_folder)), None)


def _without_spaces(line: bytes) -> bytes:
    """The line without spaces at its end, unless they are behind a backslash."""
    end = kept = 0
    while end < len(line):
        escaped = line[end : end + 1] == b"\\"
        end += 2 if escaped else 1
        if escaped or line[end - 1 : end] != b" ":
            kept = end
    return line[:kept]


def _rule(pattern: bytes) -> IgnoreRule:
    ignores = not pattern.startswith(b"!")
    body = pattern if ignores else pattern[1:]
    folders_only = body.endswith(b"/")
    body = body.removesuffix(b"/")
    last_part_only = b"/" not in body
    if body.startswith(b"/"):
        body = body[1:]
    if not body:
        raise _MeaninglessPattern
    # As for git, what is before the first wildcard is compared by itself, so "a**/b" is "a", and then "**/b".
    special = _SPECIAL.search(body)
    start = special.start() if special and not last_part_only else 0 if special else len(body)
    return IgnoreRule(ignores, folders_only, last_part_only, body[:start], re.compile(_expression(body[start:]), re.S))


def _expression(glob: bytes) -> bytes:
    """The regular expression of a pattern with wildcards."""
    found, at = b"", 0
    while at < len(glob):
        char = glob[at : at + 1]
        if char == b"*":
            end = at + len(glob[at:]) - len(glob[at:].lstrip(b"*"))
            any_folders = end - at > 1 and glob[at - 1 : at] in (b"", b"/") and _ends_part(glob, end)
            if any_folders and glob[end : end + 1] == b"/":
                found, at = found + b"(?:.*/)?", end + 1
            else:
                found, at = found + (b".*" if any_folders else b"[^/]*"), end
        elif char == b"?":
            found, at = found + b"[^/]", at + 1
        elif char == b"[":
            chosen, at = _class(glob, at + 1)
            found += b"[" + b"".join(b"\\x%02x" % each for each in sorted(chosen)) + b"]"
        else:
            literal, at = _literal(glob, at)
            found += re.escape(bytes([literal]))
    return found


def _ends_part(glob: bytes, at: int) -> bool:
    return at == len(glob) or glob.startswith((b"/", b"\\/"), at)


def _literal(glob: bytes, at: int) -> tuple[int, int]:
    """The character at a place, or behind a backslash there, and the place behind it."""
    at += glob[at : at + 1] == b"\\"
    if at >= len(glob):
        raise _MeaninglessPattern
    return glob[at], at + 1


def _class(glob: bytes, at: int) -> tuple[set[int], int]:
    """The characters of a class in brackets, which begins behind "[", and the place behind it."""
    negated = glob[at : at + 1] in (b"!", b"^")
    at += negated
    chosen: set[int] = set()
    first, previous = True, -1
    while first or glob[at : at + 1] != b"]":
        if at >= len(glob):
            raise _MeaninglessPattern
        first = False
        if glob[at : at + 1] == b"-" and previous >= 0 and glob[at + 1 : at + 2] not in (b"", b"]"):
            last, at = _literal(glob, at + 1)
            chosen.update(range(previous, last + 1))
            previous = -1
        elif glob.startswith(b"[:", at):
            end = glob.find(b"]", at + 2)
            if end < 0:
                raise _MeaninglessPattern
            if end > at + 2 and glob[end - 1 : end] == b":":
                if (name := glob[at + 2 : end - 1]) not in _CLASSES:
                    raise _MeaninglessPattern
                chosen.update(_CLASSES[name].encode())
                at, previous = end + 1, -1
            else:
                chosen.add(previous := ord("["))
                at += 1
        else:
            previous, at = _literal(glob, at)
            chosen.add(previous)
    chosen = (set(range(256)) - chosen if negated else chosen) - {ord("/")}
    if not chosen:
        raise _MeaninglessPattern
    return chosen, at + 1


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
