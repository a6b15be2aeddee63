"""Converts queued resources and nodes of Cloud TPU to machines.

A node is a slice, and so a machine. All are created by queued resources: one with a single node, or with the nodes of a
gang, which are numbered (`<id>-0`, `<id>-1`) and share one set of labels and metadata. So the metadata names all
machines of the request, in that order, and a node's number says which of them it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from google.cloud import tpu_v2
from google.rpc import code_pb2

from fray_agents.provisioning.identity import BATCH_LABEL
from fray_agents.provisioning.providers.google_calls import kind_of
from fray_coordinator.protocol.scaling.listed import ListedMachine, ListedState

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
