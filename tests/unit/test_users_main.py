"""Names of a user's script in its tasks: pickle finds them, and no object is taken for another of the same name."""

import functools
import inspect
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import NewType, ParamSpec, TypeVarTuple

import pytest

from fray.pool.pool_task import TaskRunner
from fray_runtime import users_main
from fray_runtime.pickling import pickled_by_value
from tests.support.tasks import end_of, spec

FUNCTION = "def number(): return {value}\ndef other(): return number()\n"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is a task's, while the test runs."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(users_main, "_names", None)
    users_main.install(str(tmp_path), pickled_by_value)


def of_script(code: str, file: str = "a.py", name: str = "other") -> bytes:
    """The pickle of a function of a script with this code, made in the process that runs the script."""
    main, here = ModuleType("__main__"), sys.modules["__main__"]
    main.__file__ = file
    exec(code, main.__dict__)
    sys.modules["__main__"] = main
    try:
        return pickled_by_value(getattr(main, name))
    finally:
        sys.modules["__main__"] = here


def main_number() -> int:
    """What the function does that pickle finds in `__main__`."""
    number: int = sys.modules["__main__"].number()
    return number


@pytest.mark.usefixtures("installed")
def test_names_of_another_script_do_not_replace_those_of_the_first() -> None:
    assert pickle.loads(of_script(FUNCTION.format(value=1)))() == 1
    assert pickle.loads(of_script(FUNCTION.format(value=2), "b.py"))() == 2
    assert main_number() == 1
    assert pickle.loads(of_script(FUNCTION.format(value=3)))() == 3
    assert main_number() == 3


@pytest.mark.usefixtures("installed")
def test_names_that_came_with_the_tasks_own_function_stay() -> None:
    mine = pickle.loads(of_script(FUNCTION.format(value=1)))
    users_main.keep_names()
    argument = pickle.loads(of_script(FUNCTION.format(value=2), name="number"))
    assert main_number() == 1
    assert pickle.loads(pickle.dumps(mine)) is mine
    with pytest.raises(pickle.PicklingError, match="not the same object"):
        pickle.dumps(argument)


@pytest.mark.usefixtures("installed")
def test_each_task_of_a_worker_has_the_names_that_came_with_its_function() -> None:
    code = FUNCTION + "import pickle\ndef task(): return pickle.loads(pickle.dumps(number))()\n"
    first, second = (of_script(code.format(value=value), name="task") for value in (1, 2))
    runner = TaskRunner()
    runner.define("large", of_script(code.format(value=3), name="task"))
    assert [runner.run(form, (), {})[1] for form in (first, second, first, "large", second, "large")] == [
        1,
        2,
        1,
        3,
        2,
        3,
    ]


def test_another_process_than_a_tasks_keeps_its_main_module() -> None:
    main = dict(vars(sys.modules["__main__"]))
    assert pickle.loads(of_script(FUNCTION.format(value=1)))() == 1
    assert dict(vars(sys.modules["__main__"])) == main


CACHED = """
import functools
@functools.lru_cache(maxsize=7, typed=True)
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
"""


@pytest.mark.usefixtures("installed")
def test_a_cached_function_of_a_script_is_sent_with_its_code() -> None:
    fib = pickle.loads(of_script(CACHED, name="fib"))
    assert fib(30) == 832040
    assert fib.cache_parameters() == {"maxsize": 7, "typed": True}
    assert fib.__name__ == "fib"
    assert inspect.signature(fib).parameters.keys() == {"n"}
    assert pickle.loads(pickle.dumps(fib)) is fib
    assert pickle.loads(pickled_by_value(fib))(30) == 832040


def test_a_cached_function_of_a_module_is_sent_by_its_name() -> None:
    assert pickle.loads(pickled_by_value(a_cached_function)) is a_cached_function


@functools.cache
def a_cached_function() -> None: ...


TYPES = """
from typing import NewType, ParamSpec, TypeVarTuple
UserId, P, Ts = NewType("UserId", int), ParamSpec("P"), TypeVarTuple("Ts")
def task(user: UserId, p: P, ts: Ts): pass
"""


@pytest.mark.usefixtures("installed")
def test_types_of_a_script_that_pickle_as_their_names_are_sent() -> None:
    user, p, ts = pickle.loads(of_script(TYPES, name="task")).__annotations__.values()
    assert (type(user), user.__name__, user.__supertype__) == (NewType, "UserId", int)
    assert [(type(each), each.__name__) for each in (p, ts)] == [(ParamSpec, "P"), (TypeVarTuple, "Ts")]
    assert pickle.loads(pickle.dumps(user)) is user


SENTINEL = """
class Missing:
    def __reduce__(self): return "MISSING"
MISSING = Missing()
def task(value=MISSING): pass
"""


def test_an_object_whose_pickle_is_a_name_of_the_script_is_refused() -> None:
    with pytest.raises(pickle.PicklingError, match="a Missing pickles as 'MISSING', a name of this script"):
        of_script(SENTINEL, name="task")


PROGRAM = """
import concurrent.futures, dataclasses, multiprocessing, pickle, sys
from fray_runtime.pickling import pickled_by_value

@dataclasses.dataclass
class Config:
    n: int

def square(x): return x * x
def install(): return "square", Config, Config.__module__

def task(data):
    assert pickle.loads(data) == Config(2)
    assert pickle.loads(pickle.dumps(Config(1))) == Config(1)
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert pool.map(square, [3]) == [9], method
            assert pool.map(repr, [Config(4)]) == ["Config(n=4)"], method
    return install()[0]

if __name__ == "__main__":
    sys.stdout.buffer.write(pickled_by_value((task, (pickle.dumps(Config(2)),), {})))
"""


def test_pickle_and_multiprocessing_in_a_task_find_the_names_of_its_script(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    call = subprocess.run([sys.executable, str(program)], capture_output=True, check=True).stdout
    program.unlink()  # as on another host
    end = end_of(replace(spec(tmp_path / "task"), callable_pickle=call))
    assert end.exit.message == ""
    assert end.exit.kind == "success"
