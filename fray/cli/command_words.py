"""What a command runs: the script, the module or the program behind interpreters and launchers.

`fray run` names jobs after it, and warns if the job will not find it.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

_PYTHON = re.compile(r"(python|pypy)[0-9.]*")
_SHELLS = frozenset({"bash", "dash", "sh", "zsh"})
_LAUNCHERS = frozenset({"accelerate", "deepspeed", "torchrun"})
"""Programs with many options of their own that start a script, or a module given by -m."""

_WRAPPERS = {
    "env": {"-C", "-S", "-u"},
    "nice": {"-n"},
    "nohup": set[str](),
    "stdbuf": {"-e", "-i", "-o"},
    "time": {"-f", "-o"},
    "timeout": {"-k", "-s"},
    "uv": {
        *("--directory", "--env-file", "--extra", "--group", "--index", "--package", "--project", "--python", "-p"),
        *("--with", "--with-editable", "--with-requirements"),
    },
}
"""Programs that start the command behind their own options, with those options that have a value as their next word."""

_VALUED = {"-W", "-X", "--check-hash-based-pycs"}
"""Options of Python that have a value as their next word."""

_SCRIPT = re.compile(r"\.(py|sh|ipynb)")


class Kind(Enum):
    """The kind of thing that a command runs."""

    MODULE = "module"
    SCRIPT = "script"
    PROGRAM = "program"


class Main(NamedTuple):
    """What a command runs: text is a module's name, a script's path, or a program's path or name."""

    kind: Kind
    text: str

    @property
    def name(self) -> str:
        """Its name without folder and ending."""
        name = os.path.basename(self.text)
        return _SCRIPT.sub("", name) if self.kind is not Kind.MODULE and _SCRIPT.search(name, 1) else name


def main_of(command: Sequence[str]) -> Main:
    """What a command runs. Of what it does not know, it says the program."""
    program, rest = Main(Kind.PROGRAM, command[0]), list(command[1:])
    known = os.path.basename(command[0])
    if _PYTHON.fullmatch(known):
        return _behind_options(rest, _VALUED) or program
    if known in _SHELLS:
        return _behind_options(rest, set()) or program
    if known in _LAUNCHERS:
        scripts = (Main(Kind.SCRIPT, word) for word in rest if word.endswith(".py"))
        return _module_of(rest) or next(scripts, program)
    if known in _WRAPPERS and (known != "uv" or rest[:1] == ["run"]):
        inner = _without_options(rest[known == "uv" :], _WRAPPERS[known], known)
        if known == "uv" and inner and inner[0] in ("-m", "--module"):
            return _module_of(inner) or program
        if inner:
            return Main(Kind.SCRIPT, inner[0]) if known == "uv" and inner[0].endswith(".py") else main_of(inner)
    return program


def _module_of(words: Sequence[str]) -> Main | None:
    behind = (words[at + 1] for at, word in enumerate(words[:-1]) if word in ("-m", "--module"))
    return next((Main(Kind.MODULE, name) for name in behind), None)


def _behind_options(words: list[str], valued: Collection[str]) -> Main | None:
    """The module or script of an interpreter; None if it gets code, or nothing."""
    while words and words[0].startswith("-"):
        option, *words = words
        if option == "-m" and words:
            return Main(Kind.MODULE, words[0])
        if option == "-" or re.fullmatch(r"-[a-zA-Z]*c", option):
            return None
        if option in valued:
            words = words[1:]
    return Main(Kind.SCRIPT, words[0]) if words else None


def _without_options(words: list[str], valued: Collection[str], program: str) -> list[str]:
    """The command behind a wrapper's options, variables and, for timeout, its duration."""
    while words:
        word = words[0]
        if word in ("-m", "--module"):
            break
        if word.startswith("-"):
            words = words[2 if word in valued else 1 :]
        elif program == "env" and "=" in word:
            words = words[1:]
        else:
            break
    return words[1:] if program == "timeout" else words


class Sent(NamedTuple):
    """What a job gets: the top folder of its workspace, and the paths below it; None for the folder if it gets none."""

    folder: Path | None
    names: Collection[str] = ()


def missing_files(command: Sequence[str], sent: Sent | None) -> Iterator[str]:
    """Say in one line each, with the remedy, which files and folders a command names that will not be where it runs.

    sent: None if the job runs in this folder, or if the user said that it gets none; then only a script that does not
        exist is named.
    """
    main = main_of(command)
    if main.kind is Kind.SCRIPT and not os.path.isabs(main.text) and not os.path.exists(main.text):
        yield f"there is no file {main.text} here{_suggestion(main.text)}"
    if sent is None:
        return
    words = [*command, *_places(main)]
    here = dict.fromkeys(path for word in words if (path := _named_path(word)))
    if sent.folder is None and here:
        yield (
            f"the job gets no copy of {', '.join(here)}: this folder is not a project (it has no pyproject.toml, "
            "uv.lock, .git or requirements.txt); give --workspace . to copy it"
        )
    elif left_out := [path for path in here if _is_left_out(path, sent)]:
        yield (
            f"the job gets no copy of {', '.join(left_out)}, which .gitignore or .frayignore leaves out; take it "
            "out of there (for .gitignore, `git add -f` is enough), or let the job read it from storage"
        )


def _places(main: Main) -> list[str]:
    """Where a module that a command runs may be in this folder."""
    place = main.text.replace(".", "/") if main.kind is Kind.MODULE else ""
    return [f"{place}.py", place] if place else []


def _named_path(word: str) -> str | None:
    """The relative path of a file or folder here that a word is, or that an option has as its value."""
    path = word.partition("=")[2] if word.startswith("-") else word
    inside = bool(path) and not os.path.isabs(path) and not os.path.normpath(path).startswith("..")
    return path if inside and path != "." and os.path.exists(path) else None


def _is_left_out(path: str, sent: Sent) -> bool:
    """Whether nothing at a path of the current directory, if that is inside of the folder, is sent."""
    full = Path(os.path.abspath(path))
    if sent.folder is None or not full.is_relative_to(sent.folder):
        return False
    below = full.relative_to(sent.folder).as_posix()
    is_empty = full.is_dir() and not any(full.iterdir())
    return not is_empty and not any(name == below or name.startswith(f"{below}/") for name in sent.names)


def _suggestion(script: str) -> str:
    folder, name = os.path.split(script)
    try:
        names = [each.name for each in os.scandir(folder or ".") if each.is_file()]
    except OSError:
        names = []
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"; did you mean {os.path.join(folder, close[0])}?" if close else "; the job may not find it"
