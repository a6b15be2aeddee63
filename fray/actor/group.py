"""Groups of actors that were created together: the interface on any backend, and groups that a thread polls."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from fray import sync
from fray.actor.handle import ActorHandle
from fray.display import Shown
from fray.errors import InvalidInput
from fray.sync import Block
from fray.types import JobId, JobStatus
from fray.wait_line import wait_with_progress

if TYPE_CHECKING:
    from fray.cluster.job_handle import JobHandle


T = TypeVar("T")


class ActorGroup(Shown, Block, Generic[T]):
    """A group of the actors "<name>-0", "<name>-1" ... Pickles as their names.

    The caller decides which actor gets which work; `fray.rpc` has pools that distribute calls.
    """

    def __init__(self, name: str, handles: Sequence[ActorHandle[T]]) -> None:
        self._name = name
        self._handles = handles
        self._found: set[int] = set()

    @property
    def handles(self) -> list[ActorHandle[T]]:
        """A handle of each actor, in the order of their numbers, including those that do not serve calls yet."""
        return list(self._handles)

    @property
    def ready_count(self) -> int:
        """How many of the actors serve calls now; each access asks the cluster again.

        An actor that is being restarted does not count until it serves calls again.
        """
        return len(self._ready())

    @property
    @abstractmethod
    def jobs(self) -> list[JobHandle]:
        """The handles of the actors' jobs, in the order of their numbers, for example to read logs."""

    @abstractmethod
    def statuses(self) -> list[JobStatus]:
        """The status of each actor, in the order of their numbers.

        RUNNING means that the process was started; `ready_count` counts the actors that serve calls.
        """

    def is_done(self) -> bool:
        """Whether all of the actors have ended for good, as `statuses` says.

        An actor that waits for its next restart has not ended.
        """
        return all(status.finished() for status in self.statuses())

    def wait_ready(self, count: int | None = None, timeout: float = 300.0) -> list[ActorHandle[T]]:
        """Wait until `count` actors serve calls; by default all of them.

        Args:
            timeout: seconds.

        Returns:
            The handles of `count` actors that serve calls, in the order of their numbers. The list does not change
            afterwards.

        Raises:
            TimeoutError: too few actors serve calls in time. The others go on starting.
            ActorUnavailableError: so many actors have ended for good that `count` can no longer be reached.
            InvalidInput: `count` is below 0 or greater than the group.
        """
        return self._mark_found(self._wait_ready(self._checked_count(count), timeout))

    async def wait_ready_async(self, count: int | None = None, timeout: float = 300.0) -> list[ActorHandle[T]]:
        """`wait_ready`, for coroutines."""
        return self._mark_found(await self._wait_ready_async(self._checked_count(count), timeout))

    def discover_new(self) -> list[ActorHandle[T]]:
        """The handles of actors that serve calls now and were not yet returned by this method or by `wait_ready`.

        workers = group.wait_ready(1)
        while work := more():
            workers += group.discover_new()
        """
        return self._mark_found([index for index in self._ready() if index not in self._found])

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """Ask all of the actors to end, and return at once. Later calls from this process raise ActorUnavailableError.

        Calls that are running have ten seconds to end. `is_done` says whether all actors have ended.
        """
        for handle in self._handles:
            handle._shut_down("was shut down with its group")

    @property
    def _job_id(self) -> JobId:
        """The id of its first actor's job, which displays show for the group."""
        return self.jobs[0].job_id

    @abstractmethod
    def _ready(self) -> list[int]:
        """The numbers of the actors that serve calls now."""

    @abstractmethod
    def _wait_ready(self, wanted: int, timeout: float | None) -> list[int]:
        """Wait until `wanted` actors serve calls, and return their numbers. A timeout of None is no limit."""

    @abstractmethod
    async def _wait_ready_async(self, wanted: int, timeout: float | None) -> list[int]: ...

    def _checked_count(self, count: int | None) -> int:
        wanted = len(self._handles) if count is None else count
        if not 0 <= wanted <= len(self._handles):
            raise InvalidInput("count", count, f"the group has {len(self._handles)} actors")
        return wanted

    def _shortage(self, living: int, wanted: int, ended: Exception | None) -> str:
        """The message for a group that can no longer have `wanted` actors. ended: how one of its actors ended."""
        return f"only {living} of the {wanted} actors of {self._name!r} that are wanted can still come: {ended}"

    def _mark_found(self, ready: list[int]) -> list[ActorHandle[T]]:
        self._found.update(ready)
        return [self._handles[index] for index in ready]

    def __repr__(self) -> str:
        return f"ActorGroup({self._name!r}, {len(self._handles)} actors)"


class PolledActorGroup(ActorGroup[T]):
    """A group that waits by polling: on Ray it polls the actors, on Iris the controller."""

    @abstractmethod
    def _gather(self, ready: set[int], wanted: int, until: float) -> bool:
        """Add the actors that serve calls to `ready` until it has `wanted` of them. Returns whether that came in time.

        Args:
            until: the deadline, on the clock of `time.monotonic`.

        Raises:
            ActorUnavailableError: too many actors have ended for good.
        """

    def _wait_ready(self, wanted: int, timeout: float | None) -> list[int]:
        ready: set[int] = set()

        def progress() -> str:
            return f"{len(ready)} of {wanted} actors of {self._name!r} serve calls"

        if not wait_with_progress(
            lambda within: self._gather(ready, wanted, time.monotonic() + within), timeout, progress
        ):
            raise TimeoutError(f"{progress()} after {timeout:g} s")
        if wanted < len(self._handles):
            ready.update(self._ready())  # so that the lowest numbers are returned, not the quickest to answer
        return sorted(ready)[:wanted]

    async def _wait_ready_async(self, wanted: int, timeout: float | None) -> list[int]:
        return await sync.in_thread(lambda: self._wait_ready(wanted, timeout))
