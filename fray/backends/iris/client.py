"""`FrayIrisClient`: submits jobs and creates actors on the controller of an Iris cluster."""

from __future__ import annotations

import os
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from fray.actor.create import requested_actor, retry_policy
from fray.backends.iris.actor_host import PORT, serve_actor
from fray.backends.iris.actors import IrisActorAddress, IrisActorGroup, IrisActorHandle
from fray.backends.iris.cluster import IrisCluster
from fray.backends.iris.connection import root_of
from fray.call_forms import says_form
from fray.client.api import Client
from fray.cluster.api import Cluster
from fray.cluster.arguments import SUBMIT, checked_request
from fray.cluster.job_handle import JobAlreadyExists, JobHandle
from fray.errors import InvalidInput
from fray.types import ActorConfig, Entrypoint, JobId, JobRequest

if TYPE_CHECKING:
    from fray.actor.create import HostedActor

T = TypeVar("T")


class FrayIrisClient(Client):
    """The client of an Iris cluster. It pickles as its controller; in a task of Iris it uses the task's controller.

        with set_current_client(FrayIrisClient("http://localhost:10000", workspace=".")) as client:
            main()

    `docs/backends.md` says what differs from a cluster in storage. Iris's own server pickles and unpickles arguments
    and replies of actors, and accepts calls from anyone who can reach its port. So only use it on a closed network.

    Args:
        controller_address: "http://host:port", "host:port", "iris://host:port", or "iris:auto" within Iris; or an
            `IrisCluster`.
        workspace: the folder with a pyproject.toml that is sent along with jobs; it has to depend on this package.

    Raises:
        InvalidInput: Iris is not installed, or the address is wrong.
    """

    def __init__(self, controller_address: str | Cluster, workspace: str | os.PathLike[str] | None = None) -> None:
        if isinstance(controller_address, str):
            controller_address = IrisCluster(root_of(controller_address), workspace)
        if not isinstance(controller_address, IrisCluster):
            raise InvalidInput("controller_address", controller_address, "give the address of an Iris controller")
        self._cluster = controller_address
        self._owned: list[IrisActorGroup[Any]] = []

    @property
    def cluster(self) -> IrisCluster:
        return self._cluster

    @says_form(SUBMIT)
    def submit(self, request: JobRequest, adopt_existing: bool = True) -> JobHandle:
        from iris.client.client import JobAlreadyExists as NameInUse

        name = checked_request(request).name
        try:
            return JobHandle(self._cluster, self._cluster.submit(request, name, adopt_existing))
        except NameInUse:
            raise JobAlreadyExists(name, self._handle_named(name)) from None

    def host_actor(
        self, actor_class: type[T], *args: Any, name: str, actor_config: ActorConfig | None = None, **kwargs: Any
    ) -> HostedActor[T]:
        remedy = "Iris finds actors only in its own tasks; use create_actor, which starts one there"
        raise InvalidInput("actor_class", actor_class, remedy)

    def _find_actor(self, name: str) -> IrisActorHandle[Any] | None:
        handle = self._handle_named(f"{name}-0")
        if handle is None or handle.status().finished():
            return None
        return IrisActorHandle(self._cluster, IrisActorAddress(self._cluster.root, handle.job_id, name))

    def shutdown(self, wait: bool = True) -> None:
        """End the actors that this client owns. Jobs and detached actors go on."""
        for group in self._owned:
            group.shutdown()
        self._owned.clear()

    def _create_actors(self, request: JobRequest, count: int) -> IrisActorGroup[Any]:
        cls, args, kwargs, name, config = requested_actor(request)
        if config.checkpoint is not None:
            remedy = "Iris does not keep checkpoints of actors; leave it out"
            raise InvalidInput("actor_config.checkpoint", config.checkpoint, remedy)
        suffix = "" if request.detached else f"-{secrets.token_hex(4)}"
        policy = retry_policy(cls, config)
        addresses = []
        for index in range(count):
            address = IrisActorAddress(self._cluster.root, "", name, policy, config.max_concurrency, index)
            entrypoint = Entrypoint.from_callable(serve_actor, (cls, args, kwargs, address))
            job = replace(request, entrypoint=entrypoint, ports=[PORT], priority=0)
            addresses.append(replace(address, job=str(self._launch(job, f"{name}-{index}{suffix}"))))
        group = IrisActorGroup[Any](self._cluster, name, addresses)
        if not request.detached:
            self._owned.append(group)
        return group

    def _launch(self, request: JobRequest, name: str) -> JobId:
        from iris.client.client import JobAlreadyExists as NameInUse

        from fray_coordinator.errors import NameTaken

        try:
            return self._cluster.submit(request, name, adopt=False)
        except NameInUse as error:
            remedy = "find it with get_actor, or choose another name"
            raise NameTaken(f"there is an actor named {request.name} already; {remedy}") from error

    def _handle_named(self, name: str) -> JobHandle | None:
        """The handle of the job of this name among those that this program, or this task, has submitted."""
        named = [job for job in self._cluster.list_jobs() if job.job_id == f"{self._parent()}/{name}"]
        return JobHandle(self._cluster, named[-1].job_id) if named else None

    def _parent(self) -> str:
        from iris.client.client import get_iris_ctx
        from iris.cluster.client.job_info import resolve_job_user

        context = get_iris_ctx()
        return str(context.job_id) if context is not None else f"/{resolve_job_user(None)}"
