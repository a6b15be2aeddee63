"""The table of ports in docs/security.md: each module that opens one has its row, and each row is attacked."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fray_rpc.server.acceptor import HANDSHAKE_TIMEOUT, MAX_UNAUTHENTICATED
from fray_rpc.wire.http_connection import MAX_HEAD, MAX_HEADERS
from tests.attacks.ports import PORTS, ROWS

REPOSITORY = Path(__file__).parents[2]
SOURCES = ("fray", "agents", "rpc", "runtime", "coordinator", "layouts")

_SOCKETS = {"bind", "listen"}
"""Methods of sockets; other things have them, too, so they count only in modules that import `socket`."""
_OTHERS = {
    *("create_server", "start_server", "start_unix_server", "create_unix_server", "create_datagram_endpoint"),
    *("HTTPServer", "ThreadingHTTPServer", "TCPServer", "ThreadingTCPServer", "UnixStreamServer", "UDPServer"),
    *("Listener", "BaseManager", "SyncManager", "Manager", "TCPSite", "UnixSite", "run_app", "WSGIServer"),
}
_OURS = {
    *("Acceptor", "ActorServer", "HintListener", "HintServer", "HttpQueueServer", "RpcServer"),
    *("listen_tcp", "listen_unix"),
}
_NAMES = re.compile("|".join(rf"\b{name}\(" for name in _SOCKETS | _OTHERS | _OURS))


def openings(tree: ast.Module) -> Iterator[str]:
    """The calls of a module that open a port or a Unix socket, or make something that does."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    knows_sockets = any(name.name == "socket" for node in imports for name in node.names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            name = getattr(called, "id", "") or getattr(called, "attr", "")
            if name in _OTHERS | _OURS or (name in _SOCKETS and knows_sockets):
                yield name


def rows() -> dict[str, set[str]]:
    """By row of the page, its modules."""
    page = (REPOSITORY / "docs/security.md").read_text()
    section = page.split("## Ports")[1].split("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("| \n").split("|")] for line in section.splitlines() if "|" in line]
    return {row[0]: set(re.findall(r"`([\w/]+\.py)`", row[3])) for row in cells[2:]}


def test_every_opening_has_a_row_and_every_row_an_opening() -> None:
    modules = sorted(path for source in SOURCES for path in (REPOSITORY / source).rglob("*.py"))
    texts = {str(path.relative_to(REPOSITORY)): path.read_text() for path in modules}
    found = {name for name, text in texts.items() if _NAMES.search(text) and any(openings(ast.parse(text)))}
    assert found == set().union(*rows().values())


def test_every_row_is_attacked() -> None:
    assert rows().keys() == ROWS.keys()
    assert set().union(*ROWS.values()) == PORTS.keys()


def test_the_page_says_the_limits() -> None:
    section = (REPOSITORY / "docs/security.md").read_text().split("## Ports")[1].split("\n## ")[0]
    for limit in (
        f"{MAX_UNAUTHENTICATED} connections",
        f"{HANDSHAKE_TIMEOUT:.0f} s",
        f"{MAX_HEAD // 1024} KB",
        f"{MAX_HEADERS} headers",
    ):
        assert limit in section


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import socket\nsock.listen(5)", "listen"),
        ("import socket\nsocket.socket().bind(('', 0))", "bind"),
        ("await asyncio.start_server(serve, '', 0)", "start_server"),
        ("http.server.ThreadingHTTPServer(('', 0), Handler)", "ThreadingHTTPServer"),
        ("RpcServer(keys)", "RpcServer"),
    ],
)
def test_a_new_opening_is_recognised(text: str, name: str) -> None:
    assert [*openings(ast.parse(text))] == [name]


def test_other_calls_open_nothing() -> None:
    assert [*openings(ast.parse("names.bind(binding); listener.listen(agent); socket.create_connection(there)"))] == []
