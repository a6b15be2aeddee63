"""What every client offers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from fray.cluster.job_handle import JobHandle
from fray.types import EnvironmentConfig, JobRequest, ResourceConfig

if TYPE_CHECKING:
    from fray.actor.group import ActorGroup
    from fray.actor.handle import ActorHandle
    from fray.actor.hosting import HostedActor
    from fray.cluster.storage import StorageCluster
    from fray.types import ActorConfig

T = TypeVar("T")


class Client(Protocol):
    """Submits jobs and creates actors; usable from any thread and inside a running event loop.

    Every method that talks to the storage may raise `StoreUnavailable` (try again) and `StoreRefused` (mend the
    rights), both `FrayError`.
    """

    @property
    def cluster(self) -> StorageCluster:
        """Where its jobs run: the same by their ids, results too."""
        ...

    def submit(self, request: JobRequest, adopt_existing: bool = True) -> JobHandle:
        """Submit a job; returns at once.

        A name is held by one unfinished job of a namespace. So a program that died and is started again in the same
        namespace (a job's next attempt always is) goes on with the jobs it had submitted.

        Args:
            adopt_existing: if a job of that name has not ended, return that one and submit nothing.

        Raises:
            JobAlreadyExists: without `adopt_existing`, a job of that name has not ended; the error holds its handle.
            InvalidInput: the request is wrong.
        """
        ...

    def create_actor(
        self,
        actor_class: type[T],
        *args: Any,
        name: str,
        resources: ResourceConfig | None = None,
        actor_config: ActorConfig | None = None,
        environment: EnvironmentConfig | None = None,
        **kwargs: Any,
    ) -> ActorHandle[T]:
        """Create an actor; returns at once, and the first call waits until it is up.

        A `LocalClient` returns when it is up, and raises what its `__init__` raises; not so within an actor.

        Args:
            actor_class: called with `args` and `kwargs` in a job of its own.
            name: by which others of the namespace find it.
            resources: what it reserves; by default no core, because actors wait for calls most of the time.
            actor_config: concurrency and restarts.
        """
        ...

    def create_actor_group(
        self,
        actor_class: type[T],
        *args: Any,
        name: str,
        count: int,
        resources: ResourceConfig | None = None,
        actor_config: ActorConfig | None = None,
        environment: EnvironmentConfig | None = None,
        **kwargs: Any,
    ) -> ActorGroup[T]:
        """Create `count` actors of a class, each a job of its own; returns as `create_actor` does."""
        ...

    def host_actor(
        self,
        actor_class: type[T],
        *args: Any,
        name: str,
        actor_config: ActorConfig | None = None,
        **kwargs: Any,
    ) -> HostedActor[T]:
        """Create an actor in this very process and serve it until `shutdown` is called on what is returned."""
        ...

    def shutdown(self, wait: bool = True) -> None:
        """Let go of what the client holds.

        Jobs in storage go on, and actors that this program owns end; a `LocalClient`'s jobs end with it.

        Args:
            wait: let the `LocalClient`'s jobs come to their end first.
        """
        ...
