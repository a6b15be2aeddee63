"""What every job context offers, and which one is used where nobody says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, Protocol

Lifetime = Literal["non_detached", "detached"]


class JobContext(Protocol):
    """Runs tasks and keeps objects, inside one job: the same code on one thread, on many, or on a cluster."""

    def put(self, obj: Any) -> Any:
        """A reference to an object, for tasks that take it as an argument; `get` gives the object back."""
        ...

    def get(self, ref: Any) -> Any:
        """What a reference or a future stands for, waiting for it; any other value as it is.

        Raises:
            Exception: what the task raised.
        """
        ...

    def run(self, fn: Callable[..., Any], *args: Any, name: str | None = None) -> Future[Any]:
        """Start `fn(*args)`. Of a generator function the future also yields, by `next`, while the function runs.

        Args:
            name: accepted from programs that name their tasks; nothing shows it.
        """
        ...

    def wait(self, futures: Sequence[Any], num_returns: int = 1) -> tuple[list[Any], list[Any]]:
        """Wait until `num_returns` futures are ready: exactly those, and the others, as the same objects."""
        ...

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
    ) -> Any:
        """An object that answers calls one after the other; `handle.method.remote(x)` is a future.

        Args:
            name: others may ask for the actor by it; without one it is nobody's but the caller's.
            get_if_exists: give the actor that has the name already, instead of raising.
            lifetime: a "detached" actor outlives the job that created it.
            preemptible: False keeps it off hosts that may be taken away.
            num_cpus: cores it reserves.

        Raises:
            ValueError: the name is taken.
        """
        ...


_default: ContextVar[JobContext | None] = ContextVar("fray_job_context", default=None)


@contextmanager
def fray_default_job_ctx(ctx: JobContext) -> Iterator[JobContext]:
    """Make `ctx` what `get_default_job_ctx` gives, inside the `with` block."""
    token = _default.set(ctx)
    try:
        yield ctx
    finally:
        _default.reset(token)


def get_default_job_ctx() -> JobContext:
    """The context of the enclosing `fray_default_job_ctx`, else a new one of kind "auto"."""
    from fray.job.create import create_job_ctx

    return _default.get() or create_job_ctx("auto")
