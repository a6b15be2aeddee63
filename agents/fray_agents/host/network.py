"""The network settings of a host: where its servers listen, and the address at which others reach them."""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace

LOOPBACK = "127.0.0.1"
_WILDCARD_ADDRESSES = ("", "0.0.0.0", "::")
_UNASSIGNED_ADDRESS = ("192.0.2.1", 9)
"""An address of TEST-NET-1, which nobody has: only the route to it is looked up, and nothing is sent."""


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """The network settings of an agent, as in `AgentRecord`; `resolved` fills in an empty `bind` or `advertise`."""

    network: str = "default"
    bind: str = ""
    advertise: str = ""
    inbound: bool = True

    def resolved(self, local: bool) -> NetworkSettings:
        """The settings with empty addresses filled in: loopback for a cluster on this machine, else the host's own.

        local: the cluster's root is in this machine's files.
        """
        own = self.bind if self.bind not in _WILDCARD_ADDRESSES else LOOPBACK if local else host_address()
        return replace(self, bind=self.bind or own, advertise=self.advertise or own)


def host_address() -> str:
    """The address of the interface for outgoing connections; loopback if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_UNASSIGNED_ADDRESS)
        except OSError:
            return LOOPBACK
        return str(probe.getsockname()[0])
