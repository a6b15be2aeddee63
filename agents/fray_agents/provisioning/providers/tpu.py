"""The provider `tpu`: slices of Cloud TPU, each created by a queued resource.

A queued resource waits for capacity. After a while it fails, the list shows that, and the next zone is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain

import grpc
from google.api_core.exceptions import AlreadyExists, NotFound
from google.cloud import tpu_v2
from google.cloud.location import locations_pb2
from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcAsyncIOTransport

from fray_agents.provisioning import identity
from fray_agents.provisioning.provider import MachineRequest, ProviderError
from fray_agents.provisioning.providers.google_calls import (
    ATTEMPT_TIMEOUT,
    GoogleAccess,
    GoogleCalls,
    find_access,
    missing_location,
    missing_rights,
    quotas_of_zero,
)
from fray_agents.provisioning.providers.tpu_resources import (
    Queue,
    last_part,
    listed_machines,
    node_machine,
    queued_resource,
    quotas_for,
)
from fray_coordinator.protocol.scaling.view import ListedMachine, ListedState
from fray_layouts.records import ProvisioningSpec, TpuSettings

EMULATOR_VARIABLE = "TPU_EMULATOR_HOST"
"""Variable with the host and port to call instead of Google, like `STORAGE_EMULATOR_HOST` for storage."""

PERMISSIONS = ("tpu.nodes.create", "tpu.nodes.delete", "tpu.nodes.list")
"""Permissions that the scaler's account needs."""


async def open_tpu(cluster: str, pool: str, spec: ProvisioningSpec) -> TpuProvider:
    """The provider of a pool. Raises ProviderError: there are no credentials, or no project."""
    settings = spec.tpu or TpuSettings()
    return TpuProvider(await find_access(settings.project, EMULATOR_VARIABLE), cluster, pool, spec)


class TpuProvider:
    """Creates and removes slices, over one gRPC channel."""

    def __init__(self, access: GoogleAccess, cluster: str, pool: str, spec: ProvisioningSpec) -> None:
        self._calls = GoogleCalls(access)
        self._cluster = cluster
        self._pool = pool
        self._spec = spec
        self._transport = _transport(access)
        self._client = tpu_v2.TpuAsyncClient(transport=self._transport)

    async def list(self) -> Sequence[ListedMachine]:
        """All machines of the pool: first the requests in each of the pool's zones, then the nodes in all zones."""
        requests = await asyncio.gather(*(self._requests(zone) for zone in self._spec.zones))
        nodes = await self._nodes(self._location("-"))
        return [*listed_machines(chain.from_iterable(requests), nodes)]

    async def create(self, request: MachineRequest) -> str:
        parent, request_id = self._location(request.zone), self._id(request.names[0])
        call = tpu_v2.CreateQueuedResourceRequest(
            parent=parent,
            queued_resource_id=request_id,
            queued_resource=queued_resource(parent, request_id, self._cluster, request),
        )
        try:
            await self._calls.repeat_unless(
                AlreadyExists, lambda: self._client.create_queued_resource(call, retry=None, timeout=ATTEMPT_TIMEOUT)
            )
        except ProviderError as error:
            raise await self._with_known_zones(error) from error
        return f"{parent}/queuedResources/{request_id}"

    async def delete(self, name: str, zone: str, batch: str = "") -> None:
        """Delete only the node if others of its request exist; else the request, with all its nodes."""
        parent = self._location(zone)
        request_id = self._id(batch or name)
        found = await self._nodes(parent)
        nodes = {node_machine(node): node for node in found if last_part(node.queued_resource) == request_id}
        others = [machine for machine in nodes if machine.name != name and machine.state is not ListedState.ENDING]
        if not others:
            await self._delete_request(f"{parent}/queuedResources/{request_id}")
        for machine, node in nodes.items():
            if others and machine.name == name and machine.state is not ListedState.ENDING:
                await self._delete_node(node.name)

    async def check(self) -> Sequence[ProviderError]:
        unfit = await asyncio.gather(*(self._zone_problem(zone) for zone in self._spec.zones))
        access = self._calls.access
        return [
            *(error for error in unfit if error is not None),
            *await missing_rights(access, PERMISSIONS),
            *await quotas_of_zero(access, "tpu.googleapis.com", quotas_for(self._spec), self._spec.zones),
        ]

    async def close(self) -> None:
        await self._transport.grpc_channel.close()

    async def _zone_problem(self, zone: str) -> ProviderError | None:
        """Why no slice of the pool's type can be created in a zone; None if it may be possible."""
        call = tpu_v2.ListAcceleratorTypesRequest(parent=self._location(zone))

        async def attempt() -> Sequence[str]:
            pager = await self._client.list_accelerator_types(call, retry=None, timeout=ATTEMPT_TIMEOUT)
            return [last_part(kind.name) async for kind in pager]

        try:
            kinds = await self._calls.repeat(attempt)
        except ProviderError as error:
            return await self._with_known_zones(error)
        wanted = self._spec.machine_type
        if wanted in kinds:
            return None
        return ProviderError("invalid", f"there is no {wanted} in {zone}; name a zone that has it, or one of its types")

    async def _requests(self, zone: str) -> Sequence[tpu_v2.QueuedResource]:
        """The requests of the pool in a zone; [] if the zone does not exist."""
        call = tpu_v2.ListQueuedResourcesRequest(parent=self._location(zone))

        async def attempt() -> Sequence[tpu_v2.QueuedResource]:
            pager = await self._client.list_queued_resources(call, retry=None, timeout=ATTEMPT_TIMEOUT)
            return [request async for request in pager if self._is_mine(request.tpu.node_spec)]

        try:
            return await self._calls.repeat(attempt)
        except ProviderError as error:
            if missing_location(str(error)) and zone not in await self._known_zones():
                return []
            raise

    async def _nodes(self, parent: str) -> Sequence[tpu_v2.Node]:
        """The nodes of the pool. Raises ProviderError: one of the pool's zones did not answer."""
        call = tpu_v2.ListNodesRequest(parent=parent)

        async def attempt() -> Sequence[tpu_v2.Node]:
            found = []
            pager = await self._client.list_nodes(call, retry=None, timeout=ATTEMPT_TIMEOUT)
            async for page in pager.pages:
                found += [node for node in page.nodes if self._is_of_pool(node)]
                if silent := {last_part(place) for place in page.unreachable} & {*self._spec.zones}:
                    raise ProviderError("unavailable", f"Cloud TPU does not answer for {', '.join(sorted(silent))}")
            return found

        return await self._calls.repeat(attempt)

    def _is_mine(self, node_spec: Sequence[tpu_v2.QueuedResource.Tpu.NodeSpec]) -> bool:
        return bool(node_spec) and self._is_of_pool(node_spec[0].node)

    def _is_of_pool(self, node: tpu_v2.Node) -> bool:
        return identity.is_of_pool(node.labels, self._cluster, self._pool)

    async def _delete_request(self, path: str) -> None:
        find = tpu_v2.GetQueuedResourceRequest(name=path)
        found = await self._calls.repeat_unless(
            NotFound, lambda: self._client.get_queued_resource(find, retry=None, timeout=ATTEMPT_TIMEOUT)
        )
        if found is None or found.state.state is Queue.DELETING:
            return
        call = tpu_v2.DeleteQueuedResourceRequest(name=path, force=True)
        await self._calls.repeat_unless(
            NotFound, lambda: self._client.delete_queued_resource(call, retry=None, timeout=ATTEMPT_TIMEOUT)
        )

    async def _delete_node(self, path: str) -> None:
        call = tpu_v2.DeleteNodeRequest(name=path)
        await self._calls.repeat_unless(
            NotFound, lambda: self._client.delete_node(call, retry=None, timeout=ATTEMPT_TIMEOUT)
        )

    async def _with_known_zones(self, error: ProviderError) -> ProviderError:
        """The error itself; if its zone does not exist, an error that lists the zones that do."""
        if not (zone := missing_location(str(error))):
            return error
        known = sorted(await self._known_zones())
        return ProviderError("invalid", f"{error}; write one of these zones instead of {zone}: {', '.join(known)}")

    async def _known_zones(self) -> set[str]:
        call = locations_pb2.ListLocationsRequest(name=f"projects/{self._calls.access.project}")
        answer = await self._calls.repeat(
            lambda: self._client.list_locations(call, retry=None, timeout=ATTEMPT_TIMEOUT)
        )
        return {location.location_id for location in answer.locations}

    def _location(self, zone: str) -> str:
        return f"projects/{self._calls.access.project}/locations/{zone}"

    def _id(self, machine: str) -> str:
        return identity.provider_name(self._cluster, self._pool, machine)


def _transport(access: GoogleAccess) -> TpuGrpcAsyncIOTransport:
    if access.emulator:
        return TpuGrpcAsyncIOTransport(channel=grpc.aio.insecure_channel(access.emulator))
    return TpuGrpcAsyncIOTransport(credentials=access.credentials)
