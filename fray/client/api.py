"""The interface of a client: submit jobs and create actors."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from fray.call_forms import says_form
from fray.cluster.api import Cluster
from fray.cluster.job_handle import JobHandle
from fray.errors import ActorNotFoundError, InvalidInput
from fray.types import ActorConfig, EnvironmentConfig, JobRequest, ResourceConfig

if TYPE_CHECKING:
    from fray.actor.create import HostedActor
    from fray.actor.group import ActorGroup
    from fray.actor.handle import ActorHandle

T = TypeVar("T")


class Client(Protocol):
    """Submits jobs and creates actors. Usable from any thread, and inside a running event loop.

    Every method that talks to the storage may raise `StoreUnavailable` (an outage: try again) or `StoreRefused`
    (missing permissions: grant them); both are `FrayError`.

        client = current_client()
        job = client.submit(JobRequest("train", Entrypoint.from_callable(train, args=(config,))))
        job.wait()
        counter = client.create_actor(Counter, 10, name="counter")
        counter.add(1)
    """

    @property
    def cluster(self) -> Cluster:
        """The cluster that the jobs run on. It has their results, the list of jobs, and logs that can be followed."""

    def submit(self, request: JobRequest, adopt_existing: bool = True) -> JobHandle:
        """Submit a job, or adopt the one that has its name, and return its handle at once.

        Within a namespace at most one unfinished job has a given name. So a program that died and is started again in
        the same namespace, as a job's next attempt always is, continues with the jobs that it had submitted.

        Args:
            request: the job. A request with an `id` is matched by that id, and its name is ignored.
            adopt_existing: True returns the unfinished job of that name, if there is one, and submits nothing.

        Raises:
            JobAlreadyExists: `adopt_existing` is False, and a job of that name has not ended; the error has its handle.
            InvalidInput: a value of the request is wrong, its callable cannot be pickled, or this release cannot do
                what it asks for. Nothing was submitted.
            ParentNotRunning: the job named as `parent` is not running.
        """

    @says_form('client.create_actor(Class, *args, name="name")')
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
        """Create an actor, an object in a job of its own, and return its handle at once; the first call waits for it.

        The actor ends with the job or the program that creates it, or with the block of `with client.create_actor(...)
        as actor`. If `actor_config` says `detached`, it outlives them; only one detached actor has a given name, and
        later programs find it with `get_actor`. A `LocalClient` returns when the actor is up and raises what its
        `__init__` raises, except when it is called within an actor.

        Args:
            actor_class: called with `args` and `kwargs` in the actor's job.
            name: the name under which programs and jobs of the namespace find it.
            resources: what it reserves; None reserves no core, because actors wait for calls most of the time.
            actor_config: concurrency, restarts, retries and checkpoints; None is `ActorConfig()`.
            environment: variables of its process.

        Raises:
            InvalidInput: an argument is wrong or cannot be pickled. Nothing was created.
            NameTaken: a detached actor was asked for, and another one of that name lives: `get_actor` finds it.
            ParentNotRunning: this job, or the one that stands for this program, was stopped.
        """
        from fray.actor.create import actor_request

        request = actor_request(actor_class, args, kwargs, name, actor_config, resources, environment)
        return self._create_actors(request, 1).handles[0]

    @says_form('client.create_actor_group(Class, *args, name="name", count=4)')
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
        """Create `count` actors of one class, each in a job of its own, and return their group at once.

        They are constructed with the same arguments; `current_actor().index` tells them apart. They end like an actor
        that `create_actor` makes. `get_actor` does not find detached actors of a group: keep the group, which pickles.

            with client.create_actor_group(Worker, name="worker", count=4) as group:
                futures = [worker.step.remote() for worker in group.wait_ready()]

        Args:
            count: how many, at least 1; actor `i` is the job "<name>-<i>".
            actor_class, name, resources, actor_config, environment: as for `create_actor`; they hold for each actor.

        Raises:
            InvalidInput, ParentNotRunning: as `create_actor`.
        """
        from fray.actor.create import actor_request

        if not isinstance(count, int) or count < 1:
            raise InvalidInput("count", count, "give at least 1")
        request = actor_request(actor_class, args, kwargs, name, actor_config, resources, environment)
        return self._create_actors(request, count)

    def _create_actors(self, request: JobRequest, count: int) -> ActorGroup[Any]: ...

    def host_actor(
        self, actor_class: type[T], *args: Any, name: str, actor_config: ActorConfig | None = None, **kwargs: Any
    ) -> HostedActor[T]:
        """Create an actor in this process and serve it until the returned object's `shutdown` is called.

        The actor's `__init__` runs here before this method returns; its calls run in threads of this process.

        Args:
            actor_class: called with `args` and `kwargs`.
            name: the name under which programs and jobs of the namespace find it.
            actor_config: concurrency and retries; None is `ActorConfig()`.

        Raises:
            InvalidInput: an argument is wrong, or checkpoints were asked for, which need an actor with its own job.
            Exception: what the actor's `__init__` raises.
        """

    def get_actor(self, name: str) -> ActorHandle[Any]:
        """Find an actor that owns its name, a detached or a named one, and return a handle of it.

        Looks in the cluster's namespace, then in its `lasting_namespace`.

        Args:
            name: the name that `create_actor` got.

        Raises:
            ActorNotFoundError: no actor owns the name now.
            InvalidInput: the text cannot be an actor's name.
        """
        found = self._find_actor(name)
        if found is None:
            remedy = "create it with ActorConfig(detached=True), or pass the handle of one that ends with its creator"
            raise ActorNotFoundError(
                f"no detached actor has the name {name!r}; {remedy}; `fray actors` lists those in storage"
            )
        return found

    def _find_actor(self, name: str) -> ActorHandle[Any] | None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.shutdown(wait=kind is None)

    def shutdown(self, wait: bool = True) -> None:
        """Close the client's connections. Jobs go on; actors that this program owns end.

        The jobs of a `LocalClient` end with it.

        Args:
            wait: True waits until the jobs of a `LocalClient` have ended. It does not wait for actors.
        """

    def __eq__(self, other: object) -> bool:
        return self._identity() == other._identity() if isinstance(other, type(self)) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._identity())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.cluster,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.cluster!r})"

    def _identity(self) -> tuple[str, str]:
        return self.cluster.root, self.cluster.namespace
