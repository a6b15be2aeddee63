"""Measures of a Python module: tokens, functions, docstrings and imports."""

from __future__ import annotations

import ast
import os
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LIBRARY = Path(sysconfig.get_paths()["stdlib"])
NOT_OURS = {"site-packages", "dist-packages", "__pycache__"}
TEST_FOLDERS = {"test", "tests", "idle_test"}


@dataclass(frozen=True)
class Source:
    """A file of the library. path: relative to the library; size: in bytes."""

    path: str
    size: int


@dataclass(frozen=True)
class Module:
    """One module's measures.

    Attributes:
        package: the top-level package or module it belongs to.
        is_test: whether it belongs to a test suite.
        definitions: the number of its classes and functions, and the module itself; `documented` have a docstring.
        imports: top-level names of the modules that it imports.
    """

    path: str
    package: str
    is_test: bool
    tokens: int
    functions: int
    definitions: int
    documented: int
    imports: frozenset[str]


class DoesNotParse(Exception):
    """The file is not Python of this version."""


def sources() -> list[Source]:
    """Every Python file of the standard library on this machine."""
    return [Source(str(file.relative_to(LIBRARY)), file.stat().st_size) for file in _files()]


def _files() -> Iterator[Path]:
    for folder, below, names in os.walk(LIBRARY):
        below[:] = sorted(set(below) - NOT_OURS)
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(".py"))


def measure(path: str) -> Module:
    """Measure one file of the library. Raises DoesNotParse."""
    file = LIBRARY / path
    try:
        with file.open("rb") as lines:
            tokens = sum(1 for _ in tokenize.tokenize(lines.readline))
        with warnings.catch_warnings(action="ignore"):  # the library's own tests have invalid escapes on purpose
            tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, tokenize.TokenError) as error:
        raise DoesNotParse(f"{type(error).__name__}: {error}") from error
    nodes = list(ast.walk(tree))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    definitions = [tree, *functions, *(node for node in nodes if isinstance(node, ast.ClassDef))]
    return Module(
        path=path,
        package=Path(path).parts[0].removesuffix(".py"),
        is_test=not TEST_FOLDERS.isdisjoint(Path(path).parts),
        tokens=tokens,
        functions=len(functions),
        definitions=len(definitions),
        documented=sum(ast.get_docstring(node, clean=False) is not None for node in definitions),
        imports=frozenset(_imported(nodes)),
    )


def _imported(nodes: list[ast.AST]) -> set[str]:
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.partition(".")[0] for name in names}
