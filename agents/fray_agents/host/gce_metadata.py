"""The metadata server of Google Cloud: its description of a host, and its notice that the host is about to end.

The server answers on every VM, including those of TPU slices. This module reads the following; others read it too:

- `instance/`: `zone`, `scheduling.preemptible`, `preempted` and `maintenance-event`, as documented on Compute Engine's
  pages on predefined metadata keys, Spot VMs and maintenance notices (docs.cloud.google.com/compute/docs/metadata).
- `instance/attributes/` of a TPU's VM: `accelerator-type`, `agent-worker-number` and `worker-network-endpoints` (an
  entry for each VM of the slice), which JAX reads (`jax/_src/clusters/cloud_tpu_cluster.py`); `instance-id`, the TPU's
  name, which Ray reads (`ray/_private/accelerators/tpu.py`); and `tpu-env`, lines of `NAME: 'value'` with NODE_ID, UID
  and PREEMPTIBLE, which torch_xla reads (`torch_xla/_internal/tpu.py`).
- The attributes with the prefix `fray-`, which the scaler's providers set on a machine.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from fray_layouts.errors import FrayError, InvalidInput
from fray_layouts.records import SliceMember
from fray_layouts.spec_parsing import check_name
from fray_layouts.topology import get_tpu_topology
from fray_runtime.variables import read_variable

log = logging.getLogger("fray")

HOST_VARIABLE = "GCE_METADATA_HOST"
"""The variable that names another metadata server; Google's own libraries use it too."""

_HOST = "metadata.google.internal"
_PRODUCT = "sys/class/dmi/id/product_name"
"""File with the firmware's product name: "Google Compute Engine", also on a TPU's VM; google-auth reads it as well."""

_TIMEOUT = 5.0
"""Most seconds for an answer: the server is on the host itself, and answers within milliseconds."""

NOTICE_INTERVAL = 2.0
"""Seconds between two checks for a notice: a preempted VM has 30 seconds, of which its jobs get 25."""

_TERMINATES = "TERMINATE_ON_HOST_MAINTENANCE"


class MetadataUnavailable(FrayError):
    """The metadata server of a VM of Google Cloud does not answer, or its answer is not metadata."""


@dataclass(frozen=True, slots=True)
class GceHost:
    """A VM of Google Cloud, as its metadata server describes it.

    Attributes:
        zone, region: where it is.
        preemptible: it may be taken away at any time.
        tpu: type of the TPU slice that it is in, such as "v5litepod-16"; "" for none.
        slice: its place in that slice; None if it is in none, or in one of a type that Fray does not know.
        pool, machine, labels: of the agent to run here; empty if the VM was not created for a pool.
    """

    zone: str = ""
    region: str = ""
    preemptible: bool = False
    tpu: str = ""
    slice: SliceMember | None = None
    pool: str = ""
    machine: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


def metadata_server(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> str | None:
    """The address of this host's metadata server; None if this is not a VM of Google Cloud. It makes no request.

    root: the folder in which `/sys` is looked for.
    """
    if host := read_variable(HOST_VARIABLE, environ):
        return host
    product = root / _PRODUCT
    return _HOST if product.is_file() and product.read_text(errors="replace").startswith("Google") else None


def read_host(server: str) -> GceHost:
    """This host, as its metadata server describes it.

    Raises:
        MetadataUnavailable: the server does not answer.
        InvalidInput: its data for an agent's pool, machine or labels, or for a slice, are not valid.
    """
    text = _read(server, "?recursive=true&alt=json")
    try:
        return host_of(json.loads(text))
    except (ValueError, TypeError, AttributeError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise MetadataUnavailable(
            f"the metadata server {server} answers with something other than metadata: {text[:200]!r}"
        ) from error


def host_of(instance: Mapping[str, Any]) -> GceHost:
    """The host that the metadata below `instance/` describe. Raises InvalidInput."""
    attributes = {str(name): str(value) for name, value in instance.get("attributes", {}).items()}
    env = _tpu_env(attributes.get("tpu-env", ""))
    zone = str(instance.get("zone", "")).rpartition("/")[2]
    tpu = attributes.get("accelerator-type") or env.get("ACCELERATOR_TYPE", "")
    node = env.get("NODE_ID") or attributes.get("instance-id", "")
    return GceHost(
        zone=zone,
        region=zone.rpartition("-")[0],
        preemptible="true" in (str(_scheduled(instance, "preemptible")).lower(), env.get("PREEMPTIBLE", "").lower()),
        tpu=tpu,
        slice=_slice_of(tpu, node, env, attributes) if tpu else None,
        pool=_name(attributes, "fray-pool"),
        machine=_machine(attributes, node),
        labels=dict(_label(text) for text in attributes.get("fray-labels", "").split(",") if text),
    )


async def end_of_host(server: str) -> str:
    """Wait until the host is about to end, for ever if need be; returns the reason, as text for people.

    A live migration does not end the host. If the server does not answer, it is asked again.
    """
    while True:
        if why := await asyncio.to_thread(_ending, server):
            return why
        await asyncio.sleep(NOTICE_INTERVAL)


def _ending(server: str) -> str:
    try:
        if _read(server, "preempted").upper() == "TRUE":
            return "Google Cloud takes this host away (it is preempted)"
        if _read(server, "maintenance-event") == _TERMINATES:
            return "Google Cloud stops this host for maintenance"
    except MetadataUnavailable as error:
        log.debug("%s", error)
    return ""


def _read(server: str, path: str) -> str:
    """Text below `instance/`, read without proxies. Raises MetadataUnavailable."""
    connection = HTTPConnection(server, timeout=_TIMEOUT)
    try:
        connection.request("GET", f"/computeMetadata/v1/instance/{path}", headers={"Metadata-Flavor": "Google"})
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace").strip()
    except (OSError, HTTPException) as error:
        raise MetadataUnavailable(f"the metadata server {server} does not answer: {error}") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise MetadataUnavailable(f"the metadata server {server} answers {answer.status}: {text[:200]}")
    return text


def _scheduled(instance: Mapping[str, Any], name: str) -> object:
    return instance.get("scheduling", {}).get(name, "")


def _tpu_env(text: str) -> dict[str, str]:
    """The lines of `tpu-env`, which are one level of YAML with quoted values."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip().strip("'\"") for name, colon, value in pairs if colon}


def _slice_of(tpu: str, node: str, env: Mapping[str, str], attributes: Mapping[str, str]) -> SliceMember | None:
    """The host's place in its slice. The slice's name has the TPU's unique id, as a TPU may be created again.

    Raises InvalidInput: its number, or the number of its VMs, is impossible for the type.
    """
    try:
        hosts = get_tpu_topology(tpu).vm_count
    except InvalidInput as error:
        log.warning("this host is in no slice: the metadata server reports a TPU of type %r; %s", tpu, error.remedy)
        return None
    name = "-".join(filter(None, (node, env.get("UID", "")))) or attributes.get("instance-id", "")
    check_name("metadata tpu-env NODE_ID", name)
    endpoints = len(attributes.get("worker-network-endpoints", "").split(","))
    if endpoints not in (1, hosts):
        raise InvalidInput("metadata worker-network-endpoints", endpoints, f"a {tpu} has {hosts} hosts")
    number = attributes.get("agent-worker-number") or env.get("WORKER_ID", "")
    if not number.isdecimal() or int(number) >= hosts:
        raise InvalidInput(
            "metadata agent-worker-number", number, f"the hosts of a {tpu} are numbered 0 to {hosts - 1}"
        )
    return SliceMember(id=name, type=tpu, index=int(number), hosts=hosts)


def _machine(attributes: Mapping[str, str], node: str) -> str:
    """The machine that this host is in. If one request made several, the node's name ends with its number.

    Raises InvalidInput: there are several, and the node's name has no such number.
    """
    if "fray-machines" not in attributes:
        return _name(attributes, "fray-machine")
    machines, number = attributes["fray-machines"].split(","), node.rpartition("-")[2]
    if not number.isdecimal() or int(number) >= len(machines):
        remedy = f"the node's name ({node!r}) must end with the number of one of them, from 0"
        raise InvalidInput("metadata fray-machines", ",".join(machines), remedy)
    return _name({"fray-machines": machines[int(number)]}, "fray-machines")


def _name(attributes: Mapping[str, str], attribute: str) -> str:
    if value := attributes.get(attribute, ""):
        check_name(f"metadata {attribute}", value)
    return value


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InvalidInput("metadata fray-labels", text, "give name=value, such as disk=ssd, joined by commas")
    return name, value
