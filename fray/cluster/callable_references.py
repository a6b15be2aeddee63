"""Callables of jobs that run as threads of this process. The job's record has a number in place of a pickle.

So the job runs with the submitter's own function and argument objects, and these need not be picklable. They are kept
until the job has ended.
"""

import io
import itertools
import pickle
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from fray.entrypoints import CallableEntrypoint, NamedEntrypoint, entrypoint_of
from fray.job_spec import call_name
from fray.types import JobId, JobRequest

_MIN_KEPT = 100
"""Calls that are kept before the first sweep. A sweep reads the record of every kept call's job."""

_numbers = itertools.count()
_calls: dict[int, CallableEntrypoint] = {}


def call_reference(number: int) -> Any:
    """The function that such a job runs: it makes the call that is kept under this number."""
    kept = _calls[number]
    return kept.callable(*kept.args, **kept.kwargs)


def is_reference(pickled: bytes | None) -> bool:
    """Whether a pickled call is a call of `call_reference`, which has a meaning in this process only."""
    try:
        function, _, _ = _ReferenceUnpickler(io.BytesIO(pickled or b"")).load()
    except Exception:  # any other call; the unpickler refuses to load it
        return False
    return function is call_reference


class _ReferenceUnpickler(pickle.Unpickler):
    """An unpickler that loads `call_reference` only, so that it cannot run foreign code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) != (call_reference.__module__, call_reference.__qualname__):
            raise pickle.UnpicklingError(name)
        return call_reference


class CallableReferences:
    """Keeps the calls of one cluster's jobs until the jobs have ended.

    ended: returns those of the given jobs that have ended for good.
    """

    def __init__(self, ended: Callable[[Sequence[JobId]], Collection[JobId]]) -> None:
        self._ended = ended
        self._lock = threading.Lock()
        self._kept: dict[int, JobId] = {}
        self._sweep_above = _MIN_KEPT

    def launch(
        self, requests: Sequence[JobRequest], launch: Callable[[Sequence[JobRequest]], list[JobId]]
    ) -> list[JobId]:
        """Launch requests with their calls replaced by references, and return the ids of the jobs."""
        numbers = [_keep(request) for request in requests]
        try:
            jobs = launch([_with_reference(*both) for both in zip(requests, numbers, strict=True)])
        except BaseException:
            _forget([number for number in numbers if number is not None])
            raise
        with self._lock:
            self._kept.update((number, job) for number, job in zip(numbers, jobs, strict=True) if number is not None)
            is_due = len(self._kept) > self._sweep_above
        if is_due:
            self._sweep()
        return jobs

    def close(self) -> None:
        """Forget all calls. No job of the cluster runs any more."""
        with self._lock:
            _forget(self._kept)
            self._kept.clear()

    def _sweep(self) -> None:
        """Forget the calls of jobs that have ended. The next sweep is due when twice as many calls are kept as now."""
        with self._lock:
            known = dict(self._kept)
        ended = self._ended(list(dict.fromkeys(known.values())))
        with self._lock:
            for number in [number for number, job in known.items() if job in ended]:
                self._kept.pop(number, None)
                _calls.pop(number, None)
            self._sweep_above = max(_MIN_KEPT, 2 * len(self._kept))


def _keep(request: JobRequest) -> int | None:
    """Keep the request's call and return its number; None if the entrypoint is not a callable."""
    entrypoint = entrypoint_of(request.entrypoint)
    if not isinstance(entrypoint, CallableEntrypoint):
        return None
    number = next(_numbers)
    _calls[number] = entrypoint
    return number


def _with_reference(request: JobRequest, number: int | None) -> JobRequest:
    if number is None:
        return request
    named = NamedEntrypoint(call_reference, (number,), name=call_name(_calls[number]))
    return replace(request, entrypoint=named)


def _forget(numbers: Collection[int]) -> None:
    for number in numbers:
        _calls.pop(number, None)
