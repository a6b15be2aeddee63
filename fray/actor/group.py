"""A group of actors that were created together, wherever they are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from fray.actor.handle import ActorHandle
from fray.block import Block
from fray.display import Shown
from fray.errors import InvalidInput
from fray.types import JobId, JobStatus

if TYPE_CHECKING:
    from fray.cluster.job_handle import JobHandle

T = TypeVar("T")


class ActorGroup(Shown, Block, Generic[T]):
    """The actors "<name>-0", "<name>-1" ... Pickles as names.

    Which of them gets which work is the caller's business; `fray.rpc` has pools that share calls out.
    """

    def __init__(self, name: str, handles: Sequence[ActorHandle[T]]) -> None:
        self._name = name
        self._handles = handles
        self._found: set[int] = set()

    @property
    def handles(self) -> list[ActorHandle[T]]:
        """A handle of each actor, in the order of their numbers, whether it serves calls yet or not."""
        return list(self._handles)

    @property
    def ready_count(self) -> int:
        """How many of the actors serve calls now; each use asks anew.

        One that is restarted does not count until it serves again.
        """
        return len(self._ready())

    @property
    @abstractmethod
    def jobs(self) -> list[JobHandle]:
        """The handles of the actors' jobs, in the order of their numbers: to read logs, or to see how one ended."""

    @abstractmethod
    def statuses(self) -> list[JobStatus]:
        """The status of each actor, in the order of their numbers.

        RUNNING says that the process was started; `ready_count` counts those that serve calls.
        """

    def is_done(self) -> bool:
        """Whether all of the actors have ended for good, as `statuses` says.

        An actor that waits for its next restart has not ended.
        """
        return all(status.finished() for status in self.statuses())

    def wait_ready(self, count: int | None = None, timeout: float = 300.0) -> list[ActorHandle[T]]:
        """Wait until `count` actors, by default all, serve calls.

        Args:
            timeout: seconds.

        Returns:
            The handles of `count` that do, in their order; the list does not change afterwards.

        Raises:
            TimeoutError: too few serve calls in time. They go on starting.
            ActorUnavailableError: so many have ended that there never will be enough.
            InvalidInput: the group is smaller, or `count` is below 0.
        """
        return self._tell(self._wait_ready(self._checked_count(count), timeout))

    async def wait_ready_async(self, count: int | None = None, timeout: float = 300.0) -> list[ActorHandle[T]]:
        """`wait_ready`, for coroutines."""
        return self._tell(await self._wait_ready_async(self._checked_count(count), timeout))

    def discover_new(self) -> list[ActorHandle[T]]:
        """The handles of actors that serve calls now and that neither this nor `wait_ready` has returned before.

        workers = group.wait_ready(1)
        while work := more():
            workers += group.discover_new()
        """
        return self._tell([index for index in self._ready() if index not in self._found])

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """Ask that all of the actors end, and return at once. Later calls of this process raise ActorUnavailableError.

        Each lets the calls that run end within its grace of ten seconds. `is_done` tells when all are gone.
        """
        for handle in self._handles:
            handle._shut_down("was shut down with its group")

    @property
    def _job_id(self) -> JobId:
        """The id of its first actor, which programs show for the group."""
        return self.jobs[0].job_id

    @abstractmethod
    def _ready(self) -> list[int]:
        """The numbers of the actors that serve calls now."""

    @abstractmethod
    def _wait_ready(self, wanted: int, timeout: float | None) -> list[int]:
        """Wait until so many serve calls, however long that takes if there is no timeout; see `wait_ready`."""

    @abstractmethod
    async def _wait_ready_async(self, wanted: int, timeout: float | None) -> list[int]: ...

    def _checked_count(self, count: int | None) -> int:
        wanted = len(self._handles) if count is None else count
        if not 0 <= wanted <= len(self._handles):
            raise InvalidInput("count", count, f"the group has {len(self._handles)} actors")
        return wanted

    def _shortage(self, living: int, wanted: int, ended: Exception | None) -> str:
        """Says that there never will be enough, and how one of those ended that are not there."""
        return f"only {living} of the {wanted} actors of {self._name!r} that are wanted can still come: {ended}"

    def _tell(self, ready: list[int]) -> list[ActorHandle[T]]:
        self._found.update(ready)
        return [self._handles[index] for index in ready]

    def __repr__(self) -> str:
        return f"ActorGroup({self._name!r}, {len(self._handles)} actors)"
