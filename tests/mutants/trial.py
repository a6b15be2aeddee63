"""One mutant's trial: a fork of the process that has imported everything, in which tests run until one fails.

The fork replaces the code of the function that the mutant changes. So a trial costs hardly more than its tests.
"""

from __future__ import annotations

import importlib
import inspect
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any

import pytest

from tests.mutants.changes import Mutant

MEMORY = 4 * 2**30
"""Bytes of address space beyond which a trial counts as failed: some mutants build a list without end."""


UNTRIED = 3
"""The exit code of a trial whose mutant could not be installed."""


def in_fork(work: Callable[[], int], cpu_seconds: float, seconds: float) -> int:
    """The exit code that `work` returns in a fork; another one if it raises, or takes more CPU time or time."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _limit(cpu_seconds)
            code = work()
        finally:
            os._exit(code)
    deadline = time.monotonic() + seconds
    while (found := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)  # with the processes that the tests have started
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(found[1])


def _limit(cpu_seconds: float) -> None:
    os.setpgid(0, 0)
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silence, descriptor)
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    resource.setrlimit(resource.RLIMIT_CPU, (int(used + cpu_seconds) + 1,) * 2)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def trial(module_name: str, path: str, mutant: Mutant, items: Sequence[pytest.Item], failed: list[str]) -> int:
    """Install the mutant and run tests until one fails: 0 if none does.

    failed: to which the session's plugin adds the ids of tests that fail.
    """
    try:
        install(module_name, path, mutant)
    except Exception:
        return UNTRIED
    for item, after in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        if failed:
            return 1
    return 0


def install(module_name: str, path: str, mutant: Mutant) -> None:
    """Make this process run the mutant instead of the function that it changes."""
    function = _function(vars(importlib.import_module(module_name)), mutant.function)
    codes = _codes(compile(mutant.tree(), path, "exec"))
    function.__code__ = next(code for code in codes if _place(code) == _place(function.__code__))


def _function(names: Mapping[str, Any], scope: str) -> FunctionType:
    found: Any = names[(parts := scope.split("."))[0]]
    for part in parts[1:]:
        found = vars(found)[part]
    found = inspect.unwrap(getattr(found, "__func__", getattr(found, "fget", found)))
    assert isinstance(found, FunctionType)
    return found


def _place(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)
