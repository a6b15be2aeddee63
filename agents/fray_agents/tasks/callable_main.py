"""The main module of a callable's process.

`python -m fray_agents.tasks.callable_main DIRECTORY RESULT_LIMIT`, or `... --prestarted MODULE...`.

Loads the pickled (function, args, kwargs) from `call.pickle`, calls it, and leaves in the directory either
`result.json` or `result.pickle`, or `error.json` with the fields of an `AttemptExit`. Only what every call needs is
imported before the call.
"""

from __future__ import annotations

import atexit
import base64
import importlib
import json
import math
import os
import pickle
import sys
import threading
import traceback
from typing import Any, NoReturn

from fray_agents.runner import exit_kinds
from fray_agents.runner.exit_report import (
    DATA_LIMIT,
    MESSAGE_LIMIT,
    TRACEBACK_LIMIT,
    missing_module,
    shortened,
    too_large,
)
from fray_runtime import users_main
from fray_runtime.pickling import pickled_by_value

_MAX_JSON_DEPTH = 90
"""Deepest nesting of lists and dicts in JSON: `fray_layouts.parsing.MAX_RESULT_DEPTH`, whose import would take time."""

_JSON_SCALARS = (type(None), bool, int, str)


class CallFailed(Exception):
    """A failure that is not the callable's own exception; its text is for people. kind: of the exit."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def main(directory: str, result_limit: int) -> int:
    """Run the call in `directory`; returns the exit code."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # so that followers of the log see lines at once
    try:
        users_main.install(directory, pickled_by_value)
        function, args, kwargs = _load(os.path.join(directory, "call.pickle"))
        users_main.keep_names()
        encoding, data = encode_result(function(*args, **kwargs), result_limit)
        _write(os.path.join(directory, f"result.{encoding}"), data)
    except SystemExit:
        raise
    except BaseException as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # without this function
        if isinstance(error, ModuleNotFoundError):
            error.add_note(missing_module(error.name))
        traceback.print_exception(error)
        _write(os.path.join(directory, "error.json"), json.dumps(failure_fields(error)).encode())
        return 1
    return 0


def wait_for_call(modules: list[str]) -> tuple[str, int]:
    """Import `modules`, then turn into the process of the call on stdin; returns its directory and result limit."""
    for name in modules:
        importlib.import_module(name)
    line = sys.stdin.buffer.readline()
    if not line:
        raise SystemExit(0)
    call = json.loads(line)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(call["env"])
    first = [call["cwd"]] if sys.path[0] == os.getcwd() else []
    sys.path[: len(first)] = [*first, *call["python_path"]]  # as if it had been started in that folder
    os.chdir(call["cwd"])
    sys.argv[1:] = [call["directory"], str(call["result_limit"])]
    return call["directory"], call["result_limit"]


def _load(path: str) -> Any:
    try:
        with open(path, "rb") as file:
            return pickle.load(file)
    except ModuleNotFoundError as error:
        raise CallFailed(
            exit_kinds.EXCEPTION, f"the callable cannot be loaded on this host; {missing_module(error.name)}"
        ) from error
    except Exception as error:
        raise CallFailed(
            exit_kinds.EXCEPTION, f"the callable cannot be loaded on this host: {_summary(error)}"
        ) from error


def encode_result(value: Any, limit: int) -> tuple[str, bytes]:
    """Encoding ("json" or "pickle") and bytes of a return value.

    Raises:
        CallFailed: it cannot be pickled, or has more than `limit` bytes.
    """
    if _is_json(value):
        encoding, data = "json", json.dumps(value, ensure_ascii=False).encode()
    else:
        encoding, data = "pickle", _pickle(value)
    if len(data) > limit:
        raise CallFailed(exit_kinds.TOO_LARGE, too_large(len(data), limit))
    return encoding, data


def _pickle(value: Any) -> bytes:
    try:
        return pickled_by_value(value)
    except Exception as error:
        remedy = "return something that can, or write it to storage and return its path"
        name = type(value).__qualname__
        message = f"the return value, a {name}, cannot be pickled ({_summary(error)}); {remedy}"
        raise CallFailed(exit_kinds.EXCEPTION, message) from error


def _is_json(value: Any) -> bool:
    """Whether JSON preserves exactly this value: only JSON's types, no subclasses; Unicode text; no deep nesting."""
    try:
        return _has_json_types(value, _MAX_JSON_DEPTH)
    except UnicodeEncodeError:
        return False


def _has_json_types(value: Any, depth: int) -> bool:
    kind = type(value)
    if kind is str:
        value.encode()
    if kind is float:
        return math.isfinite(value)
    if kind is list:
        return depth > 0 and all(_has_json_types(item, depth - 1) for item in value)
    if kind is dict:
        return depth > 0 and all(
            type(key) is str and _has_json_types(key, 0) and _has_json_types(item, depth - 1)
            for key, item in value.items()
        )
    return kind in _JSON_SCALARS


def failure_fields(error: BaseException) -> dict[str, Any]:
    """The fields of `AttemptExit` for an exception, cut to fit into the job's record."""
    fields = {"kind": exit_kinds.EXCEPTION, **exception_fields(error), "data": _pickled_exception(error)}
    if isinstance(error, CallFailed):
        cause = error.__cause__
        fields |= {"kind": error.kind, "message": shortened(str(error), MESSAGE_LIMIT), "data": ""}
        fields["exception"] = type(cause).__qualname__ if cause else ""
    return fields


def exception_fields(error: BaseException) -> dict[str, str]:
    """The fields of `AttemptExit` for people, from an exception."""
    text = "".join(traceback.format_exception(error))
    return {
        "message": _summary(error),
        "exception": type(error).__qualname__,
        "traceback": shortened(text, TRACEBACK_LIMIT),
    }


def _summary(error: BaseException) -> str:
    """One line with the exception's type and message."""
    try:
        text = " ".join(str(error).split())
    except BaseException:
        text = "(its text cannot be produced)"
    return shortened(f"{type(error).__qualname__}: {text}" if text else type(error).__qualname__, MESSAGE_LIMIT)


def _pickled_exception(error: BaseException) -> str:
    """Base64 of the pickled exception; "" if it cannot be unpickled, or is too large."""
    try:
        data = pickled_by_value(error.with_traceback(None))
        pickle.loads(data)
    except BaseException:
        return ""
    encoded = base64.b64encode(data).decode()
    return encoded if len(encoded) <= DATA_LIMIT else ""


def _write(path: str, data: bytes) -> None:
    with open(path + ".part", "wb") as file:
        file.write(data)
    os.rename(path + ".part", path)


def end_process(code: int) -> NoReturn:
    """End this process with an exit code.

    If Ray is loaded, it ends as the children of `multiprocessing` do: it waits for threads and runs atexit handlers,
    but does not tear down the interpreter. A daemon thread that waits in Ray needs the interpreter now and then. If
    that is gone, SIGSEGV kills the process, and a call that succeeded has failed (Ray 2.60).
    """
    if "ray" in sys.modules:
        threading._shutdown()  # type: ignore[attr-defined]  # the interpreter itself calls this
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    prestarted = sys.argv[1] == "--prestarted"
    end_process(main(*wait_for_call(sys.argv[2:]) if prestarted else (sys.argv[1], int(sys.argv[2]))))
