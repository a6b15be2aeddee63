"""The network of a host: where its servers listen, at which address others reach them, and the ports of jobs.

A port that a job has for itself is held by a lock on a file with its number, in a folder that only this user can enter.
So agents of one user never hold a port twice on a host, and no other user can take all ports by taking their names. The
kernel releases the lock with the last process that has the file open: the agent, or the task's runner. The files stay,
because a file that is removed while somebody opens it could be locked twice. Agents of different users, and processes
that are not Fray's, see only the ports on which somebody listens.
"""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from fray_runtime.directories import host_dir, try_lock

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


FIRST_PORT, LAST_PORT = 20_000, 29_999
"""Ports that are handed out. They are below those that Linux uses for outgoing connections (from 32,768) and those of
Kubernetes' services (from 30,000), which any process may use at any time."""

_DRAWS = 1000
"""Ports that are tried: a free one is almost surely among them, unless more than 99 of 100 are taken."""


@dataclass(frozen=True, slots=True)
class HeldPorts:
    """Ports that a job has.

    Attributes:
        numbers: by the names that the job gave them.
        descriptors: of the locked files; a process that inherits these holds the ports too.
    """

    numbers: dict[str, int]
    descriptors: tuple[int, ...]


@contextmanager
def held_ports(names: Iterable[str], rng: random.Random) -> Iterator[HeldPorts]:
    """Hold a port for each name: one that no job of this user holds here and no other process listens on.

    Raises:
        OSError: no port is free, or the host lacks descriptors.
        UntrustedDirectory: another user could remove the locks.
    """
    numbers, descriptors = {}, []
    with ExitStack() as stack:
        for name in names:
            numbers[name], descriptor = _claim_port(rng)
            stack.callback(os.close, descriptor)
            descriptors.append(descriptor)
        yield HeldPorts(numbers, tuple(descriptors))


def _claim_port(rng: random.Random) -> tuple[int, int]:
    folder = host_dir("ports")
    for _ in range(_DRAWS):
        number = rng.randint(FIRST_PORT, LAST_PORT)
        if (descriptor := try_lock(folder / str(number), flags=os.O_CREAT)) is None:
            continue
        try:
            if not _is_port_in_use(number):
                return number, descriptor
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise OSError(errno.EADDRINUSE, f"no port from {FIRST_PORT} to {LAST_PORT} is free on this host")


def _is_port_in_use(number: int) -> bool:
    """Whether a process other than Fray's tasks uses this port, on any address."""
    for family in (socket.AF_INET, socket.AF_INET6):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            with _ignore_missing_ipv6(), socket.socket(family, kind) as probe:
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                if not _try_bind(probe, ("", number)):
                    return True
    return False


@contextmanager
def _ignore_missing_ipv6() -> Iterator[None]:
    """Ignore failures of a host that has no IPv6."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise


def _try_bind(taker: socket.socket, address: tuple[str, int]) -> bool:
    """Bind the socket; False if the address is in use."""
    try:
        taker.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True
