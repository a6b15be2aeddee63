"""The `__main__` of a task's process: a module with what the task has got out of the user's script.

Functions and classes of a script reach a task with their code (`pickling`). But pickle, and with it `multiprocessing`,
looks for them by name in `__main__`, which in the task would be Fray's own main module. So a task's process puts a
module of its own in that place, and each function or class that was a name of the script becomes that name here when it
is loaded. The script itself is not run. A process that `multiprocessing` spawns gets the names from a file
(`spawned_main`).

One process may load names from several scripts, and the same name several times, each with the globals that its
function had when it was sent. These rules decide to which object a name refers:

- All names are of one script: the one whose name was loaded first.
- A name that came with the task's own function keeps its object. Any other refers to what was loaded last.
- A pool's worker runs a function with the names that came with that function (`rebind`).

pickle raises an error for an object that is not the one to which its name refers, so none is taken for another.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NamedTuple

NAMES_VAR = "FRAY_MAIN_NAMES"
"""Variable of a process that `multiprocessing` spawns in a task: the file with the names of its `__main__`."""

_SPAWNED_MAIN = "fray_runtime.spawned_main"


class Binding(NamedTuple):
    """A name of a script, and the object that was loaded for it. script: the path of its file; "" if it has none."""

    script: str
    name: str
    value: Any


class _UsersMain(ModuleType):
    """The module. Attributes of its class would hide names of the script, so it has only one that no script defines."""

    @property
    def __spec__(self) -> ModuleSpec:  # type: ignore[override]
        """What a spawned process runs as its main module; `multiprocessing` asks before it starts one.

        Raises Exception: a name cannot be pickled any more.
        """
        assert _names is not None, "there is no such module before"
        _names.write()
        return ModuleSpec(_SPAWNED_MAIN, None)


class _Names:
    """The names of this process's `__main__`.

    Args:
        directory: the task's own, for the file that spawned processes read.
        pickled: pickles their content by value.
    """

    def __init__(self, directory: str, pickled: Callable[[object], bytes]) -> None:
        self._pickled = pickled
        self.module = _UsersMain("__main__")
        self._path = os.path.join(directory, "main.pickle")
        self._script: str | None = None
        self._bound: dict[str, Any] = {}
        self._kept: frozenset[str] = frozenset()

    def bind(self, binding: Binding) -> None:
        if self._script is None:
            self._script = self.module.__dict__["__file__"] = binding.script
        if binding.script == self._script and binding.name not in self._kept:
            self._bound[binding.name] = self.module.__dict__[binding.name] = binding.value

    def keep(self) -> None:
        self._kept = frozenset(self._bound)

    def write(self) -> None:
        data = self._pickled({"__file__": self._script or "", **self._bound})
        part = f"{self._path}.{os.getpid()}.{threading.get_ident()}"
        with open(part, "wb") as file:
            file.write(data)
        os.replace(part, self._path)
        os.environ[NAMES_VAR] = self._path


_names: _Names | None = None
"""None in every process that is not a task's: its `__main__` is what Python has made it."""

_loading: ContextVar[list[Binding] | None] = ContextVar("_loading", default=None)
"""Where `loaded` collects what this thread binds."""


def install(directory: str, pickled: Callable[[object], bytes]) -> None:
    """Make this process's `__main__` the user's, from now on; see `_Names`."""
    global _names
    _names = _Names(directory, pickled)
    sys.modules["__main__"] = _names.module


def keep_names() -> None:
    """Have the names that were loaded until now refer to these objects for as long as this process lives."""
    if _names is not None:
        _names.keep()


def bind(binding: Binding) -> None:
    """Note that a name of a script was loaded; unpickling calls it."""
    if _names is not None:
        _names.bind(binding)
        if (collected := _loading.get()) is not None:
            collected.append(binding)


def loaded(data: bytes) -> tuple[Any, list[Binding]]:
    """Unpickle `data`; returns the value, and the names that came with it, for `rebind`."""
    collected: list[Binding] = []
    token = _loading.set(collected)
    try:
        return pickle.loads(data), collected
    finally:
        _loading.reset(token)


def rebind(bindings: Iterable[Binding]) -> None:
    """Have names refer again to the objects that came with a value, as if it had been loaded last."""
    if _names is not None:
        for binding in bindings:
            _names.bind(binding)


def script_of_main() -> str:
    """The path of the script that is this process's `__main__`, or that of its task; "" if it has none."""
    return getattr(sys.modules["__main__"], "__file__", None) or ""
