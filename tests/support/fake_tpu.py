"""A fake of Cloud TPU: queued resources and nodes, capacity and quotas, preemption, and hosts that are processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from google.cloud import tpu_v2
from google.cloud.location import locations_pb2
from google.longrunning import operations_pb2
from google.rpc import code_pb2

from tests.support.fake_google import FakeRefusalError, GoogleFaults, Handler, serve_google

Queue: Any = tpu_v2.QueuedResourceState.State
Node: Any = tpu_v2.Node.State

Stop = Callable[[], None]
"""A function that ends the hosts of a node at once."""


@dataclass
class FakeTpu:
    """The API of one project, with its nodes.

    Attributes:
        zones: the zones that exist.
        types: the types of slices in each zone.
        capacity: by zone, nodes that may still be made; None: any number.
        quota: nodes that the project may have in a zone.
        slow: requests wait until `grant` is called.
        boot: starts the hosts of a node that is ready.
    """

    zones: tuple[str, ...] = ("us-east5-a", "europe-west4-b")
    types: tuple[str, ...] = ("v5litepod-4", "v5litepod-16")
    capacity: dict[str, int] = field(default_factory=dict)
    quota: int = 1000
    slow: bool = False
    boot: Callable[[tpu_v2.Node], Stop] = lambda node: lambda: None
    requests: dict[str, tpu_v2.QueuedResource] = field(default_factory=dict)
    nodes: dict[str, tpu_v2.Node] = field(default_factory=dict)
    running: dict[str, Stop] = field(default_factory=dict)
    faults: GoogleFaults = field(default_factory=GoogleFaults)
    unreachable: tuple[str, ...] = ()

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Serve the API; yield host and port for `TPU_EMULATOR_HOST`."""
        methods: dict[str, tuple[object, Handler]] = {
            "ListQueuedResources": (tpu_v2.ListQueuedResourcesRequest, self._list_requests),
            "GetQueuedResource": (tpu_v2.GetQueuedResourceRequest, self._get_request),
            "CreateQueuedResource": (tpu_v2.CreateQueuedResourceRequest, self._create),
            "DeleteQueuedResource": (tpu_v2.DeleteQueuedResourceRequest, self._delete_request),
            "ListNodes": (tpu_v2.ListNodesRequest, self._list_nodes),
            "ListAcceleratorTypes": (tpu_v2.ListAcceleratorTypesRequest, self._list_types),
            "DeleteNode": (tpu_v2.DeleteNodeRequest, self._delete_node),
        }
        places: dict[str, tuple[object, Handler]] = {
            "ListLocations": (locations_pb2.ListLocationsRequest, self._list_locations)
        }
        services = {"google.cloud.tpu.v2.Tpu": methods, "google.cloud.location.Locations": places}
        try:
            with serve_google(services, self.faults) as address:
                yield address
        finally:
            for stop in self.running.values():
                stop()

    def grant(self) -> None:
        """Give waiting requests their nodes, as far as there is capacity."""
        for request in self.requests.values():
            if request.state.state is Queue.WAITING_FOR_RESOURCES and self._has_room(request):
                self._provision(request)

    def expire(self, text: str = "", code: int = code_pb2.DEADLINE_EXCEEDED) -> None:
        """Let a waiting request expire, or fail with the given error."""
        for request in self.requests.values():
            if request.state.state is Queue.WAITING_FOR_RESOURCES:
                request.state = tpu_v2.QueuedResourceState(
                    state=Queue.FAILED, failed_data={"error": {"code": code, "message": text}}
                )

    def preempt(self, node_id: str) -> None:
        """Take a spot node away: end its hosts, and suspend its request if it has no other node."""
        path = next(path for path in self.nodes if path.endswith(f"/{node_id}"))
        self.running.pop(path, lambda: None)()
        self.nodes[path].state = Node.PREEMPTED
        request = self.requests[self.nodes[path].queued_resource]
        if len(request.tpu.node_spec) == 1 and not request.tpu.node_spec[0].multislice_params.node_count:
            request.state.state = Queue.SUSPENDED

    def _list_requests(self, call: tpu_v2.ListQueuedResourcesRequest) -> tpu_v2.ListQueuedResourcesResponse:
        self._check_zone(call.parent)
        found = [request for name, request in self.requests.items() if name.startswith(f"{call.parent}/")]
        return tpu_v2.ListQueuedResourcesResponse(queued_resources=found)

    def _get_request(self, call: tpu_v2.GetQueuedResourceRequest) -> tpu_v2.QueuedResource:
        return self._found(call.name)

    def _create(self, call: tpu_v2.CreateQueuedResourceRequest) -> operations_pb2.Operation:
        self._check_zone(call.parent)
        name = f"{call.parent}/queuedResources/{call.queued_resource_id}"
        if name in self.requests:
            raise FakeRefusalError(code_pb2.ALREADY_EXISTS, f"Resource '{name}' already exists")
        made = tpu_v2.QueuedResource(call.queued_resource)
        if len(self.nodes) + _count(made) > self.quota:
            raise FakeRefusalError(
                code_pb2.RESOURCE_EXHAUSTED,
                "Quota limit 'TPUV5sPreemptibleLitepodPerProjectPerZoneForTPUAPI' has been exceeded. "
                f"Limit: {self.quota} in zone {_zone(name)}.",
            )
        made.name = name
        made.state.state = Queue.WAITING_FOR_RESOURCES
        self.requests[name] = made
        if not self.slow and self._has_room(made):
            self._provision(made)
        return operations_pb2.Operation(name=f"{call.parent}/operations/create-{call.queued_resource_id}")

    def _provision(self, request: tpu_v2.QueuedResource) -> None:
        zone = _zone(request.name)
        if zone in self.capacity:
            self.capacity[zone] -= _count(request)
        for node_id in _node_ids(request):
            node = tpu_v2.Node(request.tpu.node_spec[0].node)
            node.name = f"{request.name.partition('/queuedResources/')[0]}/nodes/{node_id}"
            node.queued_resource = request.name
            node.multislice_node = _count(request) > 1
            node.state = Node.READY
            self.nodes[node.name] = node
            self.running[node.name] = self.boot(node)
        request.state.state = Queue.ACTIVE

    def _has_room(self, request: tpu_v2.QueuedResource) -> bool:
        return self.capacity.get(_zone(request.name), 1000) >= _count(request)

    def _delete_request(self, call: tpu_v2.DeleteQueuedResourceRequest) -> operations_pb2.Operation:
        request = self._found(call.name)
        nodes = [path for path, node in self.nodes.items() if node.queued_resource == request.name]
        if nodes and not call.force:
            raise FakeRefusalError(code_pb2.FAILED_PRECONDITION, "the queued resource has nodes")
        if self.slow:
            request.state.state = Queue.DELETING
            for path in nodes:
                self.nodes[path].state = Node.DELETING
        else:
            del self.requests[call.name]
            for path in nodes:
                self._remove(path)
        return operations_pb2.Operation(name="operations/delete")

    def _list_nodes(self, call: tpu_v2.ListNodesRequest) -> tpu_v2.ListNodesResponse:
        if not call.parent.endswith("/-"):
            self._check_zone(call.parent)
        prefix = call.parent.removesuffix("-")
        found = [node for name, node in self.nodes.items() if name.startswith(prefix)]
        return tpu_v2.ListNodesResponse(nodes=found, unreachable=self.unreachable)

    def _delete_node(self, call: tpu_v2.DeleteNodeRequest) -> operations_pb2.Operation:
        if call.name not in self.nodes:
            raise FakeRefusalError(code_pb2.NOT_FOUND, f"Resource '{call.name}' was not found")
        self._remove(call.name)
        return operations_pb2.Operation(name="operations/delete")

    def _remove(self, path: str) -> None:
        self.running.pop(path, lambda: None)()
        del self.nodes[path]

    def _list_types(self, call: tpu_v2.ListAcceleratorTypesRequest) -> tpu_v2.ListAcceleratorTypesResponse:
        self._check_zone(call.parent)
        found = [
            tpu_v2.AcceleratorType(name=f"{call.parent}/acceleratorTypes/{each}", type_=each) for each in self.types
        ]
        return tpu_v2.ListAcceleratorTypesResponse(accelerator_types=found)

    def _list_locations(self, call: locations_pb2.ListLocationsRequest) -> locations_pb2.ListLocationsResponse:
        found = [locations_pb2.Location(name=f"{call.name}/locations/{zone}", location_id=zone) for zone in self.zones]
        return locations_pb2.ListLocationsResponse(locations=found)

    def _found(self, name: str) -> tpu_v2.QueuedResource:
        if name not in self.requests:
            raise FakeRefusalError(code_pb2.NOT_FOUND, f"Resource '{name}' was not found")
        return self.requests[name]

    def _check_zone(self, parent: str) -> None:
        """Refuse a zone as Google does: unknown zones and zones that are closed to the project get the same error."""
        zone = parent.rpartition("/")[2]
        if zone not in self.zones:
            raise FakeRefusalError(
                code_pb2.PERMISSION_DENIED, f"Location {zone} is not found or access is unauthorized."
            )


def _zone(name: str) -> str:
    return name.split("/")[3]


def _count(request: tpu_v2.QueuedResource) -> int:
    return request.tpu.node_spec[0].multislice_params.node_count or 1


def _node_ids(request: tpu_v2.QueuedResource) -> list[str]:
    spec = request.tpu.node_spec[0]
    prefix = spec.multislice_params.node_id_prefix
    return [f"{prefix}-{number}" for number in range(_count(request))] if prefix else [spec.node_id]
