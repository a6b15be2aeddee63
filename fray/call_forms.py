"""What a call with wrong arguments says: the right form, instead of Python's own TypeError."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from fray_layouts.errors import InvalidInput
from fray_layouts.parsing import REDACTED

F = TypeVar("F", bound=Callable[..., Any])


class WrongCall(InvalidInput, TypeError):
    """The arguments do not fit the function: write the call as the message says."""


def says_form(form: str, others: Mapping[str, str] = {}, parts: Mapping[str, type] = {}) -> Callable[[F], F]:
    """Make a function, or the constructor of a class, raise WrongCall for arguments that do not fit it.

    Its signature stays, also for type checkers.

    Args:
        form: the right call, as users write it: 'pool.map(function, items)'.
        others: names of arguments elsewhere, or what somebody may try, each with what it is here.
        parts: arguments that are made of arguments of their own, with their classes: {"resources": ResourceConfig}.
    """

    def decorate(target: F) -> F:
        if isinstance(target, type):
            setattr(target, "__init__", decorate(target.__init__))  # type: ignore[misc]  # noqa: B010
            return target

        @functools.wraps(target)
        def checked(*args: Any, **kwargs: Any) -> Any:
            try:
                return target(*args, **kwargs)
            except TypeError as error:
                if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                    raise  # the arguments fit, and something inside raised it
            raise _wrong_call(target, args, kwargs, form, others, parts)

        return checked  # type: ignore[return-value]

    return decorate


def _wrong_call(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    form: str,
    others: Mapping[str, str],
    parts: Mapping[str, type],
) -> WrongCall:
    import inspect

    name = form.partition("(")[0]
    known = inspect.signature(function).parameters
    by_place = [one.name for one in known.values() if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    kinds = {one.kind for one in known.values()}
    for given, value in kwargs.items():
        if given not in known and inspect.Parameter.VAR_KEYWORD not in kinds:
            shown = value if isinstance(value, int | float) else REDACTED
            meant = others.get(given) or _meant(given, known, parts)
            return WrongCall(f"{name}.{given}", shown, f"there is no such argument; {meant}")
        if given in by_place[: len(args)]:
            return WrongCall(f"{name}.{given}", REDACTED, f"it is given twice; write {form}")
    if len(args) > len(by_place) and inspect.Parameter.VAR_POSITIONAL not in kinds:
        return WrongCall(name, list(args[len(by_place) :]), f"it is one argument too many; write {form}")
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = (one.name for one in known.values() if one.default is one.empty and one.kind not in several)
    missing = next((one for one in needed if one not in kwargs and one not in by_place[: len(args)]), "")
    return WrongCall(f"{name}.{missing}", None, f"it is missing; write {form}")


def _meant(given: str, known: Mapping[str, Any], parts: Mapping[str, type]) -> str:
    """The argument that somebody may have meant who wrote an unknown one."""
    import difflib
    import inspect

    for part, kind in parts.items():
        if given in inspect.signature(kind).parameters:
            return f"it is {part}={kind.__name__}({given}=...)"
    names = [name for name in known if name != "self"]
    near = difflib.get_close_matches(given, names, n=1)
    return f"did you mean {near[0]}" if near else f"the arguments here are {', '.join(names)}"
