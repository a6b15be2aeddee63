"""`python -m tests.mutants [FOLDER OR FILE ...]`: mutates modules, and says which mutants no quick test notices.

A mutant counts as noticed if one of the quick tests that reach its block fails, or does not end: tests in `tests/unit`
and `tests/model`, those first that import the module, and the quick ones first. Survivors that change nothing that
matters are in a table of docs/simulation.md, with the reason; the others are printed, and are a failure.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest

from tests.mutants.changes import Mutant, mutants_of
from tests.mutants.reached import Noting, Reaching, reaching
from tests.mutants.trial import UNTRIED, in_fork, trial

ROOT = Path(__file__).parents[2]
AREAS = [f"coordinator/fray_coordinator/{area}" for area in ("protocol", "queue", "placements", "jobs")]
PACKAGES = ("coordinator", "agents")
TESTS = ("tests/unit", "tests/model")
HELPERS = ("tests/support",)
EXPLAINED = ROOT / "docs/simulation.md"

TESTS_SECONDS = 10.0
"""CPU time of the tests of one trial, without a mutant: hundreds of tests reach some blocks."""

MORE_FILES = 24
"""Files of tests for the mutants that no test which imports the module notices: the smallest of those that import what
imports it."""

MORE_SECONDS = 5.0
"""CPU time that a trial may take beyond three times that of its tests."""

PATIENCE = 20.0
"""Seconds for each second of CPU time: on a busy machine it is one process of many."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("paths", nargs="*", default=AREAS, metavar="PATH", help="modules or folders of them")
    parser.add_argument("--sample", type=int, default=10, help="mutants of each module, drawn with a fixed seed")
    parser.add_argument("--all", action="store_true", help="all mutants of each module")
    options = parser.parse_args()
    drawn = {path: mutants_of(path.read_text()) for path in _modules(options.paths)}
    if not options.all:
        drawn = {path: _sample(path, mutants, options.sample) for path, mutants in drawn.items()}
    trials = Trials({path: mutants for path, mutants in drawn.items() if mutants})
    sys.meta_path.insert(0, Noting({_name(path): path for path in _modules([*AREAS, *options.paths])}))
    quick = ["-q", "-p", "no:xdist", "-m", "not slow and not campaign"]
    pytest.main(
        [*quick, *sorted({test for path in trials.drawn for files in _tests_for(path) for test in files})],
        plugins=[trials],
    )
    print(f"{trials.survived} of {trials.tried} mutants survive ({100 * trials.survived / max(trials.tried, 1):.1f} %)")
    return 1 if trials.unexplained or not trials.tried else 0


class Trials:
    """A plugin of pytest that tries the mutants with the tests that the session has collected.

    Args:
        drawn: the mutants of each module.
    """

    def __init__(self, drawn: Mapping[Path, Sequence[Mutant]]) -> None:
        self.drawn = drawn
        self.tried = self.survived = self.unexplained = 0
        self._failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note each test that fails."""
        if report.failed:
            self._failed.append(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Measure the tests, then try the mutants, in place of running the tests."""
        assert session.config.cache is not None
        kept = session.config.cache.mkdir("mutants")
        session.config.pluginmanager.unregister(name="terminalreporter")
        items = {str(path): list(group) for path, group in groupby(session.items, key=lambda item: item.path)}
        explained = _explained()
        for path, mutants in self.drawn.items():
            left = list(mutants)
            for files in _tests_for(path):
                tests: dict[str, tuple[pytest.Item, Reaching]] = {}
                for file in filter(items.__contains__, files if left else ()):
                    found = reaching(items[file], kept / f"{Path(file).stem}.json", self._failed)
                    tests |= {item.nodeid: (item, found[item.nodeid]) for item in items[file] if item.nodeid in found}
                left = [mutant for mutant in left if self._survives(path, mutant, tests)]
            unknown = [mutant for mutant in left if (_short(path), mutant.change) not in explained]
            print(f"{_short(path)}: {len(mutants)} mutants, {len(left)} survive, {len(unknown)} unexplained")
            for mutant in unknown:
                print(f"    {mutant.line}: {mutant.change}")
            sys.stdout.flush()
            self.tried, self.survived = self.tried + len(mutants), self.survived + len(left)
            self.unexplained += len(unknown)
        return True

    def _survives(self, path: Path, mutant: Mutant, tests: Mapping[str, tuple[pytest.Item, Reaching]]) -> bool:
        """Whether the tests that reach the mutant pass; they take `TESTS_SECONDS` at most."""
        name = _name(path)
        found = [(item, test) for item, test in tests.values() if f"{name}:{mutant.block}" in test.reached]
        found.sort(key=lambda pair: pair[1].seconds)
        chosen: list[pytest.Item] = []
        seconds = 0.0
        for item, test in found:
            if seconds + test.seconds < TESTS_SECONDS:
                chosen, seconds = [*chosen, item], seconds + test.seconds
        cpu = 3 * seconds + MORE_SECONDS
        code = in_fork(lambda: trial(name, str(path), mutant, chosen, self._failed), cpu, PATIENCE * cpu)
        if code == UNTRIED:
            raise RuntimeError(f"{path}:{mutant.line}: {mutant.change}: cannot be put in the place of the function")
        return code == 0


def _sample(path: Path, mutants: Sequence[Mutant], count: int) -> list[Mutant]:
    drawn = random.Random(path.name).sample(mutants, min(count, len(mutants)))
    return sorted(drawn, key=lambda mutant: (mutant.line, mutant.change))


def _tests_for(path: Path) -> tuple[list[str], list[str]]:
    """The files of tests that import the module; then the smallest of those that import what imports it."""
    direct = _tests((_name(path),))
    return direct, [test for test in _tests(tuple(_users(_name(path)))) if test not in direct][:MORE_FILES]


def _modules(paths: Sequence[str]) -> Iterator[Path]:
    """The modules in these folders; an `__init__.py` decides nothing."""
    for path in map(ROOT.joinpath, paths):
        found = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        yield from (each for each in found if each.name != "__init__.py")


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _short(path: Path) -> str:
    return str(path.relative_to(ROOT / path.relative_to(ROOT).parts[0]))


@cache
def _imported(folders: tuple[str, ...]) -> dict[Path, set[str]]:
    """What each file in the folders imports: the modules, and the names of which some are modules."""
    found: dict[Path, set[str]] = {}
    for path in (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))):
        found[path] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                found[path] |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
            elif isinstance(node, ast.Import):
                found[path] |= {each.name for each in node.names}
    return found


def _importing(name: str, folders: tuple[str, ...]) -> list[Path]:
    return [path for path, imported in _imported(folders).items() if name in imported]


def _users(name: str) -> list[str]:
    """The modules and helpers of tests that import this one."""
    helpers = [f"tests.support.{path.stem}" for path in _importing(name, HELPERS)]
    return helpers + list(map(_name, _importing(name, PACKAGES)))


@cache
def _tests(names: tuple[str, ...]) -> list[str]:
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
