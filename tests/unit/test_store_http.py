"""The HTTP client of the stores, with servers that break the protocol, and behind proxies."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fray_coordinator.store import http_client
from fray_coordinator.store.http_client import HttpClient
from fray_coordinator.store.http_connection import MAX_ERROR_BODY, MAX_HEAD_BYTES
from fray_coordinator.store.interface import BadObject, NotApplied, Unknown

HELLO = b"HTTP/1.1 200 OK\r\nETag: v\r\nContent-Length: 5\r\n\r\nhello"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def served(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The address of a server that handles every connection with `serve` and then closes it."""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@asynccontextmanager
async def opened() -> AsyncIterator[HttpClient]:
    client = HttpClient()
    try:
        yield client
    finally:
        client.close()


async def head_of(reader: asyncio.StreamReader) -> str:
    return (await reader.readuntil(b"\r\n\r\n")).decode()


def saying(*answers: bytes) -> Serve:
    """Answers one request with each answer, and then closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await head_of(reader)
            writer.write(answer)
            await writer.drain()

    return serve


GOOD = {
    "a length": HELLO,
    "chunks": b"HTTP/1.1 200 OK\r\nETag: v\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
    "neither, so that its end is the connection's": b"HTTP/1.1 200 OK\r\nETag: v\r\n\r\nhello",
    "hints before it": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + HELLO,
}


@pytest.mark.parametrize("answer", GOOD.values(), ids=GOOD)
async def test_an_answer_is_the_same_in_pieces_of_any_size(answer: bytes) -> None:
    async def in_pieces(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        for byte in answer:
            writer.write(bytes([byte]))
            await asyncio.sleep(0)

    for serve in (saying(answer), in_pieces):
        async with served(serve) as place, opened() as client:
            found = await client.request("GET", f"http://{place}/a%20b?c=d", {})
            assert (found.status, found.body, found.headers["etag"]) == (200, b"hello", "v")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"", "server closed"),
        (HELLO[:-1], "server closed"),
        (GOOD["chunks"][:-4], "server closed"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\nhello", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * MAX_HEAD_BYTES, "its headers have more"),
    ],
)
async def test_a_broken_or_malformed_answer_leaves_the_outcome_unknown(answer: bytes, told: str) -> None:
    async with served(saying(answer)) as place, opened() as client:
        with pytest.raises(Unknown, match=told):
            await client.request("PUT", f"http://{place}/", {}, b"data")


async def test_a_request_that_was_never_sent_is_told_apart() -> None:
    async with served(saying(HELLO)) as place:
        pass
    async with opened() as client:
        with pytest.raises(NotApplied, match=f"no connection to {place}"):
            await client.request("PUT", f"http://{place}/", {}, b"data")
        with pytest.raises(NotApplied, match=r"no connection to nowhere\.invalid"):
            await client.request("PUT", "http://nowhere.invalid/", {}, b"data")


async def test_a_server_that_says_nothing_is_waited_for_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "ANSWER_TIMEOUT", 0.05)
    async with opened() as client:
        for said in (b"", HELLO[:-1]):
            async with served(saying(said, b"")) as place:
                with pytest.raises(Unknown, match=f"{place} did not answer in time"):
                    await client.request("GET", f"http://{place}/", {})


async def test_connections_are_used_again_until_they_are_closed_or_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    connections = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        for answer in (HELLO, HELLO, HELLO.replace(b"ETag: v", b"Connection: close")):
            await head_of(reader)
            writer.write(answer)

    async with served(serve) as place, opened() as client:
        for _ in range(4):
            assert (await client.request("GET", f"http://{place}/", {})).body == b"hello"
        assert len(connections) == 2
        monkeypatch.setattr(http_client, "MAX_IDLE_SECONDS", 0)
        await client.request("GET", f"http://{place}/", {})
        assert len(connections) == 3


async def test_an_answer_that_nobody_asked_for_is_taken_for_no_other_requests_answer() -> None:
    async with served(saying(HELLO + HELLO.replace(b"hello", b"WRONG"), HELLO)) as place, opened() as client:
        for _ in range(3):
            assert (await client.request("GET", f"http://{place}/", {})).body == b"hello"


async def test_a_request_that_is_cancelled_leaves_no_connection_to_be_used_again() -> None:
    asked = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await head_of(reader)
        if "/first" in head:
            asked.set()
            await reader.read()  # until it is closed
        writer.write(HELLO)

    async with served(serve) as place, opened() as client:
        first = asyncio.create_task(client.request("GET", f"http://{place}/first", {}))
        await asked.wait()
        first.cancel()
        await asyncio.wait([first])
        assert (await client.request("GET", f"http://{place}/", {})).body == b"hello"


async def test_bodies_larger_than_a_sockets_buffer_go_both_ways() -> None:
    large = bytes(range(256)) * 16 * 1024

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while f"Content-Length: {len(large)}\r\n" in await head_of(reader):
            body = await reader.readexactly(len(large))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()

    async with served(echo) as place, opened() as client:
        assert (await client.request("PUT", f"http://{place}/", {}, large)).body == large
        with pytest.raises(BadObject, match="more than the 1000 bytes"):
            await client.request("PUT", f"http://{place}/", {}, large, max_body=1000)


async def test_a_client_that_is_refused_before_all_is_sent_gets_the_answer() -> None:
    refusal = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(refusal)
        await reader.read()

    async with served(serve) as place, opened() as client:
        found = await client.request("PUT", f"http://{place}/", {}, bytes(50 * 1024**2))
        assert (found.status, found.body) == (403, b"no")


async def test_only_the_first_part_of_a_long_error_page_is_read() -> None:
    page = b"HTTP/1.1 500 Oh\r\nContent-Length: %d\r\n\r\n" % (3 * MAX_ERROR_BODY) + b"x" * 3 * MAX_ERROR_BODY
    async with served(saying(page)) as place, opened() as client:
        assert len((await client.request("GET", f"http://{place}/", {})).body) == MAX_ERROR_BODY


async def test_no_header_ends_its_line_early() -> None:
    async with served(saying(HELLO)) as place, opened() as client:
        with pytest.raises(ValueError, match="line breaks"):
            await client.request("GET", f"http://{place}/", {"X-Token": "a\r\nHost: other"})


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ssl.SSLContext]:
    """A server's TLS for "storage.test", whose certificate the environment tells clients to trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "storage.test")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now - timedelta(1), now + timedelta(1))
    made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName("storage.test")]), critical=False)
    signed = made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    form = serialization.PrivateFormat.PKCS8
    private = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    (tmp_path / "certificate").write_bytes(signed)
    (tmp_path / "both").write_bytes(signed + private)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "certificate"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "both")
    http_client._tls_context.cache_clear()
    yield context
    http_client._tls_context.cache_clear()


async def test_a_proxys_tunnel_leads_to_the_server_that_is_meant(
    authority: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads: list[str] = []

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await head_of(reader))
        if "CONNECT storage.test:443 " not in heads[-1]:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 2\r\n\r\nno")
            return
        there, back = await asyncio.open_connection(*behind.split(":"))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        outward = asyncio.create_task(pump(reader, back))
        await pump(there, writer)
        outward.cancel()
        back.close()

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while part := await source.read(65536):
            sink.write(part)

    async with served(saying(HELLO, HELLO), authority) as behind, served(tunnel) as proxy, opened() as client:
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:pass%20word@{proxy}")
        for _ in range(2):
            assert (await client.request("GET", "https://storage.test/key", {})).body == b"hello"
        assert len(heads) == 1
        assert "Proxy-Authorization: Basic dXNlcjpwYXNzIHdvcmQ=\r\n" in heads[0]
        with pytest.raises(NotApplied, match=f"no connection to {proxy}: .*HTTP 407"):
            await client.request("GET", "https://elsewhere.test/key", {})
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with pytest.raises(NotApplied, match=r"no connection to 127\.0\.0\.1.*certificate"):
            await client.request("PUT", f"https://{behind}/key", {}, b"data")


async def test_a_proxy_is_asked_for_plain_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await head_of(reader)
        assert head.startswith("GET http://storage.test/key?a=b HTTP/1.1\r\nHost: storage.test\r\n")
        writer.write(HELLO)

    async with served(serve) as proxy, opened() as client:
        monkeypatch.setenv("http_proxy", proxy)
        assert (await client.request("GET", "http://storage.test/key?a=b", {})).body == b"hello"
