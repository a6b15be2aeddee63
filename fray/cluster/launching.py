"""The part of a cluster in storage that launches jobs and groups, and makes reservations."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from fray.cluster.arguments import checked_id, checked_request, checked_requests
from fray.cluster.connected import ConnectedCluster
from fray.cluster.current_job import CurrentJob, current_job_on
from fray.cluster.hints import HintSender
from fray.cluster.reservations import checked_config, checked_ttl, create_reservation, reservation_info
from fray.cluster.submission import as_children, as_group, submit_group, submit_prepared
from fray.job_spec import local_spec, to_spec
from fray.types import JobGroupConfig, JobId, JobRequest, ReservationConfig, ReservationId, ReservationInfo
from fray.workspace.choice import with_workspaces, workspace_choice
from fray_coordinator.core import Core
from fray_coordinator.jobs.submission import Submitted
from fray_coordinator.placements import reservations
from fray_coordinator.placements.launching import GroupWish
from fray_coordinator.placements.routing import ReservationRouter
from fray_coordinator.protocol.transitions import Status
from fray_layouts.object_keys import ReservationKeys
from fray_layouts.spec import JobSpec

log = logging.getLogger("fray")


class LaunchingCluster(ConnectedCluster):
    """The base class of `StorageCluster` with the methods that launch and reserve; the subclass has those that read."""

    def __init__(self, root: str, namespace: str | None = None) -> None:
        super().__init__(root, namespace)
        self._hints = HintSender(lambda: self.keyring)
        self._router = ReservationRouter()

    def launch(self, request: JobRequest) -> JobId:
        return self.launch_many([checked_request(request)])[0]

    def launch_many(self, requests: Sequence[JobRequest]) -> list[JobId]:
        mine = current_job_on(self.root)
        specs = self.specs(checked_requests(requests), mine)
        return self._launched(lambda core: self._submitted(core, specs, mine))

    def specs(self, requests: Sequence[JobRequest], mine: CurrentJob | None) -> list[JobSpec]:
        """Store the requests' workspaces, and return their specs as children of `mine`. Raises InvalidInput."""
        make_spec = local_spec if self._is_private else to_spec
        specs = as_children([make_spec(request) for request in requests], mine, self.namespace)
        choices = [None if self._is_private else workspace_choice(request) for request in requests]
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
        if self._is_private:
            into = ReservationKeys.pool(inside) if inside else None
            return self.launch_many([dataclasses.replace(request, pool=into or request.pool) for request in wanted])
        mine = current_job_on(self.root)
        specs = self.specs(wanted, mine)
        wish = GroupWish(group.name, group.same_region, group.same_zone, inside)
        return self._launched(lambda core: self._submitted_together(core, specs, wish, mine))

    def create_reservation(self, config: ReservationConfig) -> ReservationId:
        checked = checked_config(config)
        mine, private, namespace = current_job_on(self.root), self._is_private, self.namespace
        self._router.forget()
        return self.run(lambda core: self._reserve(core, checked, namespace, mine, private))

    def get_reservation(self, reservation_id: str) -> ReservationInfo:
        wanted = checked_id(reservation_id, "reservation_id")
        return self.run(lambda core: reservation_info(core, wanted))

    def renew_reservation(self, reservation_id: str, ttl_seconds: float | None = None) -> ReservationInfo:
        wanted = checked_id(reservation_id, "reservation_id")
        checked_ttl(ttl_seconds)
        self.run(lambda core: reservations.renew(core, wanted, ttl_seconds))
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
        self, core: Core, config: ReservationConfig, namespace: str, mine: CurrentJob | None, private: bool
    ) -> ReservationId:
        made = await create_reservation(core, config, namespace, mine, private, await self._own_job_now())
        self._hints.gathered(core)
        return made

    async def _submitted(self, core: Core, specs: list[JobSpec], mine: CurrentJob | None) -> list[Submitted]:
        route = _around_reservations if self._is_private else self._router.route
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
        await self._output.follow(submitted)
        return [JobId(done.job.id, self.poll) for done in submitted]


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
