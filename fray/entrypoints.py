"""The entrypoint of a job: a Python call or a program."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fray_layouts.errors import InvalidInput


class Entrypoint:
    """The entrypoint of a job: a Python call (`from_callable`) or a program (`from_binary`).

        Entrypoint.from_callable(train, args=(config,))
        Entrypoint.from_binary("python", ["train.py", "--steps=100"])

    `Entrypoint(callable=train)` is the same as `Entrypoint.from_callable(train)`.
    """

    def __new__(cls, callable: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Entrypoint:
        return object.__new__(CallableEntrypoint if cls is Entrypoint else cls)

    @property
    def callable_entrypoint(self) -> CallableEntrypoint | None:
        """This entrypoint if it is a Python call, else None."""
        return self if isinstance(self, CallableEntrypoint) else None

    @property
    def binary_entrypoint(self) -> BinaryEntrypoint | None:
        """This entrypoint if it is a program, else None."""
        return self if isinstance(self, BinaryEntrypoint) else None

    @staticmethod
    def from_callable(
        fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> CallableEntrypoint:
        """Make an entrypoint that calls `fn(*args, **kwargs)`. Its return value is the job's result.

        Function and arguments are pickled with cloudpickle when the job is submitted, and unpickled in the job. A
        function of `__main__` or a closure is pickled by value; a function of an installed module is imported there.

        Raises:
            InvalidInput: `fn` cannot be called, or `args` is not a list of values.
        """
        return CallableEntrypoint(fn, _listed(args, "args=(value,)"), dict(kwargs or {}))

    @staticmethod
    def from_binary(command: str, args: Sequence[str] = ()) -> BinaryEntrypoint:
        """Make an entrypoint that starts a program with arguments, without a shell.

        Args:
            command: a path, or a name that is looked up in PATH on the host that runs the job.

        Raises:
            InvalidInput: `args` is not a list of strings.
        """
        return BinaryEntrypoint(command, _listed(args, 'args=["value"]'))


def _listed(args: Iterable[Any], remedy: str) -> tuple[Any, ...]:
    """Return the arguments as a tuple. Raises InvalidInput for a single value: a string would become its letters."""
    if isinstance(args, (str, bytes)) or not isinstance(args, Iterable):
        raise InvalidInput("entrypoint.args", args, f"give a list, even of one argument: {remedy}")
    return tuple(args)


@dataclass(frozen=True)
class CallableEntrypoint(Entrypoint):
    """A Python call, `callable(*args, **kwargs)`. Its return value is the job's result.

    Raises:
        InvalidInput: `callable` cannot be called.
    """

    callable: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not builtins.callable(self.callable):
            remedy = "give the function itself, and its arguments by args=: from_callable(train, args=(3,))"
            raise InvalidInput("entrypoint.callable", self.callable, remedy)


@dataclass(frozen=True)
class NamedEntrypoint(CallableEntrypoint):
    """A call of one of Fray's own functions. `fray status` shows `name` instead of the function's name."""

    name: str = ""


@dataclass(frozen=True)
class BinaryEntrypoint(Entrypoint):
    """A program, `command`, with its arguments `args`, started without a shell."""

    command: str
    args: tuple[str, ...] = ()


def entrypoint_of(given: object) -> object:
    """Turn a plain callable into an entrypoint that calls it; anything else is returned unchanged."""
    return CallableEntrypoint(given) if callable(given) and not isinstance(given, Entrypoint) else given
