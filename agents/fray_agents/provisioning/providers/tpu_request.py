"""The queued resource for a request of TPU slices, and the metadata for its hosts."""

from __future__ import annotations

from google.cloud import tpu_v2
from google.protobuf import duration_pb2

from fray_agents.deploy import startup_script
from fray_agents.provisioning.identity import machine_labels
from fray_agents.provisioning.provider import MachineRequest, ProviderError
from fray_agents.provisioning.providers.google_calls import SCOPE
from fray_agents.provisioning.providers.tpu_listing import MACHINE_KEY, MACHINES_KEY, POOL_KEY
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
