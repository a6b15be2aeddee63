"""One mutant's trial: a process of its own, in which the module is the mutant and tests run until one fails."""

from __future__ import annotations

import ast
import importlib.abc
import importlib.util
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

PRELOADED = ["pytest", "pytest_asyncio", "hypothesis", "msgspec", "asyncio", "jsonschema"]
"""Libraries that are imported once, and not by each trial."""

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(PRELOADED)


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module in a tree instead of its file."""

    def __init__(self, name: str, path: Path, tree: ast.Module) -> None:
        self._name, self._path, self._tree = name, path, tree

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        inside = [str(self._path.parent)] if self._path.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(
            fullname, self._path, loader=self, submodule_search_locations=inside
        )

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._tree, str(self._path), "exec"), module.__dict__)


def survives(name: str, path: Path, tree: ast.Module, tests: Sequence[str], seconds: float) -> bool:
    """Whether all tests pass with this tree as the module.

    seconds: after which the trial is ended, as after a failure: most such mutants wait or loop for ever.
    """
    process = _processes.Process(target=_run, args=(name, path, tree, list(tests)))
    process.start()
    process.join(seconds)
    if process.is_alive():
        os.killpg(process.pid or 0, 9)  # with the processes that the tests have started
        process.join()
    return process.exitcode == 0


def seconds_unchanged(name: str, path: Path, tests: Sequence[str], limit: float) -> float | None:
    """Seconds that the tests take with the module as it is; None: they fail, or take longer than `limit`."""
    started = time.monotonic()
    passed = survives(name, path, ast.parse(path.read_text()), tests, limit)
    return time.monotonic() - started if passed else None


def _run(name: str, path: Path, tree: ast.Module, tests: list[str]) -> None:
    import pytest

    os.setpgid(0, 0)
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silence, descriptor)
    sys.meta_path.insert(0, _Changed(name, path, tree))
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow and not campaign"]
    code = pytest.main([*options, *tests])
    os._exit(int(code))
