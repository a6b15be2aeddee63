"""Which tests run which blocks of the mutated modules: each block notes that it was reached."""

from __future__ import annotations

import ast
import importlib.abc
import importlib.util
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from tests.mutants.changes import blocks
from tests.mutants.trial import in_fork

PATIENCE = 3600.0
"""Seconds for the tests of one file, without a mutant, on a busy machine."""

_reached: set[str] = set()


class Noting(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports modules with blocks that note when they are reached.

    paths: the files of these modules, by name.
    """

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._paths = paths

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._paths:
            return None
        return importlib.util.spec_from_file_location(fullname, self._paths[fullname], loader=self)

    def exec_module(self, module: ModuleType) -> None:
        path = self._paths[module.__name__]
        tree = ast.parse(path.read_text())
        for name, block in blocks(tree).items():
            noting = ast.parse(f"__note_reached__({f'{module.__name__}:{name}'!r})").body[0]
            is_documented = isinstance(block[0], ast.Expr) and isinstance(block[0].value, ast.Constant)
            block.insert(int(is_documented), ast.copy_location(noting, block[0]))
        module.__dict__["__note_reached__"] = _reached.add
        exec(compile(ast.fix_missing_locations(tree), str(path), "exec"), module.__dict__)


@dataclass(frozen=True, slots=True)
class Reaching:
    """A test that passes without a mutant.

    Attributes:
        seconds: of CPU time that it took.
        reached: the blocks that it reached, as module:function:number.
    """

    seconds: float
    reached: frozenset[str]


def reaching(items: Sequence[pytest.Item], kept: Path, failed: list[str]) -> dict[str, Reaching]:
    """By id, the tests of one file; measured in a fork, unless the file is as it was when `kept` was written."""
    written = items[0].path.stat().st_mtime
    if not kept.exists() or json.loads(kept.read_text())["written"] != written:

        def measure() -> int:
            found = {}
            for item, after in zip(items, [*items[1:], None], strict=True):
                _reached.clear()
                begun = time.process_time()
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
                if item.nodeid not in failed:
                    found[item.nodeid] = time.process_time() - begun, sorted(_reached)
            kept.write_text(json.dumps({"written": written, "tests": found}))
            return 0

        in_fork(measure, PATIENCE, PATIENCE)
    tests = json.loads(kept.read_text())["tests"] if kept.exists() else {}
    return {name: Reaching(seconds, frozenset(reached)) for name, (seconds, reached) in tests.items()}
