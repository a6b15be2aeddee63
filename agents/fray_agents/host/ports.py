"""Ports of this host that jobs have for themselves.

A port is held by an abstract Unix socket whose name has its number. Such a name is unique in the whole network
namespace, as a port is. So agents of one host never hold a port twice, whichever user runs them. The kernel releases it
with the last process that has the socket: the agent, or the task's runner.
"""

import errno
import random
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

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
        descriptors: the sockets that hold them; a process that inherits these holds the ports too.
    """

    numbers: dict[str, int]
    descriptors: tuple[int, ...]


@contextmanager
def held_ports(names: Iterable[str], rng: random.Random) -> Iterator[HeldPorts]:
    """Hold a port for each name: one that no job of this host holds and no other process listens on.

    Raises:
        OSError: no port is free.
    """
    with ExitStack() as stack:
        held = {name: _claim_port(rng) for name in names}
        for _, claim in held.values():
            stack.enter_context(claim)
        numbers = {name: number for name, (number, _) in held.items()}
        yield HeldPorts(numbers, tuple(claim.fileno() for _, claim in held.values()))


def _claim_port(rng: random.Random) -> tuple[int, socket.socket]:
    for _ in range(_DRAWS):
        number = rng.randint(FIRST_PORT, LAST_PORT)
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            if _try_bind(claim, f"\0fray-port-{number}") and not _is_port_in_use(number):
                return number, claim
        except OSError:
            claim.close()
            raise
        claim.close()
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


def _try_bind(taker: socket.socket, address: str | tuple[str, int]) -> bool:
    """Bind the socket; False if the address is in use."""
    try:
        taker.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True
