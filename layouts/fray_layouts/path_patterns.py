"""Patterns of the paths of files below a folder, such as `checkpoints/**`.

`*`, `?` and `[...]` stand for characters of one name, `**` for any number of folders, and a folder for all that is in
it. A walk through a tree tells a `PathMatch` each name that it enters and need not look where nothing can match.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from fray_layouts.errors import InvalidInput

MAX_PATTERNS = 100
"""Patterns of one job: each name of a tree is held against all of them."""
MAX_PATTERN_CHARACTERS = 1000
"""Characters of a pattern: far more than any path that people write."""


@dataclass(frozen=True, slots=True)
class PathMatch:
    """The state of some patterns at one place of a walk from a folder down.

    Attributes:
        rests: what of each pattern is left to be met, as names; nothing left means that all from here on is meant.
    """

    rests: frozenset[tuple[str, ...]]

    @staticmethod
    def of(patterns: Iterable[str]) -> PathMatch:
        """The begin of a walk. Patterns are as `check_patterns` takes them."""
        return PathMatch(frozenset(_names(pattern) for pattern in patterns))

    def entered(self, name: str) -> PathMatch:
        """The match of what has this name here."""
        return PathMatch(frozenset(_after(self.rests, name)))

    def is_possible(self) -> bool:
        """Whether anything here or below can be meant."""
        return bool(self.rests)

    def is_met(self) -> bool:
        """Whether a file here is meant."""
        return any(set(rest) <= {"**"} for rest in self.rests)

    def has(self, path: str) -> bool:
        """Whether the file at `path`, from here, is meant."""
        match = self
        for name in path.split("/"):
            match = match.entered(name)
        return match.is_met()


def _names(pattern: str) -> tuple[str, ...]:
    """The names of a pattern; of several `**` in a row one is enough."""
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
    """Raise InvalidInput, naming `field`, unless each pattern is one of paths that stay below their folder."""
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
