"""Queued resources and nodes of Cloud TPU that become a pool's machines, as they are requested and listed.

A node is a slice, and so a machine. All are created by queued resources: one with a single node, or with the nodes of a
gang, which are numbered (`<id>-0`, `<id>-1`) and share one set of labels and metadata. So the metadata names all
machines of the request, in that order, and a node's number says which of them it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from google.cloud import tpu_v2
from google.protobuf import duration_pb2
from google.rpc import code_pb2

from fray_agents.deploy import startup_script
from fray_agents.provisioning.identity import BATCH_LABEL, machine_labels
from fray_agents.provisioning.provider import MachineRequest, ProviderError
from fray_agents.provisioning.providers.google_calls import SCOPE, kind_of
from fray_coordinator.protocol.scaling.view import ListedMachine, ListedState
from fray_layouts.errors import InvalidInput
from fray_layouts.pool_checks import check_tpu_software
from fray_layouts.records import ProvisioningSpec, TpuSettings
from fray_layouts.topology import tpu_family

PATIENCE = 600
"""Seconds that a request may wait for capacity in one zone; then it fails, and the next zone is asked."""

_RUNTIMES = {
    "v4": "tpu-ubuntu2204-base",
    "v5e": "v2-alpha-tpuv5-lite",
    "v5p": "v2-alpha-tpuv5",
    "v6e": "v2-alpha-tpuv6e",
}
"""Runtimes for PyTorch and JAX by family, from https://cloud.google.com/tpu/docs/runtimes as of November 2026."""


_QUOTAS = {"v4": "TPUV4s{}Pod", "v5e": "TPUV5s{}Litepod", "v5p": "TPUV5P{}", "v6e": "TPUV6E{}"}
"""Prefixes of the quotas' ids by family, as Google's refusals name them."""


def quotas_for(spec: ProvisioningSpec) -> list[str]:
    """The ids of the quotas against which machines of a pool count."""
    begin = _QUOTAS[tpu_family(spec.machine_type)].format("Preemptible" if spec.spot else "")
    return [f"{begin}PerProjectPer{place}ForTPUAPI" for place in ("Zone", "Region")]


def queued_resource(parent: str, request_id: str, cluster: str, request: MachineRequest) -> tpu_v2.QueuedResource:
    """The queued resource of a request: one node, or as many as the request has machines, all or none.

    Args:
        parent: the zone.
        request_id: id of the queued resource, from which the nodes get their names.
    """
    spec = tpu_v2.QueuedResource.Tpu.NodeSpec(parent=parent, node=_node(cluster, request))
    if len(request.names) == 1:
        spec.node_id = request_id
    else:
        spec.multislice_params = tpu_v2.QueuedResource.Tpu.NodeSpec.MultisliceParams(
            node_count=len(request.names), node_id_prefix=request_id
        )
    asked = tpu_v2.QueuedResource(
        tpu=tpu_v2.QueuedResource.Tpu(node_spec=[spec]),
        queueing_policy=tpu_v2.QueuedResource.QueueingPolicy(
            valid_until_duration=duration_pb2.Duration(seconds=PATIENCE)
        ),
    )
    if request.spec.spot:
        asked.spot = tpu_v2.QueuedResource.Spot()
    return asked


def _node(cluster: str, request: MachineRequest) -> tpu_v2.Node:
    settings = request.spec.tpu or TpuSettings()
    return tpu_v2.Node(
        accelerator_type=request.spec.machine_type,
        runtime_version=settings.runtime_version or _RUNTIMES[tpu_family(request.spec.machine_type)],
        # Without an external address hosts reach neither packages nor, without further set-up, the bucket.
        network_config=tpu_v2.NetworkConfig(
            network=settings.network, subnetwork=settings.subnetwork, enable_external_ips=True
        ),
        service_account=tpu_v2.ServiceAccount(email=settings.service_account, scope=[SCOPE]),
        scheduling_config=tpu_v2.SchedulingConfig(spot=request.spec.spot),
        labels=machine_labels(cluster, request.pool, request.names[0], request.names[0]),
        metadata=_metadata(settings, request),
    )


def _metadata(settings: TpuSettings, request: MachineRequest) -> dict[str, str]:
    """The metadata that the hosts read from their metadata server; see `fray_agents.host.gce_metadata`.

    Raises ProviderError: the settings do not say how the hosts get Fray.
    """
    try:
        check_tpu_software(settings)
    except InvalidInput as error:
        raise ProviderError("invalid", str(error)) from None
    values = {
        "fray-root": request.root,
        POOL_KEY: request.pool,
        MACHINE_KEY if len(request.names) == 1 else MACHINES_KEY: ",".join(request.names),
        "fray-labels": ",".join(f"{name}={value}" for name, value in sorted(request.labels.items())),
        "fray-image": settings.image,
        "fray-package": settings.package,
        "startup-script": startup_script(),
    }
    return {key: value for key, value in values.items() if value}


MACHINE_KEY = "fray-machine"
"""Metadata key: the machine of a request for one."""
MACHINES_KEY = "fray-machines"
"""Metadata key: the machines of a request for several, separated by commas."""
POOL_KEY = "fray-pool"
"""Metadata key: the pool, because a label cannot have its upper-case letters."""

Queue = tpu_v2.QueuedResourceState.State
State = tpu_v2.Node.State

_COMING = (State.STATE_UNSPECIFIED, State.CREATING, State.STARTING, State.RESTARTING, State.REIMAGING, State.UNHIDING)
_WAITING = (
    Queue.STATE_UNSPECIFIED,
    Queue.CREATING,
    Queue.ACCEPTED,
    Queue.WAITING_FOR_RESOURCES,
    Queue.PROVISIONING,
)


def listed_machines(requests: Iterable[tpu_v2.QueuedResource], nodes: Iterable[tpu_v2.Node]) -> Iterator[ListedMachine]:
    """The machines of listed queued resources, and of the nodes, which must be listed after these."""
    by_request: dict[str, list[tpu_v2.Node]] = {}
    for node in nodes:
        by_request.setdefault(last_part(node.queued_resource or node.name), []).append(node)
    for request in requests:
        made = by_request.pop(last_part(request.name), [])
        yield from _of_request(request, made)
    for rest in by_request.values():  # of requests in zones that the pool does not name any more
        yield from (node_machine(node) for node in rest)


def last_part(name: str) -> str:
    """The id in a resource's name."""
    return name.rpartition("/")[2]


def zone_of(name: str) -> str:
    """The zone in a resource's name."""
    parts = name.split("/")
    return parts[parts.index("locations") + 1] if "locations" in parts else ""


def _of_request(request: tpu_v2.QueuedResource, nodes: Sequence[tpu_v2.Node]) -> Iterator[ListedMachine]:
    """The machines of a request. A request without nodes counts as lost: it must be deleted to free its name."""
    yield from (node_machine(node) for node in nodes)
    state = request.state.state
    if nodes and state not in _WAITING:
        return  # its other nodes were removed one by one
    template = request.tpu.node_spec[0].node
    error, error_kind = _failure(request)
    existing = {last_part(node.name) for node in nodes}
    for number, name in enumerate(_names(template.metadata)):
        if node_id(last_part(request.name), number, template) not in existing:
            yield ListedMachine(
                pool=template.metadata[POOL_KEY],
                name=name,
                zone=zone_of(request.name),
                state=_request_state(state),
                batch=template.labels.get(BATCH_LABEL, ""),
                operation=request.name,
                error=error,
                error_kind=error_kind,
                billed=False,
            )


def _request_state(state: tpu_v2.QueuedResourceState.State) -> ListedState:
    if state is Queue.WAITING_FOR_RESOURCES:
        return ListedState.WAITING
    if state in _WAITING:
        return ListedState.CREATING
    return ListedState.ENDING if state is Queue.DELETING else ListedState.LOST


def _failure(request: tpu_v2.QueuedResource) -> tuple[str, str]:
    """Why a request failed or waits, and the kind of error. If it waited for too long, there was no capacity."""
    state = request.state
    if state.state is Queue.FAILED:
        code, text = state.failed_data.error.code, state.failed_data.error.message
        expired = code in (code_pb2.OK, code_pb2.DEADLINE_EXCEEDED)
        return text or "no capacity in the time that it waited", "stockout" if expired else kind_of(code, text)
    if state.state in (Queue.SUSPENDING, Queue.SUSPENDED):
        return "its capacity was taken away", ""
    return ("waits for capacity" if state.state is Queue.WAITING_FOR_RESOURCES else ""), ""


def node_id(request_id: str, number: int, template: tpu_v2.Node) -> str:
    """The id of a node: that of its request, with a number if there are several."""
    return f"{request_id}-{number}" if len(_names(template.metadata)) > 1 else request_id


def _names(metadata: Mapping[str, str]) -> list[str]:
    several = metadata.get(MACHINES_KEY, "")
    return several.split(",") if several else [metadata[MACHINE_KEY]]


def node_machine(node: tpu_v2.Node) -> ListedMachine:
    names = _names(node.metadata)
    number = int(last_part(node.name).rpartition("-")[2]) if len(names) > 1 else 0
    return ListedMachine(
        pool=node.metadata[POOL_KEY],
        name=names[number],
        zone=zone_of(node.name),
        state=_node_state(node.state),
        batch=node.labels.get(BATCH_LABEL, ""),
        operation=node.queued_resource,
        error=_node_error(node),
    )


def _node_state(state: tpu_v2.Node.State) -> ListedState:
    if state is State.READY:
        return ListedState.READY
    if state is State.DELETING:
        return ListedState.ENDING
    return ListedState.CREATING if state in _COMING else ListedState.LOST


def _node_error(node: tpu_v2.Node) -> str:
    texts = [node.health_description, *(f"{symptom.symptom_type.name}: {symptom.details}" for symptom in node.symptoms)]
    if _node_state(node.state) is ListedState.LOST:
        texts.insert(0, f"the node is {node.state.name}")
    return "; ".join(text for text in texts if text)
