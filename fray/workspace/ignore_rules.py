"""The rules of a `.gitignore`, with the meaning that git gives them, for folders where git is absent.

They are translated from git's own matching (`dir.c`, `wildmatch.c`): the libraries for this differ from it in escapes,
classes, white space and in what a rule says about a folder. A rule says something about the one name that it matches;
what is in an ignored folder is never asked about. Names are bytes, as they are for git.
"""

from __future__ import annotations

import re
import string
from typing import NamedTuple

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
