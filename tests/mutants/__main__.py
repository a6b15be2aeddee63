"""`python -m tests.mutants [FOLDER OR FILE ...]`: mutates modules, and says which mutants no quick test notices.

A mutant counts as noticed if one of the quick tests fails, or does not end: those test files in `tests/unit` and
`tests/model` that import the module, and a few of those that import a module which does. Survivors that change nothing
that matters are in a table of docs/simulation.md, with the reason; the others are printed, and are a failure.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path

from tests.mutants.changes import Mutant, mutants_of
from tests.mutants.trial import seconds_unchanged, survives

ROOT = Path(__file__).parents[2]
AREAS = [f"coordinator/fray_coordinator/{area}" for area in ("protocol", "queue", "placements", "jobs")]
PACKAGES = ("coordinator", "agents")
TESTS = ("tests/unit", "tests/model")
EXPLAINED = ROOT / "docs/simulation.md"

LIMIT_SECONDS = 120.0
"""For the tests of one module, unchanged. A module with slower ones is reported as not tried."""

MORE_FILES = 4
"""Files of tests beside those that import the module: the smallest, since the reconciler's modules have dozens."""

MORE_SECONDS = 30.0
"""A trial may take five times as long as the tests of the unchanged module, and this: a start on a busy machine."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("paths", nargs="*", default=AREAS, metavar="PATH", help="modules or folders of them")
    parser.add_argument("--sample", type=int, default=20, help="mutants of each module, drawn with a fixed seed")
    parser.add_argument("--all", action="store_true", help="all mutants of each module")
    parser.add_argument("--jobs", type=int, default=2, help="trials at once")
    options = parser.parse_args()
    explained, tried, survived, wrong = _explained(), 0, 0, 0
    for path in _modules(options.paths):
        drawn = mutants_of(path.read_text())
        if not options.all:
            drawn = random.Random(path.name).sample(drawn, min(options.sample, len(drawn)))
        if not drawn:
            continue
        left = survivors(path, drawn, options.jobs)
        if left is None:
            print(f"{_short(path)}: not tried, because its tests fail or take long without any mutant", flush=True)
            wrong += 1
            continue
        unknown = [mutant for mutant in left if (_short(path), mutant.change) not in explained]
        print(f"{_short(path)}: {len(drawn)} mutants, {len(left)} survive, {len(unknown)} unexplained", flush=True)
        for mutant in unknown:
            print(f"    {mutant.line}: {mutant.change}", flush=True)
        tried, survived, wrong = tried + len(drawn), survived + len(left), wrong + len(unknown)
    print(f"{survived} of {tried} mutants survive ({100 * survived / max(tried, 1):.1f} %)")
    return 1 if wrong else 0


def survivors(path: Path, mutants: Sequence[Mutant], jobs: int) -> list[Mutant] | None:
    """The mutants that no quick test notices; None: the tests fail without any, or take too long."""
    name = _name(path)
    direct = _tests([name])
    others = [test for test in _tests(_users(name)) if test not in direct][:MORE_FILES]
    left = list(mutants)
    for tests in filter(None, [direct, others]):
        took = seconds_unchanged(name, path, tests, LIMIT_SECONDS)
        if took is None:
            return None

        def passes(mutant: Mutant, tests: list[str], seconds: float) -> bool:
            return survives(name, path, mutant.tree, tests, seconds)

        with ThreadPoolExecutor(jobs) as pool:
            fine = list(pool.map(partial(passes, tests=tests, seconds=5 * took + MORE_SECONDS), left))
        left = [mutant for mutant, is_fine in zip(left, fine, strict=True) if is_fine]
    return left


def _modules(paths: Sequence[str]) -> Iterator[Path]:
    for path in map(ROOT.joinpath, paths):
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _short(path: Path) -> str:
    return str(path.relative_to(ROOT / path.relative_to(ROOT).parts[0]))


@cache
def _sources(folders: tuple[str, ...]) -> dict[Path, str]:
    return {path: path.read_text() for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))}


def _importing(name: str, folders: tuple[str, ...]) -> list[Path]:
    package, _, last = name.rpartition(".")
    whole = rf"(from|import) {re.escape(name)}\b(?!\.)"
    part = rf"from {re.escape(package)} import (\([^)]*|[^(\n]*)\b{last}\b"
    return [path for path, text in _sources(folders).items() if re.search(f"{whole}|{part}", text)]


def _users(name: str) -> list[str]:
    """The modules that import this one."""
    return list(map(_name, _importing(name, PACKAGES)))


def _tests(names: Sequence[str]) -> list[str]:
    """The files of quick tests that import a module, the small ones first; through a helper of theirs, too."""
    found = [path for name in names for path in _importing(name, TESTS)]
    helpers = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in found if "test_" not in path.name]
    found += [path for helper in helpers for path in _importing(helper, TESTS)]
    files = {path for path in found if path.name.startswith("test_")}
    return [str(path) for path in sorted(files, key=lambda path: (path.stat().st_size, path))]


def _explained() -> set[tuple[str, str]]:
    """The rows of the table of survivors: module and change."""
    rows = re.findall(r"^\| `([^`]+\.py)` \| `(.+? -> .+?)` \| .+ \|$", EXPLAINED.read_text(), re.MULTILINE)
    return {(module, change) for module, change in rows}


if __name__ == "__main__":
    sys.exit(main())
