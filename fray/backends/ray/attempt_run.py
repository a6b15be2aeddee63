"""One attempt of a job on Ray: reserves room for all replicas at once, runs them, and gives the room back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from fray.backends.ray.connection import import_ray
from fray.backends.ray.demands import RaySlice, actor_options, bundle, slice_bundles, whole_slices
from fray.backends.ray.replica import ReplicaHost
from fray_layouts.records import AttemptExit, JobRecord, JobResult, PlacementMember, ReplicaExit, SliceMember
from fray_layouts.spec import EnvironmentSpec, is_gang
from fray_layouts.states import ExitKind

_POLL_INTERVAL = 1.0
"""Seconds between two polls of a placement group, or of the free slices; each is one request to Ray."""

_SLICE_POLLS = 30
"""Polls until other slices are tried, in case others have taken the chosen ones meanwhile: half a minute."""

_KILL_MARGIN = 15.0
"""Seconds after a task's grace period in which its replica has to report the end. After that the replica is killed."""

_WORKER_LABEL = "ray.io/tpu-worker-id"
"""Ray's label of a node with the number of the worker in its slice."""


class EnvironmentUnavailable(Exception):
    """Ray cannot set up the packages or the code of the job."""


def runtime_environment(environment: EnvironmentSpec) -> dict[str, Any]:
    """Ray's `runtime_env` for a job: its packages and its code. The job's task sets the variables."""
    made: dict[str, Any] = {}
    if environment.pip_packages:
        made["pip"] = list(environment.pip_packages)
    if environment.workspace is not None:
        made["working_dir"] = environment.workspace.blob
    return made


class JobAttempt:
    """An attempt of a job in the controller's process.

    Args:
        call: base64 of the callable's pickle; "" for a command.
        controller: the handle of the actor that gets the output.
    """

    def __init__(self, job: JobRecord, call: str, controller: Any) -> None:
        self._job = job
        self._call = call
        self._controller = controller
        self._environment = runtime_environment(job.spec.environment)
        self._group: Any = None
        self._slices: list[RaySlice] = []
        self._replicas: list[Any] = []
        self._stop: tuple[float, str] | None = None
        self.results: list[tuple[JobResult | None, Any]] = []
        """Each replica's result, with a Ray reference to its bytes; filled once all have ended."""

    async def place(self) -> list[PlacementMember]:
        """Wait for room for all replicas, start their actors, and return their places.

        Raises:
            EnvironmentUnavailable: the packages or the code cannot be set up.
            ActorDiedError: a node was lost meanwhile.
        """
        ray = import_ray()
        spec = self._job.spec
        if is_gang(spec):
            await (self._reserve_slices() if spec.slices else self._reserve())
        host = ray.remote(ReplicaHost)
        options: dict[str, Any] = actor_options(spec.resources) | {"max_restarts": 0}
        if self._environment:
            options["runtime_env"] = self._environment
        for number in range(spec.replicas):
            if self._group is not None:
                strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                    self._group, placement_group_bundle_index=number
                )
                options["scheduling_strategy"] = strategy
            self._replicas.append(host.options(**options).remote(self._controller))
        asked = [replica.place.remote(self._job, number) for number, replica in enumerate(self._replicas)]
        try:
            members = list(await asyncio.gather(*asked))
        except ray.exceptions.RuntimeEnvSetupError as error:
            raise EnvironmentUnavailable(error_text(error)) from error
        return self._in_slices(members)

    async def run(self, started: JobRecord) -> dict[int, ReplicaExit]:
        """Run all replicas until they have ended. When one does not succeed, the others are stopped."""
        runs, bytes_of = [], []
        for number, replica in enumerate(self._replicas):
            method = replica.run.options(num_returns=2)
            left, data = method.remote(started, number, self._call, self._environment)
            bytes_of.append(data)
            runs.append(asyncio.ensure_future(self._end_of(left, number, started)))
        if self._stop is not None:
            self.stop(*self._stop)
        for ending in asyncio.as_completed(runs):
            if (await ending).exit.kind != ExitKind.SUCCESS and self._stop is None:
                self.stop(started.spec.grace, ExitKind.STOPPED)
        exits = {number: run.result() for number, run in enumerate(runs)}
        self.results = [(exits[number].result, data) for number, data in enumerate(bytes_of)]
        return exits

    def stop(self, grace: float, why: str) -> None:
        """Ask all replicas to end."""
        self._stop = grace, why
        for replica in self._replicas:
            replica.stop.remote(grace, why)
        asyncio.get_running_loop().call_later(grace + _KILL_MARGIN, self.close)

    def close(self) -> None:
        """Give back the attempt's Ray actors and its placement group."""
        ray = import_ray()
        for replica in self._replicas:
            ray.kill(replica)
        self._replicas = []
        if self._group is not None:
            ray.util.remove_placement_group(self._group)
            self._group = None

    async def _end_of(self, left: Any, number: int, job: JobRecord) -> ReplicaExit:
        try:
            found: ReplicaExit = await left
        except import_ray().exceptions.RayError as error:
            place = _places(job)[number]
            message = f"its process on {place.host} was lost: {error_text(error)}"
            end = AttemptExit(kind=ExitKind.LOST, message=message)
            return ReplicaExit(agent=place.agent, host=place.host, exit=end, ended_at=time.time())
        return found

    async def _reserve(self) -> None:
        """Wait for room for all replicas at once."""
        spec = self._job.spec
        strategy = "STRICT_SPREAD" if spec.spread else "PACK"
        self._group = import_ray().util.placement_group(
            [bundle(spec.resources)] * spec.replicas, strategy, name=self._job.id
        )
        while not await asyncio.to_thread(self._group.wait, _POLL_INTERVAL):
            pass

    async def _reserve_slices(self) -> None:
        """Wait for as many whole slices as the job asks for. Each of their nodes gets one replica."""
        spec, ray = self._job.spec, import_ray()
        assert spec.resources.device is not None, "slices are of a device"
        tpu_type = spec.resources.device.variant
        while True:
            free = await asyncio.to_thread(free_slices, tpu_type)
            if len(free) < spec.slices:
                await asyncio.sleep(_POLL_INTERVAL)
                continue
            self._slices = free[: spec.slices]
            bundles = slice_bundles(self._slices, tpu_type, bundle(spec.resources))
            self._group = ray.util.placement_group(bundles, "STRICT_SPREAD", name=self._job.id)
            for _ in range(_SLICE_POLLS):
                if await asyncio.to_thread(self._group.wait, _POLL_INTERVAL):
                    return
            ray.util.remove_placement_group(self._group)

    def _in_slices(self, members: Sequence[PlacementMember]) -> list[PlacementMember]:
        """The members, each with its place in its slice if the job has slices."""
        if not self._slices:
            return list(members)
        device = self._job.spec.resources.device
        assert device is not None, "slices are of a device"
        hosts = len(self._slices[0].nodes)
        for number, member in enumerate(members):
            taken = self._slices[number // hosts]
            member.slice = SliceMember(id=taken.name, type=device.variant, index=number % hosts, hosts=hosts)
        return list(members)


def free_slices(tpu_type: str) -> list[RaySlice]:
    """The whole slices of a type that are entirely free."""
    ray = import_ray()
    labels = {node["NodeID"]: node.get("Labels") or {} for node in ray.nodes()}
    workers = {node: int(have[_WORKER_LABEL]) for node, have in labels.items() if _WORKER_LABEL in have}
    return whole_slices(ray._private.state.available_resources_per_node(), tpu_type, workers)


def _places(job: JobRecord) -> Mapping[int, PlacementMember]:
    if job.placement is not None:
        return {replica: member for member in job.placement.members for replica in member.bundles}
    assert job.lease is not None, "a job that runs has a place"
    return {0: PlacementMember(agent=job.lease.agent, host=job.lease.host, bundles=[0])}


def error_text(error: BaseException) -> str:
    """The text of one of Ray's errors in one line of at most 500 characters; of pip's output only the errors."""
    text = str(error)
    of_pip = [line.strip() for line in text.splitlines() if line.strip().startswith("ERROR: ")]
    return " ".join(" ".join(of_pip or [text]).split())[:500]
