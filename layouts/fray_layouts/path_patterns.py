"""Patterns for the paths of files below a folder, such as `checkpoints/**`.

`*`, `?` and `[...]` match characters within one name, `**` matches any number of folders, and a pattern that names a
folder matches everything in it. While a program walks a tree, a `PathMatch` says where nothing can match.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from fray_layouts.errors import InvalidInput

MAX_PATTERNS = 100
"""Largest number of patterns of one job: each name in a tree is compared with all of them."""
MAX_PATTERN_CHARACTERS = 1000
"""Longest pattern, in characters: far longer than any path that people write."""


@dataclass(frozen=True, slots=True)
class PathMatch:
    """The state of a set of patterns at one folder of a walk.

    Attributes:
        rests: for each pattern that still matches, the names that remain to be matched; an empty rest matches
            everything.
    """

    rests: frozenset[tuple[str, ...]]

    @staticmethod
    def of(patterns: Iterable[str]) -> PathMatch:
        """The state at the top folder. `patterns` must have passed `check_patterns`."""
        return PathMatch(frozenset(_names(pattern) for pattern in patterns))

    def entered(self, name: str) -> PathMatch:
        """The state at the file or folder `name` in this folder."""
        return PathMatch(frozenset(_after(self.rests, name)))

    def is_possible(self) -> bool:
        """Whether anything here or below can match."""
        return bool(self.rests)

    def is_met(self) -> bool:
        """Whether a file at this place matches."""
        return any(set(rest) <= {"**"} for rest in self.rests)

    def has(self, path: str) -> bool:
        """Whether the file at `path`, relative to this place, matches."""
        match = self
        for name in path.split("/"):
            match = match.entered(name)
        return match.is_met()


def _names(pattern: str) -> tuple[str, ...]:
    """Split a pattern into names; several `**` in a row become one."""
    names = pattern.rstrip("/").split("/")
    return tuple(name for name, before in zip(names, ["", *names], strict=False) if not name == before == "**")


def _after(rests: Iterable[tuple[str, ...]], name: str) -> Iterable[tuple[str, ...]]:
    for rest in rests:
        if not rest:
            yield rest
        elif rest[0] == "**":
            yield rest
            yield from _after([rest[1:]] if rest[1:] else [], name)
        elif fnmatchcase(name, rest[0]):
            yield rest[1:]


def check_patterns(field: str, patterns: Iterable[str]) -> None:
    """Raise InvalidInput, naming `field`, unless every pattern is a relative path that stays below its folder."""
    given = list(patterns)
    if len(given) > MAX_PATTERNS:
        raise InvalidInput(field, f"{len(given)} patterns", f"give at most {MAX_PATTERNS}; `**` stands for folders")
    for number, pattern in enumerate(given):
        names = pattern.rstrip("/").split("/")
        if len(pattern) > MAX_PATTERN_CHARACTERS:
            raise InvalidInput(f"{field}[{number}]", pattern, f"give at most {MAX_PATTERN_CHARACTERS} characters")
        if any(name in ("", ".", "..") or "\0" in name for name in names):
            remedy = "give a path below the job's working directory, such as checkpoints/**, without '.' and '..'"
            raise InvalidInput(f"{field}[{number}]", pattern, remedy)
