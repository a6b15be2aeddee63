"""Imports the public names of a package when they are first used, so that importing the package is cheap."""

import importlib
from collections.abc import Callable
from typing import Any


def attach_stub(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Make the `__getattr__`, `__dir__` and `__all__` of a package (PEP 562) from its stub.

    The stub, `__init__.pyi`, has `from module import Name as Name` for each public name; type checkers and editors
    read it too. `lazy_loader.attach_stub` does the same, but only for names of the package's own modules.

    Args:
        package: the package's `__name__`.
        file: its `__file__`.
    """
    import ast

    with open(f"{file}i", encoding="utf-8") as stub:
        imports = [node for node in ast.parse(stub.read()).body if isinstance(node, ast.ImportFrom)]
    modules = {alias.name: str(node.module) for node in imports for alias in node.names}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(modules[name]), name)

    names = sorted(modules)
    return load, names.copy, names
