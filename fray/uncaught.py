"""Shows the exception that ends a program: the program's own frames and one of Fray's, and what goes on after Ctrl-C.

`import fray` puts `show_uncaught` before the present `sys.excepthook`. FRAY_DEBUG=1 shows all frames. Code that prints
an exception itself shows all frames too, and so do notebooks, which do not call this hook.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from weakref import WeakSet

DEBUG_VARIABLE = "FRAY_DEBUG"
"""Variable that shows all frames of an exception (1)."""

_OWN = {"fray", "fray_agents", "fray_coordinator", "fray_layouts", "fray_rpc", "fray_runtime"}
_INSIDE = _OWN | {"cloudpickle", "msgspec"} | sys.stdlib_module_names
"""The modules whose frames say nothing to users below a frame of Fray: what Fray calls."""


class Interrupted:
    """Something that tells the person what goes on when Ctrl-C ends this program, from its creation on."""

    def __init__(self) -> None:
        self._process = os.getpid()
        _told.add(self)

    def tell(self) -> None:
        """Print what goes on, in the process that created this."""
        if os.getpid() == self._process:
            self.print_what_goes_on()

    def print_what_goes_on(self) -> None:
        raise NotImplementedError


_told: WeakSet[Interrupted] = WeakSet()


def show_uncaught(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
    """Print the exception as the hook before this one does, with fewer frames; then what goes on after Ctrl-C."""
    hidden = 0 if shows_all_frames() else _fold(error)
    _hook_before(kind, error, error.__traceback__)
    with contextlib.suppress(Exception, KeyboardInterrupt):  # a second Ctrl-C ends the program at once
        if hidden:
            frames = "1 frame" if hidden == 1 else f"{hidden} frames"
            print(f"fray: {frames} inside Fray left out; {DEBUG_VARIABLE}=1 shows all", file=sys.stderr)
        if isinstance(error, KeyboardInterrupt):
            for interrupted in list(_told):
                interrupted.tell()


def shows_all_frames() -> bool:
    """Whether the environment asks for all frames of an exception."""
    from fray_runtime.variables import read_variable  # imported late: `import fray` costs next to nothing

    return read_variable(DEBUG_VARIABLE) not in (None, "", "0")


def _fold(error: BaseException) -> int:
    """Leave the user's frames and the first of Fray's below each of them, in the error and its causes; counts the rest.

    A cause that shows nothing but Fray's inside is left out: the message says what matters.
    """
    hidden, seen, shown = 0, set[int](), error
    while id(shown) not in seen:
        seen.add(id(shown))
        frames = list(_frames(shown.__traceback__))
        kept = [at for at, is_hidden in zip(frames, _hidden(frames), strict=True) if not is_hidden]
        hidden += len(frames) - len(kept)
        shown.__traceback__ = _linked(kept)
        cause = _cause_of(shown)
        while cause is not None and cause.__traceback__ is not None and _is_inside(cause.__traceback__):
            hidden += len(list(_frames(cause.__traceback__)))
            cause = _cause_of(cause)
        if cause is None:
            shown.__cause__ = None
            shown.__suppress_context__ = True
            break
        if shown.__cause__ is not None:
            shown.__cause__ = cause
        else:
            shown.__context__ = cause
        shown = cause
    return hidden


def _cause_of(error: BaseException) -> BaseException | None:
    """The exception that is shown before this one."""
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _frames(at: TracebackType | None) -> Iterator[TracebackType]:
    while at is not None:
        yield at
        at = at.tb_next


def _hidden(frames: list[TracebackType]) -> list[bool]:
    """Whether each frame is left out: those below a frame of Fray, up to the next one of the user."""
    found, is_below = [], False
    for at in frames:
        module = _module_of(at.tb_frame)
        is_below = is_below and module in _INSIDE
        found.append(is_below)
        is_below = is_below or module in _OWN
    return found


def _is_inside(at: TracebackType) -> bool:
    """Whether a traceback has only frames of Fray and of what it calls."""
    modules = {_module_of(each.tb_frame) for each in _frames(at)}
    return modules <= _INSIDE and not modules.isdisjoint(_OWN)


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _linked(frames: list[TracebackType]) -> TracebackType | None:
    following = None
    for at in reversed(frames):
        following = TracebackType(following, at.tb_frame, at.tb_lasti, at.tb_lineno)
    return following


_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]

_hook_before: _Hook = sys.excepthook
sys.excepthook = show_uncaught
