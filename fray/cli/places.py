"""The options of `fray agent` that say where its host is: --tpu, --slice, --worker, --zone, --region, --label.

On a VM of Google Cloud, the metadata server says what the options leave open.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fray_layouts.errors import InvalidInput

if TYPE_CHECKING:
    from fray_agents.agent.chip_watch import CheckChips
    from fray_agents.host.gce_metadata import GceHost
    from fray_agents.host.place import HostPlace
    from fray_layouts.records import Resources, SliceMember

log = logging.getLogger("fray")


def parse_place(
    zone: str, region: str, label: Sequence[str], tpu: str | None, slice_name: str | None, worker: int | None
) -> HostPlace:
    """The place that the options describe. Raises InvalidInput if they contradict each other or have a wrong value."""
    from fray_agents.host.place import HostPlace
    from fray_layouts.spec_checks import check_name

    for option, value in (("--zone", zone), ("--region", region)):
        if value:
            check_name(option, value)
    return HostPlace(zone, region, dict(parse_label(text) for text in label), _parse_slice(tpu, slice_name, worker))


def read_vm(server: str | None) -> GceHost:
    """What this host's metadata server says; empty if there is no server, or if it does not answer, which is logged.

    Raises InvalidInput if it has a wrong value for the pool, the machine, a label or a slice.
    """
    from fray_agents.host.gce_metadata import GceHost, MetadataUnavailable, read_host

    try:
        return read_host(server) if server else GceHost()
    except MetadataUnavailable as error:
        log.warning("the metadata server did not answer, so only the options say where this host is: %s", error)
        return GceHost()


def at_vm(place: HostPlace, vm: GceHost) -> HostPlace:
    """The place that the options describe, completed from the VM's metadata."""
    return dataclasses.replace(
        place,
        zone=place.zone or vm.zone,
        region=place.region or vm.region,
        labels={**vm.labels, **place.labels},
        slice=place.slice or vm.slice,
    )


def parse_label(text: str) -> tuple[str, str]:
    """The name and the value of a label. Raises InvalidInput if it is not name=value."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InvalidInput("--label", text, "give name=value, such as disk=ssd")
    return name, value


def _parse_slice(tpu: str | None, name: str | None, worker: int | None) -> SliceMember | None:
    from fray_layouts.records import SliceMember
    from fray_layouts.spec_checks import check_name
    from fray_layouts.topology import get_tpu_topology

    if tpu is None:
        for option, value in (("--slice", name), ("--worker", worker)):
            if value is not None:
                raise InvalidInput(option, value, "give the type of the slice too, such as --tpu v5litepod-16")
        return None
    try:
        hosts = get_tpu_topology(tpu).vm_count
    except InvalidInput as error:
        raise InvalidInput("--tpu", tpu, error.remedy) from None
    if hosts == 1 and name is None:
        name = f"{tpu}-{secrets.token_hex(6)}"  # a slice of one host needs no name by which others find it
    if name is None:
        raise InvalidInput("--slice", name, f"a {tpu} has {hosts} hosts: give each of them the name of their slice")
    if worker is None and hosts > 1:
        raise InvalidInput("--worker", worker, f"a {tpu} has {hosts} hosts: say which one this is, from 0")
    if not 0 <= (index := worker or 0) < hosts:
        raise InvalidInput("--worker", worker, f"the hosts of a {tpu} are numbered from 0 to {hosts - 1}")
    check_name("--slice", name)
    return SliceMember(id=name, type=tpu, index=index, hosts=hosts)


def with_chips(found: Resources, tpu: str) -> Resources:
    """The resources of a host of a slice of this type: the host's own, and the chips that a host of the type has."""
    from fray_layouts.topology import get_tpu_topology

    return replace(found, device=f"tpu-{tpu}".lower(), device_count=get_tpu_topology(tpu).chips_per_vm)


def chip_check(capacity: Resources, is_tpu_vm: bool) -> CheckChips | None:
    """How the agent checks that its TPU chips can be used; None on a host that has none or only poses as a TPU host."""
    from fray_agents.host.chips import chip_files, chip_trouble

    has_tpu = capacity.device.startswith("tpu") and (is_tpu_vm or bool(chip_files()))
    return partial(chip_trouble, capacity.device_count) if has_tpu else None
