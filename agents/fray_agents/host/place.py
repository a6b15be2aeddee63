"""The place of a host: its zone and region, its place in a TPU slice, and its operator's labels."""

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from fray_layouts.bounds import MAX_NAME
from fray_layouts.records import SliceMember

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9]+")


@dataclass(frozen=True, slots=True)
class HostPlace:
    """The place of an agent's host, as in `AgentRecord`."""

    zone: str = ""
    region: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    slice: SliceMember | None = None


def host_name() -> str:
    """The name of this host, used as the zone of machines that are processes on it."""
    return _NOT_IN_NAMES.sub("-", socket.gethostname())[:MAX_NAME].strip("-") or "localhost"
