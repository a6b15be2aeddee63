"""Functions and classes as bytes, by cloudpickle: what no other process can import, with its code.

Code is bytecode, which only one minor version of Python reads; another one crashes. So the version goes along with each
piece of code, and who reads it checks that first.
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

from fray_agents.rpc.errors import RemoteError

OWN_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def pickled_by_value(value: object, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None) -> bytes:
    """The pickle of anything that cloudpickle can do; `pickle.loads` reads it where Fray is installed.

    Raises:
        Exception: it cannot be pickled.
    """
    file = io.BytesIO()
    _pickler_class()(file, 5, buffer_callback=buffer_callback).dump(value)
    return file.getvalue()


@functools.cache
def _pickler_class() -> Any:
    import cloudpickle  # costs 15 ms, and most calls need none

    class VersionedPickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table: ClassVar[Any] = ChainMap({CodeType: _versioned_code}, cloudpickle.Pickler.dispatch_table)

    return VersionedPickler


def _versioned_code(code: CodeType) -> tuple[Callable[..., CodeType], tuple[Any, ...]]:
    import cloudpickle

    _, parts = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return _code, (OWN_PYTHON, *parts)


def _code(python: str, *parts: Any) -> CodeType:
    if python != OWN_PYTHON:
        raise RemoteError(
            f"this code was pickled by Python {python}, and Python {OWN_PYTHON} cannot read it: "
            "run both sides on one version, or import the function from a module that both have"
        )
    return CodeType(*parts)
