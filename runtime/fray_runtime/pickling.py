"""Pickles of any value, with the code of functions and classes that the reader cannot import.

cloudpickle does the work. Two things are added to each piece of code, and two for `__main__`.

Bytecode is understood by one minor version of Python only, and another one crashes on it, so the version is stored with
it and the reader checks it first. The path of the source file is stored too, because cloudpickle 3.1.3 drops it, and
then tracebacks name neither file nor line.

A function or class that is a name of this process's `__main__` becomes that name of the reader's (`users_main`). An
object whose own pickle is a name of `__main__`, such as a function with a cache, is pickled by value or refused: the
reader may not have that name.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, ClassVar, NewType, ParamSpec, TypeVarTuple

from fray_layouts.errors import Permanent
from fray_runtime import users_main

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

        def reducer_override(self, value: Any) -> Any:
            reduced = super().reducer_override(value)
            if isinstance(value, (type, FunctionType)):
                return reduced if reduced is NotImplemented else _with_name(value, value.__qualname__, reduced)
            if reduced is not NotImplemented or type(value) in self.dispatch_table:
                return reduced
            reduced = value.__reduce_ex__(5)
            if isinstance(reduced, str) and pickle.whichmodule(value, reduced) == "__main__":  # type: ignore[attr-defined]
                return _with_name(value, reduced, _reduced_name(value, reduced))
            return reduced

    return CodePickler


def _reduced_name(value: Any, name: str) -> tuple[Any, ...]:
    """Reduce an object by value that pickles as its name in `__main__`."""
    if isinstance(value, functools._lru_cache_wrapper):
        options = value.cache_parameters()
        return _cached, (options["maxsize"], options["typed"]), value.__wrapped__, None, None, functools.update_wrapper
    if isinstance(value, NewType):
        return _new_type, (name, value.__supertype__)
    if isinstance(value, (ParamSpec, TypeVarTuple)):
        return type(value), (name,)
    raise pickle.PicklingError(
        f"a {type(value).__qualname__} pickles as {name!r}, a name of this script, which other processes do not have: "
        "define it in a module, and import it from there"
    )


def _cached(maxsize: int | None, typed: bool) -> Any:
    """A function with an empty cache. What it wraps is set later, since that may refer to it."""

    @functools.lru_cache(maxsize, typed)
    def cached(*args: Any, **kwargs: Any) -> Any:
        return cached.__wrapped__(*args, **kwargs)

    return cached


def _new_type(name: str, supertype: Any) -> Any:
    made = NewType(name, supertype)  # type: ignore[misc]
    made.__module__ = "__main__"
    return made


def _with_name(value: Any, name: str, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """Have the reader bind the object in its `__main__` if it has this name in the one of this process."""
    main = sys.modules["__main__"].__dict__
    if getattr(value, "__module__", None) != "__main__" or main.get(name) is not value:
        return reduced
    make, args, state, items, pairs, setter = [*reduced, None, None, None, None][:6]
    return make, args, (users_main.script_of_main(), name, setter, state), items, pairs, _set_and_bind


def _set_and_bind(value: Any, given: tuple[str, str, Callable[[Any, Any], Any] | None, Any]) -> None:
    script, name, setter, state = given
    if setter is not None:
        setter(value, state)
    users_main.bind(users_main.Binding(script, name, value))


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
