"""Pickles of any value, with the code of functions and classes that the reader cannot import.

cloudpickle does the work. Two things are added to each piece of code. Bytecode is understood by one minor version of
Python only, and another one crashes on it, so the version is stored with it and the reader checks it first. The path of
the source file is stored too, because cloudpickle 3.1.3 drops it, and then tracebacks name neither file nor line.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable
from types import CodeType
from typing import Any, ClassVar

from fray_layouts.errors import Permanent

OWN_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
"""The minor version of this process's interpreter."""


class PythonMismatch(Permanent, ImportError):
    """Pickled code was written by another minor version of Python, which this one cannot run."""


def pickled_by_value(value: object, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None) -> bytes:
    """The pickle of `value`; `pickle.loads` reads it in any process that has Fray.

    Args:
        value: anything that cloudpickle can pickle.
        buffer_callback: receives the value's large buffers, as in `pickle.dumps`.

    Raises:
        Exception: the value cannot be pickled; its own `__reduce__` may raise anything.
    """
    file = io.BytesIO()
    by_value_pickler(file, buffer_callback).dump(value)
    return file.getvalue()


def by_value_pickler(
    file: io.BytesIO, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None
) -> pickle.Pickler:
    """A pickler that does the same for several values in turn."""
    made: pickle.Pickler = _pickler_class()(file, 5, buffer_callback=buffer_callback)
    return made


def modules_pickled_by_value() -> set[str]:
    """The modules that the user wants pickled by value (`cloudpickle.register_pickle_by_value`)."""
    cloudpickle = sys.modules.get("cloudpickle")
    return cloudpickle.list_registry_pickle_by_value() if cloudpickle is not None else set()


@functools.cache
def _pickler_class() -> Any:
    import cloudpickle  # takes 15 ms, longer than the interpreter's start, and most values do not need it

    class CodePickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table: ClassVar[Any] = ChainMap({CodeType: _reduced_code}, cloudpickle.Pickler.dispatch_table)

    return CodePickler


def _reduced_code(code: CodeType) -> tuple[Callable[..., CodeType], tuple[Any, ...]]:
    import cloudpickle

    _, parts = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return _code, (OWN_PYTHON, code.co_filename, *parts)


def _code(python: str, filename: str, *parts: Any) -> CodeType:
    if python != OWN_PYTHON:
        raise PythonMismatch(
            f"this code was pickled by Python {python}, and Python {OWN_PYTHON} cannot read it: "
            "run both sides on one version, or import the function from a module that both have"
        )
    return CodeType(*parts).replace(co_filename=filename)
