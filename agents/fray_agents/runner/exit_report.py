"""The end of an attempt, in the fields of `AttemptExit`, and the reason that the task gave on stderr before it."""

from __future__ import annotations

import json
import os
import re
import signal

from fray_agents.runner import exit_kinds
from fray_agents.runner.untrusted_files import read_file

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

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


_FINAL_CAUSES = frozenset(
    {
        *(exit_kinds.TIMEOUT, exit_kinds.UNHEALTHY, exit_kinds.LOST, exit_kinds.LIMIT_EXCEEDED),
        *(exit_kinds.HOST_FAILED, exit_kinds.EXITED),
    }
)
"""Causes that stand whatever exit code the task returned."""

_SHELL_SIGNALLED = 128
"""The number that a shell adds to that of the signal that ended its command."""

_FATAL_SIGNALS = (signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGKILL, signal.SIGSEGV)
"""Signals for which an exit code counts as the shell's report; other codes above 128 are mostly a program's own."""

MESSAGE_LIMIT = 1_000
TRACEBACK_LIMIT = 16_000
DATA_LIMIT = 32_000
"""Most characters; longer texts are cut. A job's record holds five exits, is read often, and must stay small."""

_LIMITS = {"message": MESSAGE_LIMIT, "exception": MESSAGE_LIMIT, "traceback": TRACEBACK_LIMIT}
_ERROR_BYTES = 4 * 1024**2
"""Most bytes of `error.json` that are read: more than is kept of it, in any encoding."""

_NO_MODULE = re.compile(r"\bNo module named '?([\w.]+)'?$")
"""Matches the reason of a Python program that lacks a module, with the module's name."""

_NO_FILE = re.compile(r"can't open file '(?:[^']*/)?([^'/]+)': \[Errno 2\]")
"""Matches the reason of a Python that does not find its script, with the script's name."""

BRING_FOLDER = "copy its folder to the job (--workspace ., EnvironmentConfig(workspace=...)) or give a full path"
"""The remedy for a file that is not in the folder where the job starts."""

_ENGINE_FAILED = 125
"""The exit code of podman and docker when they could not start a container."""


def exit_fields(
    status: int,
    cause: str = "",
    cause_message: str = "",
    out_of_memory: str = "",
    killed_unasked: str = "",
    refused: str = "",
    stderr: bytes = b"",
    error: dict[str, Any] | None = None,
    result_size: int = 0,
    result_problem: str = "",
    result_limit: int = 0,
    in_unseen_container: bool = False,
) -> dict[str, Any]:
    """The fields of `AttemptExit`, without usage and log chunks, of a task whose processes are gone.

    Args:
        status: wait status of the task's main process.
        cause: kind of exit for which the runner signalled the task, or fails it at its end; "" if there is none.
        cause_message: the cause as text for people.
        out_of_memory: message for a death by SIGKILL; "" unless the kernel's counter of out-of-memory kills rose.
        killed_unasked: text about who may have sent a SIGKILL that is not otherwise explained.
        refused: something that the kernel refused the task, which may be why it failed; "" for nothing.
        stderr: the last bytes that the task wrote there.
        error: content of the `error.json` of a callable's process, if there is any.
        result_size: bytes of a command's result, 0 for none.
        result_problem: why the result file cannot be used; "" if it can.
        result_limit: most bytes of the result.
        in_unseen_container: it was to run in a container, but none was ever seen running.
    """
    code = os.waitstatus_to_exitcode(status)
    how: dict[str, Any] = {"code": code} if code >= 0 else {"signal": -code}
    ended = f"exit code {code}{_shell_signal(code)}" if code >= 0 else f"killed by {signal_name(-code)}"
    if cause in _FINAL_CAUSES or (cause and code != 0):
        return {"kind": cause, "message": f"{cause_message} ({ended})", **how}
    reason, stack = reason_and_stack(stderr) if code else ("", "")
    if in_unseen_container and code == _ENGINE_FAILED:
        why = f": {reason}" if reason else "; the log says why"
        return {"kind": exit_kinds.START_FAILED, "message": f"its container could not be started{why}"}
    if code == 0 and result_problem:
        return {"kind": exit_kinds.EXITED, "message": unreadable_result(result_problem), "code": 0}
    if code == 0 and result_size > result_limit:
        return {"kind": exit_kinds.TOO_LARGE, "message": too_large(result_size, result_limit), "code": 0}
    if code == 0:
        return {"kind": exit_kinds.SUCCESS, "code": 0}
    if error:
        return {**error, **how}
    is_killed = code in (-signal.SIGKILL, _SHELL_SIGNALLED + signal.SIGKILL)
    if out_of_memory and is_killed:
        return {"kind": exit_kinds.OUT_OF_MEMORY, "message": out_of_memory, **how}
    if is_killed:
        reason = ", ".join(filter(None, [killed_unasked, reason and f"its last words: {reason}"]))
    remedy = _remedy(reason)
    message = ended + "".join([reason and f": {reason}", remedy and f"; {remedy}", refused and f"; {refused}"])
    return {
        "kind": exit_kinds.EXITED if code > 0 else exit_kinds.SIGNALLED,
        "message": message,
        "traceback": stack,
        **how,
    }


def _remedy(reason: str) -> str:
    """The remedy for a reason that Python gives; "" if none is known."""
    if module := _NO_MODULE.search(reason):
        return missing_module(module[1])
    file = _NO_FILE.search(reason)
    return f"{file[1]} is not in the folder where the job starts; {BRING_FOLDER}" if file else ""


def missing_module(name: str | None) -> str:
    """The remedy for a module that a task does not find."""
    return (
        f"module {name!r} is missing here: if it belongs to the project, send that with the job by --workspace . or "
        'EnvironmentConfig(workspace="auto"); if it belongs to a package, name that by --with or pip_packages= (a '
        "private cluster has what is installed here)"
    )


def too_large(size: int, limit: int) -> str:
    """The message about a result of `size` bytes."""
    remedy = "write it to storage and return its path"
    return f"the result has {size:,} bytes, more than the limit of {limit:,}; {remedy}"


def unreadable_result(why: object) -> str:
    """The message about a result that cannot be read although the task has succeeded."""
    return f"its result cannot be read: {why}"


def _shell_signal(code: int) -> str:
    """The signal that ended a shell's command, if `code` is such a report of a shell; else ""."""
    number = code - _SHELL_SIGNALLED
    return f" ({signal_name(number)})" if number in _FATAL_SIGNALS else ""


def signal_name(number: int) -> str:
    """ "SIGSEGV", or "signal 40" for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def read_exception(path: str) -> dict[str, Any]:
    """The exception that a callable's process left at `path`, or why it cannot be read; {} if there is none."""
    try:
        left = json.loads(read_file(path, _ERROR_BYTES))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        return _unreadable_error(error)
    if not isinstance(left, dict):
        return _unreadable_error("it is not a JSON object")
    texts = {
        name: left[name] for name in ("message", "exception", "traceback", "data") if isinstance(left.get(name), str)
    }
    return {"kind": exit_kinds.TOO_LARGE if left.get("kind") == exit_kinds.TOO_LARGE else exit_kinds.EXCEPTION, **texts}


def _unreadable_error(why: object) -> dict[str, Any]:
    return {"kind": exit_kinds.EXCEPTION, "message": f"its exception cannot be read: {why}"}


def bounded_exit(end: dict[str, Any]) -> dict[str, Any]:
    """The fields of an `AttemptExit`, cut to the lengths that a message to the agent and a job's record allow."""
    for name, limit in _LIMITS.items():
        if name in end:
            end[name] = shortened(end[name], limit)
    if len(end.get("data", "")) > DATA_LIMIT:
        del end["data"]  # a part of it would be useless
    return end


def shortened(text: str, limit: int) -> str:
    """`text` as valid Unicode; a longer text loses its middle, since the last lines say most."""
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - limit} characters left out ...\n{text[-half:]}"
