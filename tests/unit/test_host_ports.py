"""Ports that jobs hold: no two jobs have the same, whichever agents they have, and nobody else listens on them."""

import contextlib
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from fray_runtime import network
from fray_runtime.network import held_ports

HOLD = """
import random, sys
from fray_runtime import network
network.FIRST_PORT, network.LAST_PORT = int(sys.argv[1]), int(sys.argv[1])
with network.held_ports(["http"], random.Random()) as held:
    print(held.numbers["http"], flush=True)
    sys.stdin.read()
"""


def test_each_name_has_a_port_of_its_own_that_can_be_listened_on() -> None:
    with held_ports(["http", "grpc"], random.Random()) as held:
        http, grpc = held.numbers["http"], held.numbers["grpc"]
        assert http != grpc
        for number in (http, grpc):
            with socket.create_server(("", number)):
                pass


def test_a_range_is_handed_out_without_any_port_twice_and_then_there_is_none() -> None:
    with few() as first:
        with held_ports(["a", "b", "c"], random.Random(1)) as held:
            assert sorted(held.numbers.values()) == [first, first + 1, first + 2]
            with pytest.raises(OSError, match="no port from"), held_ports(["d"], random.Random(2)):
                pass
        with held_ports(["d"], random.Random(2)) as held:
            assert held.numbers["d"] in range(first, first + 3)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_port_that_somebody_else_has_is_left_alone(kind: socket.SocketKind) -> None:
    with few() as first, socket.socket(socket.AF_INET, kind) as other:
        other.bind(("127.0.0.1", first))
        with held_ports(["a", "b"], random.Random(1)) as held:
            assert first not in held.numbers.values()


def test_agents_of_one_host_never_hold_the_same_port_and_death_frees_it() -> None:
    with few() as first:
        other = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(first)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert other.stdout is not None
        assert other.stdout.readline().strip() == str(first)
        with held_ports(["a", "b"], random.Random(1)) as held:
            assert first not in held.numbers.values()
        other.kill()
        other.communicate()
        with held_ports(["a", "b", "c"], random.Random(1)) as held:
            assert first in held.numbers.values()


def test_agents_with_another_temporary_directory_see_what_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with few() as first, held_ports(["a", "b"], random.Random(1)) as held:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        with held_ports(["c"], random.Random(1)) as other:
            assert {*held.numbers.values(), *other.numbers.values()} == set(range(first, first + 3))


def test_nobody_else_can_take_all_ports_by_their_names() -> None:
    """Everybody may bind abstract Unix sockets, so no lock of ours is one."""
    with few() as first, contextlib.ExitStack() as stack:
        for number in range(first, first + 3):
            stranger = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            stranger.bind(f"\0fray-port-{number}")
        with held_ports(["a", "b", "c"], random.Random(1)) as held:
            assert len(held.numbers) == 3


@contextmanager
def few() -> Iterator[int]:
    """The first of three ports in a row. Nobody has them, and there are no others."""
    first = random.randrange(10_000, 19_000)
    while any(map(network._is_port_in_use, range(first, first + 3))):
        first = random.randrange(10_000, 19_000)
    with mock.patch.multiple(network, FIRST_PORT=first, LAST_PORT=first + 2):
        yield first
