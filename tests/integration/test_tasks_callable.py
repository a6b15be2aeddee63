"""The results and exceptions of callables come back, and if one cannot, an error says why."""

from __future__ import annotations

import base64
import math
import os
import pickle
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pytest

from fray_agents.tasks.environment import inherited_environment
from fray_agents.tasks.task_handle import ResultFile, TaskSpec
from tests.support.tasks import end_of, spec

# Functions of a test module are pickled by value, as those of a user's script are: no task can import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def returned(directory: Path, value: Any) -> ResultFile:
    result = end_of(spec(directory, call=lambda: value)).result
    assert result is not None
    return result


@pytest.mark.parametrize("value", [None, True, 3, -1.5, "text é 🎈", [1, [2, None]], {"a": {"b": [False]}}, 10**30])
def test_json_values_come_back_as_json(tmp_path: Path, value: Any) -> None:
    result = returned(tmp_path, value)
    assert (result.encoding, result.size) == ("json", result.path.stat().st_size)
    back = msgspec.json.decode(result.path.read_bytes())
    assert (back, type(back)) == (value, type(value))


@pytest.mark.parametrize("value", [(1, 2), {1: 2}, {3}, b"bytes", math.inf, "\ud800", [(1,)], {"a": {4: 5}}, 1j])
def test_other_values_come_back_as_pickles(tmp_path: Path, value: Any) -> None:
    result = returned(tmp_path, value)
    assert result.encoding == "pickle"
    back = pickle.loads(result.path.read_bytes())
    assert (back, type(back)) == (value, type(value))


def test_a_value_that_holds_itself_is_a_pickle(tmp_path: Path) -> None:
    value: list[Any] = []
    value.append(value)
    assert returned(tmp_path, value).encoding == "pickle"


def test_arguments_arrive(tmp_path: Path) -> None:
    call = cloudpickle.dumps((lambda a, *, b: {"a": a, "b": b}, (1,), {"b": 2}))
    result = end_of(TaskSpec(tmp_path, None, call, dict(os.environ), None, 1.0)).result
    assert result is not None
    assert msgspec.json.decode(result.path.read_bytes()) == {"a": 1, "b": 2}


class Refusal(Exception):
    def __init__(self, what: str, code: int) -> None:
        super().__init__(what, code)


def raising() -> None:
    raise Refusal("no", 7)


def test_an_exception_comes_back_with_its_traceback(tmp_path: Path) -> None:
    end = end_of(spec(tmp_path, call=raising))
    assert (end.exit.kind, end.exit.code, end.exit.exception, end.result) == ("exception", 1, "Refusal", None)
    assert end.exit.message == "Refusal: ('no', 7)"
    assert "in raising" in end.exit.traceback
    assert "fray_agents" not in end.exit.traceback
    log = (tmp_path / "log/00000001").read_text()
    assert all(line in log for line in end.exit.traceback.splitlines())
    assert pickle.loads(base64.b64decode(end.exit.data)).args == ("no", 7)


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("has a lock")
        self.lock = threading.Lock()


class HalfPicklable(Exception):
    """Its pickle cannot be loaded: the constructor takes more arguments than `args` has."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__("half")


def raise_unpicklable() -> None:
    raise Unpicklable


def raise_half_picklable() -> None:
    raise HalfPicklable(1, 2)


@pytest.mark.parametrize("call", [raise_unpicklable, raise_half_picklable])
def test_an_exception_that_does_not_pickle_still_has_its_text(tmp_path: Path, call: Any) -> None:
    end = end_of(spec(tmp_path, call=call)).exit
    assert (end.kind, end.data) == ("exception", "")
    assert end.exception in end.traceback


def raise_at_length() -> None:
    raise ValueError("\ud800" + "x" * 1_000_000)


def test_a_long_exception_is_cut_to_fit_the_record(tmp_path: Path) -> None:
    end = end_of(spec(tmp_path, call=raise_at_length)).exit
    assert end.message.startswith("ValueError: \\ud800xxx")
    assert len(msgspec.json.encode(end)) < 64 * 1024


def out_of_memory() -> None:
    raise MemoryError


def test_memory_error_is_an_exception(tmp_path: Path) -> None:
    assert end_of(spec(tmp_path, call=out_of_memory)).exit.message == "MemoryError"


@pytest.mark.parametrize(
    ("argument", "kind", "code", "message"),
    [
        (3, "exited", 3, "exit code 3"),
        (None, "success", 0, ""),
        ("bad config", "exited", 1, "exit code 1: bad config"),
    ],
)
def test_system_exit_is_as_in_python(tmp_path: Path, argument: Any, kind: str, code: int, message: str) -> None:
    end = end_of(spec(tmp_path, call=lambda: sys.exit(argument)))
    assert (end.exit.kind, end.exit.code, end.exit.message, end.result) == (kind, code, message, None)


def test_a_fault_in_native_code_leaves_its_stack(tmp_path: Path) -> None:
    call = spec(tmp_path, call=lambda: os.kill(os.getpid(), signal.SIGSEGV))
    end = end_of(replace(call, env={**call.env, **inherited_environment()})).exit
    assert (end.kind, end.signal) == ("signalled", signal.SIGSEGV)
    assert end.message.startswith(f"killed by SIGSEGV: Segmentation fault in native code, called at {__file__}, line ")
    assert f'File "{__file__}", line ' in end.traceback


def test_a_module_that_the_host_lacks_is_named(tmp_path: Path) -> None:
    call = b"cno_such_module\nfunction\n."
    end = end_of(TaskSpec(tmp_path, None, call, dict(os.environ), None, 1.0)).exit
    assert (end.kind, end.exception) == ("exception", "ModuleNotFoundError")
    assert "'no_such_module' is missing here" in end.message
    assert 'EnvironmentConfig(workspace="auto")' in end.message


def test_a_callable_that_is_no_pickle_is_an_exception(tmp_path: Path) -> None:
    end = end_of(TaskSpec(tmp_path, None, b"junk", dict(os.environ), None, 1.0)).exit
    assert (end.kind, end.exception) == ("exception", "UnpicklingError")
    assert "the callable cannot be loaded on this host" in end.message


def test_a_result_that_cannot_be_pickled_names_its_type(tmp_path: Path) -> None:
    end = end_of(spec(tmp_path, call=lambda: (i for i in range(3)))).exit
    assert end.kind == "exception"
    assert "the return value, a generator, cannot be pickled" in end.message


@pytest.mark.parametrize("value", ["x" * 100, b"x" * 100])
def test_a_result_that_is_too_large_is_an_error_with_a_remedy(tmp_path: Path, value: Any) -> None:
    end = end_of(spec(tmp_path, call=lambda: value, result_limit=99))
    assert (end.exit.kind, end.result) == ("too-large", None)
    assert "bytes, more than the limit of 99; write it to storage and return its path" in end.exit.message


def test_a_callable_without_need_of_it_does_not_import_cloudpickle(tmp_path: Path) -> None:
    """Its import takes longer than the interpreter's start."""
    call = pickle.dumps((eval, ("sorted(__import__('sys').modules)",), {}))
    result = end_of(TaskSpec(tmp_path, None, call, dict(os.environ), None, 1.0)).result
    assert result is not None
    loaded = msgspec.json.decode(result.path.read_bytes())
    assert "pickle" in loaded
    assert not {"cloudpickle", "asyncio", "msgspec", "fray"} & set(loaded)
