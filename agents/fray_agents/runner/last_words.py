"""The reason that a task gave on stderr before it ended: its last lines, and a Python stack if there is one."""

import re

KEPT_BYTES = 16 * 1024
"""Bytes of the end of stderr that are examined: the stacks of a dozen threads."""

REASON_CHARACTERS = 400
"""Most characters of the reason: a few lines of a screen."""

_LAST_LINES = 3
"""Lines that form the reason without a stack: a usage message and its error are two."""

_LINES_BEHIND = 4
"""Lines that may follow the stack of a fatal error, for example of `resource_tracker`; after more, it was not fatal."""

_EXCEPTION, _FATAL = "Traceback (most recent call last):", "Fatal Python error: "
_OF_STACK = (" ", "Thread ", "Current thread ", "Extension modules: ")
"""Prefixes of the lines that `faulthandler` writes after its first."""

_PLACE = re.compile(r'\s*File "(.+)", line (\d+) in (.+)')
_INSTALLED = re.compile(r"/python3[^/]*/|^<frozen ")
"""Matches paths of the standard library and of packages: their callers tell people more."""

_COMMANDS = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\-_])")
"""Escape sequences for terminals: colours, movements, titles."""


def reason_and_stack(stderr: bytes) -> tuple[str, str]:
    """One line that says why the task ended, and the stack that it left; each "" if there is none.

    stderr: the last bytes that the task wrote there.
    """
    text = _COMMANDS.sub("", stderr[-KEPT_BYTES:].decode(errors="replace"))
    lines = [shown for line in text.split("\n") if (shown := line.rstrip("\r").rpartition("\r")[2].rstrip())]
    begin = next((at for at in reversed(range(len(lines))) if lines[at].startswith((_EXCEPTION, _FATAL))), None)
    if begin is not None:
        stack = lines[begin:]
        is_fatal = stack[0].startswith(_FATAL)
        others = [at for at, line in enumerate(stack) if at and not line.startswith(_OF_STACK if is_fatal else " ")]
        if is_fatal and len(others) <= _LINES_BEHIND:
            return _fault_reason(stack)[:REASON_CHARACTERS], "\n".join(stack)
        if not is_fatal and 0 < len(others) <= 1 + _LINES_BEHIND:
            return stack[others[0]][:REASON_CHARACTERS], "\n".join(stack)
    return " | ".join(line.strip() for line in lines[-_LAST_LINES:])[-REASON_CHARACTERS:], ""


def _fault_reason(stack: list[str]) -> str:
    """The fault that `faulthandler` reports, and the place in the Python code where it happened."""
    what = stack[0].removeprefix(_FATAL)
    current = next((at for at, line in enumerate(stack) if line.startswith("Current thread ")), len(stack))
    places = [place for line in stack[current + 1 :] if (place := _PLACE.match(line))]
    own = next((place for place in places if not _INSTALLED.search(place[1])), places[0] if places else None)
    return f"{what} in native code, called at {own[1]}, line {own[2]}, in {own[3]}" if own else what
