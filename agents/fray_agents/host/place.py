"""The place of a host: its zone and region, its place in a TPU slice, and what its operator says of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fray_layouts.records import SliceMember


@dataclass(frozen=True, slots=True)
class HostPlace:
    """The place of an agent's host, as in `AgentRecord`."""

    zone: str = ""
    region: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    slice: SliceMember | None = None
