"""The arguments of `fray` that start the agent of one host of a machine."""

from fray_agents.provisioning.provider import MachineRequest
from fray_layouts.records import Resources
from fray_layouts.topology import TPU_TOPOLOGIES

_GPU = "gpu"


def agent_arguments(request: MachineRequest, machine: str, host: int = 0) -> list[str]:
    """`agent --root ROOT ...` for one host, by its number, of a machine of the request."""
    arguments = ["agent", "--root", request.root, "--pool", request.pool, "--machine", machine]
    for name, value in request.labels.items():
        arguments += ["--label", f"{name}={value}"]
    if request.spec.spot:
        arguments.append("--preemptible")
    if request.spec.machine_type in TPU_TOPOLOGIES:
        arguments += ["--tpu", request.spec.machine_type, "--slice", machine, "--worker", str(host)]
    if request.spec.capacity is not None:
        arguments += _offered(request.spec.capacity)
    return arguments


def _offered(capacity: Resources) -> list[str]:
    """The options for the resources that the host offers; a value of 0 means what the host has."""
    arguments = ["--cpu", f"{capacity.cpu / 1000:g}"] if capacity.cpu else []
    if capacity.memory:
        arguments += ["--memory", f"{capacity.memory}B"]
    kind, _, variant = capacity.device.partition("-")
    if kind == _GPU:
        arguments += ["--gpus", f"{variant}:{capacity.device_count}" if variant else str(capacity.device_count)]
    return arguments
