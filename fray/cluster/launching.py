"""Launches jobs and groups on a cluster in storage, as children of the job that this code runs in, if there is one."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fray.call_forms import says_form
from fray.cluster.agent_hints import HintSender
from fray.cluster.arguments import LAUNCH, checked_id, checked_request, checked_requests
from fray.cluster.connected import ConnectedCluster
from fray.cluster.current_job import CurrentJob, current_job_on, current_user
from fray.cluster.placing import checked_config, checked_ttl, create_reservation, reservation_info
from fray.job_spec import to_spec
from fray.types import (
    Duration,
    EnvironmentConfig,
    JobGroupConfig,
    JobId,
    JobRequest,
    ReservationConfig,
    ReservationId,
    ReservationInfo,
)
from fray.workspace.choice import WorkspaceChoice, with_workspaces, workspace_choice
from fray_coordinator.core import Core
from fray_coordinator.jobs.submission import Submitted, submit
from fray_coordinator.placements import reservations
from fray_coordinator.placements.launching import GroupWish, ReservationRouter, launch
from fray_coordinator.protocol.transitions import Status
from fray_layouts.errors import InvalidInput
from fray_layouts.object_keys import ReservationKeys
from fray_layouts.spec import JobSpec
from fray_layouts.spec_parsing import check_name
from fray_runtime.current_task import CHILDREN_MARKER, PrivateMode, private_mode, task_environ
from fray_runtime.variables import read_variable

if TYPE_CHECKING:
    from fray.workspace.upload import StoredWorkspace

log = logging.getLogger("fray")


def as_children(specs: Sequence[JobSpec], mine: CurrentJob | None, namespace: str) -> list[JobSpec]:
    """Fill in the parent `mine`, the namespace and the current user of specs that do not name these.

    It leaves a marker in the job's directory, so that the job's agent knows that there are children to stop.
    """
    user, parent = current_user(), mine.job_id if mine else ""
    prepared = [
        replace(
            spec,
            namespace=spec.namespace or namespace,
            user=spec.user or user,
            parent=spec.parent or parent,
        )
        for spec in specs
    ]
    if mine is not None and any(spec.parent == mine.job_id for spec in prepared):
        Path(mine.task_dir, CHILDREN_MARKER).touch()
    return prepared


async def submit_from_command(
    core: Core,
    specs: Sequence[JobSpec],
    choices: Sequence[WorkspaceChoice | None],
    on_stored: Callable[[StoredWorkspace], None],
) -> list[Submitted]:
    """Submit specs for the CLI, as children of the job that runs the command, if there is one.

    Specs without a namespace get that job's namespace, else FRAY_NAMESPACE; without either, each gets its own.

    Args:
        choices: the workspace that each spec brings; they are ignored on a private cluster.
        on_stored: called with each workspace once it is in the storage.
    """
    mine = current_job_on(core.root)
    private = private_mode() if mine is not None else ""
    if private:
        from fray.cluster.private_spec import private_spec  # imported late: it needs an agent's code

        specs = [private_spec(spec, private) for spec in specs]
    elif any(choices):
        specs, stored = await with_workspaces(core, specs, choices, mine.job_id if mine else "")
        for workspace in stored:
            on_stored(workspace)
    namespace = mine.namespace if mine else read_variable("FRAY_NAMESPACE", task_environ()) or ""
    prepared = as_children(specs, mine, namespace)
    return await submit_prepared(core, prepared if private else await ReservationRouter().route(core, prepared), mine)


async def submit_prepared(
    core: Core, specs: Sequence[JobSpec], mine: CurrentJob | None, driver: str = ""
) -> list[Submitted]:
    """Submit specs made by `as_children`. Returns the jobs in the same order.

    Children of `mine` are submitted for the attempt that runs this code. driver: the job that stands for this program;
    "" if there is none yet.
    """
    own = [mine is not None and spec.parent == mine.job_id for spec in specs]
    done: dict[int, Submitted] = {}
    above = [driver] if driver else []
    for is_own, attempt, ancestors in (
        (True, mine.attempt if mine else None, mine.ancestors if mine else ()),
        (False, None, above),
    ):
        chosen = [number for number, kind in enumerate(own) if kind is is_own]
        submitted = await submit(core, [specs[number] for number in chosen], attempt, ancestors=ancestors)
        done.update(zip(chosen, submitted, strict=True))
    return [done[number] for number in range(len(specs))]


async def submit_group(
    core: Core, specs: Sequence[JobSpec], wish: GroupWish, mine: CurrentJob | None, driver: str = ""
) -> list[Submitted]:
    """Submit specs made by `as_children` as one group, whose jobs start together or not at all."""
    is_own = mine is not None and all(spec.parent == mine.job_id for spec in specs)
    if mine is not None and is_own:
        return await launch(core, specs, wish, mine.attempt, mine.ancestors)
    return await launch(core, specs, wish, ancestors=[driver] if driver else [])


def as_group(requests: Sequence[JobRequest], group: JobGroupConfig) -> list[JobRequest]:
    """Return the requests in the group's namespace. Raises InvalidInput if one of them cannot be in a group."""
    if not isinstance(group, JobGroupConfig):
        raise InvalidInput("group", group, "give a JobGroupConfig(name)")
    check_name("group.name", group.name)
    if not requests:
        raise InvalidInput("requests", [], "give at least one request: an empty group can never start")
    for number, request in enumerate(requests):
        if group.namespace and request.namespace not in (None, group.namespace):
            raise InvalidInput("namespace", request.namespace, f"the group's is {group.namespace}; say it once")
        if request.id is not None:
            remedy = "a job of a group is always a new one and is not looked up by its id; leave it out"
            raise InvalidInput(f"requests[{number}].id", request.id, remedy)
    return [dataclasses.replace(request, namespace=group.namespace or request.namespace) for request in requests]


class LaunchingCluster(ConnectedCluster):
    """The base class of `StorageCluster` with the methods that launch and reserve; the subclass has those that read.

    Attributes:
        environment: the environment of jobs, actors and workers whose own request names none. It does not pickle with
            the cluster: in jobs, children have their parent's.
    """

    def __init__(self, root: str, namespace: str | None = None) -> None:
        super().__init__(root, namespace)
        self.environment: EnvironmentConfig | None = None
        self._hints = HintSender(lambda: self.keyring)
        self._router = ReservationRouter()

    @says_form(LAUNCH)
    def launch(self, request: JobRequest) -> JobId:
        return self.launch_many([checked_request(request)])[0]

    def launch_many(self, requests: Sequence[JobRequest]) -> list[JobId]:
        mine = current_job_on(self.root)
        specs = self.specs(checked_requests(requests), mine)
        return self._launched(lambda core: self._submitted(core, specs, mine))

    def specs(self, requests: Sequence[JobRequest], mine: CurrentJob | None) -> list[JobSpec]:
        """Store the requests' workspaces, and return their specs as children of `mine`. Raises InvalidInput."""
        if self.environment is not None:
            requests = [
                dataclasses.replace(request, environment=self.environment) if request.environment is None else request
                for request in requests
            ]
        specs = as_children([_spec_for(request, self._private) for request in requests], mine, self.namespace)
        choices = [None if self._private else workspace_choice(request) for request in requests]
        if not any(choices):
            return specs
        complete, stored = self.run(lambda core: with_workspaces(core, specs, choices, mine.job_id if mine else ""))
        for workspace in stored:
            log.info("%s", workspace)
        return complete

    def launch_group(
        self, requests: Sequence[JobRequest], group: JobGroupConfig, reservation_id: str | None = None
    ) -> list[JobId]:
        wanted = as_group(checked_requests(requests), group)
        inside = "" if reservation_id is None else checked_id(reservation_id, "reservation_id")
        if self._private:
            into = ReservationKeys.pool(inside) if inside else None
            return self.launch_many([dataclasses.replace(request, pool=into or request.pool) for request in wanted])
        mine = current_job_on(self.root)
        specs = self.specs(wanted, mine)
        wish = GroupWish(group.name, group.same_region, group.same_zone, inside)
        return self._launched(lambda core: self._submitted_together(core, specs, wish, mine))

    def create_reservation(self, config: ReservationConfig) -> ReservationId:
        checked = checked_config(config)
        mine, private, namespace = current_job_on(self.root), self._private, self.namespace
        self._router.forget()
        return self.run(lambda core: self._reserve(core, checked, namespace, mine, private))

    def get_reservation(self, reservation_id: str) -> ReservationInfo:
        wanted = checked_id(reservation_id, "reservation_id")
        return self.run(lambda core: reservation_info(core, wanted))

    def renew_reservation(self, reservation_id: str, ttl_seconds: Duration | None = None) -> ReservationInfo:
        wanted = checked_id(reservation_id, "reservation_id")
        seconds = None if ttl_seconds is None else checked_ttl(ttl_seconds)
        self.run(lambda core: reservations.renew(core, wanted, seconds))
        return self.get_reservation(wanted)

    def release_reservation(self, reservation_id: str) -> None:
        wanted = checked_id(reservation_id, "reservation_id")
        self.run(lambda core: reservations.release(core, wanted, "released by a program"))
        self._router.forget()

    def _launched(self, work: Callable[[Core], Awaitable[list[Submitted]]]) -> list[JobId]:
        """Submit jobs by `work` and return their ids; with `log_to_driver` their output is shown from now on."""
        if self.log_to_driver:
            self._output.belong_here()
            self._leave_at_exit()
        return self.run(lambda core: self._follow_submitted(core, work))

    async def _reserve(
        self, core: Core, config: ReservationConfig, namespace: str, mine: CurrentJob | None, private: PrivateMode
    ) -> ReservationId:
        made = await create_reservation(core, config, namespace, mine, private, await self._own_job_now())
        self._hints.gathered(core)
        return made

    async def _submitted(self, core: Core, specs: list[JobSpec], mine: CurrentJob | None) -> list[Submitted]:
        route = _around_reservations if self._private else self._router.route
        routed = await route(core, specs)
        return await submit_prepared(core, routed, mine, await self._own_job_now())

    async def _submitted_together(
        self, core: Core, specs: list[JobSpec], wish: GroupWish, mine: CurrentJob | None
    ) -> list[Submitted]:
        return await submit_group(core, specs, wish, mine, await self._own_job_now())

    async def _follow_submitted(self, core: Core, work: Callable[[Core], Awaitable[list[Submitted]]]) -> list[JobId]:
        submitted = await work(core)
        jobs = [done.job for done in submitted]
        self._hints.submitted(core, {job.spec.pool for job in jobs if job.status == Status.PENDING})
        if any(job.status == Status.GATHERING or ReservationKeys.of_pool(job.spec.pool) for job in jobs):
            self._hints.gathered(core)
        if current_job_on(self.root) is None:
            self._launched_jobs.add(jobs)
        await self._output.follow(submitted)
        return [JobId(done.job.id, self.poll) for done in submitted]


def _spec_for(request: JobRequest, private: PrivateMode) -> JobSpec:
    """The spec of a request for a shared cluster, or for a private one."""
    if not private:
        return to_spec(request)
    from fray.cluster.private_spec import private_spec_of  # imported late: it needs an agent's code

    return private_spec_of(request, private)


async def _around_reservations(core: Core, specs: Sequence[JobSpec]) -> list[JobSpec]:
    """Move specs that name a reservation to the reservation's own pool, since a private cluster holds no hosts for it.

    Raises:
        ReservationNotFound: a spec names a reservation that does not exist.
        InvalidInput: the reservation belongs to another namespace, or has ended.
    """

    async def moved(spec: JobSpec) -> JobSpec:
        named = ReservationKeys.of_pool(spec.pool)
        return replace(spec, pool=(await reservations.usable(core, named, spec.namespace)).pool) if named else spec

    return [await moved(spec) for spec in specs]
