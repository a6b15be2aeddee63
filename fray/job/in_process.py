"""The job contexts that stay in one process: on the caller's own thread, or on a pool of threads."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fray import futures
from fray.errors import ActorUnavailableError, InvalidInput
from fray.futures import GeneratorFuture, TaskFuture
from fray.job.job_context import JobContext, Lifetime, checked_workers
from fray.types import JobStatus

T = TypeVar("T")

CallRunner = Callable[[Callable[[], Any]], "TaskFuture[Any]"]


class _LocalContext(JobContext):
    """The base class of both contexts. `put` returns the object itself, and actors end with this process."""

    def __init__(self) -> None:
        self._actors: dict[str, LocalActorHandle] = {}
        self._lock = threading.RLock()

    def put(self, obj: Any) -> Any:
        return obj

    def create_actor(
        self,
        actor_class: type,
        *args: Any,
        name: str | None = None,
        get_if_exists: bool = False,
        lifetime: Lifetime = "non_detached",
        preemptible: bool = True,
        num_cpus: float | None = None,
        **kwargs: Any,
    ) -> LocalActorHandle:
        with self._lock:
            known = self._actors.get(name) if name is not None else None
            if known is not None and not get_if_exists:
                raise InvalidInput("name", name, "another actor has it; pass get_if_exists=True to get that one")
            if known is None:
                known = LocalActorHandle(actor_class(*args, **kwargs), self._one_at_a_time())
                if name is not None:
                    self._actors[name] = known
            return known

    def delete_actor(self, actor: LocalActorHandle) -> None:
        with self._lock:
            self._actors = {name: known for name, known in self._actors.items() if known is not actor}
        actor._run = _deleted

    def get_actor_status(self, actor: LocalActorHandle) -> JobStatus:
        return JobStatus.STOPPED if actor._run is _deleted else JobStatus.RUNNING

    def _one_at_a_time(self) -> CallRunner:
        """Make a runner for the calls of one actor. It runs them one at a time, in order."""
        raise NotImplementedError


def _deleted(call: Callable[[], Any]) -> TaskFuture[Any]:
    """The runner of a deleted actor: every call fails."""
    future = TaskFuture[Any]()
    future.set_exception(ActorUnavailableError("the actor was deleted; create another one"))
    return future


def _future_of(fn: Callable[..., Any]) -> TaskFuture[Any]:
    return GeneratorFuture() if inspect.isgeneratorfunction(fn) else TaskFuture()


class SyncContext(_LocalContext):
    """A job context that runs every task at once on the caller's thread. `get` raises what the task raised.

    A generator runs to its end at once; its values are still returned one by one. Objects and actors stay in this
    process.
    """

    def _run(self, fn: Callable[..., Any], args: tuple[Any, ...], name: str | None) -> TaskFuture[Any]:
        future = _future_of(fn)
        futures.run_into(fn, args, future)
        return future

    def close(self) -> None:
        pass

    def _one_at_a_time(self) -> CallRunner:
        turn = threading.RLock()

        def run(call: Callable[[], Any]) -> TaskFuture[Any]:
            with turn:
                future: TaskFuture[Any] = self.run(call)
                return future

        return run


class ThreadContext(_LocalContext):
    """A job context that runs tasks on threads of this process. Objects and actors stay in this process.

    Args:
        max_workers: number of threads; a task that waits for another one keeps its thread meanwhile.

    Raises:
        InvalidInput: `max_workers` is below 1.
    """

    def __init__(self, max_workers: int = 1) -> None:
        super().__init__()
        self._max_workers = checked_workers(max_workers)
        self._made: ThreadPoolExecutor | None = None

    def _run(self, fn: Callable[..., Any], args: tuple[Any, ...], name: str | None) -> TaskFuture[Any]:
        future = _future_of(fn)
        with self._lock:
            if self._made is None:
                self._made = ThreadPoolExecutor(self._max_workers, thread_name_prefix="fray-task")
            self._made.submit(futures.run_into, fn, args, future)
        return future

    def close(self) -> None:
        with self._lock:
            made, self._made = self._made, None
        if made is not None:
            made.shutdown(wait=False)

    def _one_at_a_time(self) -> CallRunner:
        thread = ThreadPoolExecutor(1, thread_name_prefix="fray-actor")

        def run(call: Callable[[], Any]) -> TaskFuture[Any]:
            future = _future_of(call)
            thread.submit(futures.run_into, call, (), future)
            return future

        return run


class LocalActorHandle:
    """A handle of an object whose methods run one at a time: `handle.method(x)`, or `handle.method.remote(x)`."""

    def __init__(self, instance: object, run: CallRunner) -> None:
        self._instance = instance
        self._run = run

    def __getattr__(self, method: str) -> LocalActorMethod:
        if method.startswith("__"):
            raise AttributeError(method)
        return LocalActorMethod(self, getattr(self._instance, method))


class LocalActorMethod:
    """One method of an actor of this process."""

    def __init__(self, actor: LocalActorHandle, method: Callable[..., Any]) -> None:
        self._actor = actor
        self._method = method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.remote(*args, **kwargs).result()

    def remote(self, *args: Any, **kwargs: Any) -> TaskFuture[Any]:
        """Start the call, and return a future of its result."""
        return self._actor._run(functools.partial(self._method, *args, **kwargs))
