"""The task of a worker pool: a function and arguments with their future, shared objects, and the runner.

An object that tasks share is stored once, under a hash of its content.
"""

import functools
import hashlib
import inspect
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from fray.cluster.current import open_cluster, storage_cluster
from fray.errors import InvalidInput, Permanent
from fray.futures import TaskFuture
from fray_rpc import ClientCall
from fray_rpc.wire.messages import Request, packed_call
from fray_rpc.wire.serialization import pack, unpicklable_part
from fray_runtime import users_main
from fray_runtime.pickling import modules_pickled_by_value, pickled_by_value

_CACHED_OBJECTS = 4
"""Objects whose bytes a process keeps for its next tasks: enough for a few stages, without filling the memory."""


class ObjectGone(Permanent, LookupError):
    """The object is no longer in storage, because its pool was shut down: put it into another pool."""


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """A reference to an object in storage. Any process that can read the root can fetch the object."""

    root: str
    key: str


def fetch(value: Any) -> Any:
    """Return a new copy of a reference's object; any other value is returned unchanged. Raises ObjectGone."""
    return pickle.loads(_read(value)) if isinstance(value, ObjectRef) else value


@functools.lru_cache(maxsize=_CACHED_OBJECTS)
def _read(ref: ObjectRef) -> bytes:
    found = storage_cluster(open_cluster(ref.root)).run(lambda core: core.store.get(ref.key))
    if found is None:
        raise ObjectGone(f"{ref.key}: {ObjectGone.__doc__}")
    return found.data


LARGE_FUNCTION_BYTES = 64 * 1024
"""Bytes above which a pickled function is sent to each worker once, and not with every task. A closure that captures no
data is much smaller."""


@dataclass(frozen=True, slots=True)
class PackedFunction:
    """A function in the form in which it is sent to workers.

    Attributes:
        form: the function itself if workers can import it by name, the key of `pickled` if it is large, or its pickle.
        yields: whether it is a generator function.
        pickled: the pickle of a large function, else b"".
    """

    form: Callable[..., Any] | bytes | str
    yields: bool = False
    pickled: bytes = b""


class DirectFuture(TaskFuture[Any]):
    """The future of a directly called task. The waiting thread reads the worker's reply itself, which is quicker.

    Attributes:
        call: the call that was sent to a worker; None before that.
    """

    call: ClientCall | None = None

    def _has_ended(self, within: float) -> bool:
        deadline = time.monotonic() + within
        if (call := self.call) is not None:
            with suppress(TimeoutError):
                call.exception(within)
        return super()._has_ended(deadline - time.monotonic())


@dataclass(slots=True, eq=False)
class PoolTask:
    """A task. deaths: the number of workers that died while it ran."""

    function: PackedFunction
    request: Request
    future: DirectFuture = field(default_factory=DirectFuture)
    deaths: int = 0


@contextmanager
def must_pickle(field: str, value: object, remedy: str) -> Iterator[None]:
    """Raise InvalidInput for this field if what the block pickles cannot be pickled."""
    try:
        yield
    except Exception as error:  # pickling runs the users' own __reduce__, which may raise anything
        raise InvalidInput(field, value, f"it cannot be pickled ({error}); {remedy}") from error


@contextmanager
def must_pickle_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Raise InvalidInput, which names the argument, if the block cannot pickle a task's arguments."""
    try:
        yield
    except Exception as error:
        part, value = unpicklable_part(args, kwargs)
        raise InvalidInput(part, value, f"it cannot be pickled ({error}); make it inside the task") from error


def packed_function(call: Callable[..., Any]) -> PackedFunction:
    """Pack a function in its current state. Raises InvalidInput if it cannot be pickled."""
    yields = inspect.isgeneratorfunction(call)
    if _is_importable(call):
        return PackedFunction(call, yields)
    with must_pickle("fn", call, "make it inside the task instead"):
        data = pickled_by_value(call)
    if len(data) <= LARGE_FUNCTION_BYTES:
        return PackedFunction(data, yields)
    return PackedFunction(content_digest(data), yields, data)


def packed_task(worker: str, function: PackedFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> PoolTask:
    """Make a task for the workers of a name. The arguments are pickled now, so later changes to them have no effect.

    Raises InvalidInput if the arguments cannot be pickled.
    """
    with must_pickle_arguments(args, kwargs):
        return PoolTask(function, packed_call(worker, "run", (function.form, args, kwargs), {}))


def _is_importable(call: Callable[..., Any]) -> bool:
    """Whether a worker can import the function by its name."""
    module = getattr(call, "__module__", None)
    if module is None or module == "__main__" or module in modules_pickled_by_value():
        return False
    return getattr(sys.modules.get(module), getattr(call, "__qualname__", ""), None) is call


def content_digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=20).hexdigest()


def pickled(value: object) -> bytes:
    """Pickle a value into one piece, without out-of-band buffers."""
    packed = pack(value)
    return pickled_by_value(value) if packed.buffers else packed.data


class TaskRunner:
    """The actor on a worker that runs functions one after the other. Its job ends with the pool's driver."""

    def __init__(self) -> None:
        self._large: dict[str, _Loaded] = {}

    def run(
        self, function: Callable[..., Any] | bytes | str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[float, Any]:
        """Call a function. Returns the seconds that it took and its value; for a generator, the list of its values."""
        if isinstance(function, (bytes, str)):
            call, names = self._large[function] if isinstance(function, str) else _unpickled(function)
            users_main.rebind(names)
        else:
            call = function
        begin = time.perf_counter()
        value = call(*args, **kwargs)
        if inspect.isgenerator(value):
            value = list(value)
        return time.perf_counter() - begin, value

    def define(self, key: str, pickled: bytes) -> None:
        """Store a large function, which later tasks name by `key`."""
        self._large[key] = users_main.loaded(pickled)


_Loaded = tuple[Callable[..., Any], list[users_main.Binding]]
"""A function, and the names of `__main__` that came with it."""


@functools.lru_cache(maxsize=64)
def _unpickled(pickled: bytes) -> _Loaded:
    return users_main.loaded(pickled)
