"""The HTTP client of the stores, with servers that break the protocol, and behind proxies."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fray_coordinator.store import http_client, http_route
from fray_coordinator.store.http_client import MAX_ERROR_BODY, MAX_HEAD_BYTES, HttpClient
from fray_coordinator.store.interface import BadObject, NotApplied, Refused, Unknown
from fray_coordinator.store.s3_access import plain_access

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
    http_route.tls_context.cache_clear()
    yield context
    http_route.tls_context.cache_clear()


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
        with pytest.raises(Refused, match=f"the proxy {proxy} of HTTPS_PROXY answered HTTP 407; .*user:password"):
            await client.request("GET", "https://elsewhere.test/key", {})
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with pytest.raises(
            Refused, match=r"certificate of 127\.0\.0\.1.*not accepted.*in AWS_CA_BUNDLE or .*/certificate"
        ):
            await client.request("PUT", f"https://{behind}/key", {}, b"data")


async def test_a_proxy_is_asked_for_plain_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await head_of(reader)
        assert head.startswith("GET http://storage.test/key?a=b HTTP/1.1\r\nHost: storage.test\r\n")
        writer.write(HELLO)

    async with served(serve) as proxy, opened() as client:
        monkeypatch.setenv("http_proxy", proxy)
        assert (await client.request("GET", "http://storage.test/key?a=b", {})).body == b"hello"


# --- what can never work is refused at once, by the name of its variable


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """An environment without proxies and certificates of its own."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    for name in http_route.BUNDLE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    http_route.tls_context.cache_clear()
    yield monkeypatch
    http_route.tls_context.cache_clear()


@pytest.mark.parametrize("variable", http_route.BUNDLE_VARIABLES)
@pytest.mark.parametrize(("content", "why"), [(None, "No such file"), ("no certificate", "it has no certificates")])
async def test_a_bundle_that_cannot_be_used_is_named(
    bare: pytest.MonkeyPatch, tmp_path: Path, variable: str, content: str | None, why: str
) -> None:
    if content is not None:
        (tmp_path / "bundle.pem").write_text(content)
    bare.setenv(variable, f"{tmp_path}/bundle.pem\n")
    async with opened() as client:
        with pytest.raises(Refused, match=rf"{variable}: '{tmp_path}/bundle.pem' cannot be used \({why}.*PEM"):
            await client.request("GET", "https://127.0.0.1:9/", {})
        bare.delenv(variable)
        with pytest.raises(Refused, match=rf"ca_bundle of the profile: '{tmp_path}/bundle.pem' .*{why}"):
            await client.request("GET", "https://127.0.0.1:9/", {}, ca_bundle=f"{tmp_path}/bundle.pem")


async def test_the_authorities_of_a_profile_count_for_its_requests(
    authority: ssl.SSLContext, bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with served(saying(HELLO), authority) as place, opened() as client:
        bundle = str(tmp_path / "certificate")
        with pytest.raises(Refused, match=r"certificate of 127.*IP address mismatch"):
            await client.request("GET", f"https://{place}/", {}, ca_bundle=bundle)  # trusted, but for another name
        with pytest.raises(Refused, match=r"certificate of 127.*now none is set"):
            await client.request("GET", f"https://{place}/", {})
    (tmp_path / "config").write_text(f"[default]\nca_bundle = {bundle}\n")
    keys = {"AWS_CONFIG_FILE": f"{tmp_path}/config", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    access = plain_access("bucket", None, keys)
    assert access is not None
    assert access.ca_bundle == bundle


async def test_a_server_without_tls_is_refused_and_one_that_hangs_up_is_asked_again(bare: pytest.MonkeyPatch) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(HELLO)

    async def hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)

    async with opened() as client:
        async with served(plain) as place:
            with pytest.raises(
                Refused, match=rf"{place} and this host cannot encrypt .*http:// is for servers without"
            ):
                await client.request("GET", f"https://{place}/", {})
        async with served(hangs_up) as place:
            with pytest.raises(NotApplied, match=f"no connection to {place}"):
                await client.request("GET", f"https://{place}/", {})


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
@pytest.mark.parametrize(
    "value", ["http://", "socks5://user:secret@127.0.0.1:1080", "http://127.0.0.1:99999", "http://[::1", "127.0.0.1:no"]
)
async def test_a_proxy_that_cannot_be_one_is_named_without_its_password(
    bare: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    bare.setenv(variable, value)
    async with opened() as client:
        with pytest.raises(Refused, match=rf"{variable}: .*NO_PROXY") as told:
            await client.request("GET", "http://storage.test/", {})
    assert "secret" not in str(told.value)


@pytest.mark.parametrize(
    ("given", "variable"),
    [
        ({"ALL_PROXY": "http://all:1"}, "ALL_PROXY"),
        ({"ALL_PROXY": "http://all:1", "all_proxy": "small:1"}, "all_proxy"),
        ({"ALL_PROXY": "http://all:1", "HTTPS_PROXY": "https://one:2"}, "HTTPS_PROXY"),
        ({"HTTPS_PROXY": "http://one:2", "https_proxy": ""}, None),
        ({"HTTP_PROXY": "http://one:2"}, None),
        ({"ALL_PROXY": "http://all:1", "NO_PROXY": "other.test,.example.test"}, None),
        ({"ALL_PROXY": "http://all:1", "NO_PROXY": "example.com"}, "ALL_PROXY"),
        ({"ALL_PROXY": " http://all:1\n"}, "ALL_PROXY"),
    ],
)
def test_the_proxy_is_the_one_for_the_scheme_else_the_one_for_all(
    bare: pytest.MonkeyPatch, given: dict[str, str], variable: str | None
) -> None:
    for name, value in given.items():
        bare.setenv(name, value)
    found = http_route.proxy_for(urlsplit("https://storage.example.test:8443/key"))
    assert (found.variable if found else None) == variable


def test_a_literal_address_of_ipv6_can_be_without_a_proxy(bare: pytest.MonkeyPatch) -> None:
    bare.setenv("ALL_PROXY", "http://all:1")
    for exceptions, is_bypassed in (("[::1]", True), ("::1", True), ("::2", False)):
        bare.setenv("NO_PROXY", exceptions)
        assert (http_route.proxy_for(urlsplit("https://[::1]:9000/x")) is None) == is_bypassed


def test_whoever_calls_a_cgi_program_names_no_proxy(bare: pytest.MonkeyPatch) -> None:
    bare.setenv("HTTP_PROXY", "http://evil:1")
    bare.setenv("REQUEST_METHOD", "GET")
    assert http_route.proxy_for(urlsplit("http://storage.test/")) is None


@pytest.mark.parametrize(("status", "failure"), [(403, Refused), (405, Refused), (407, Refused), (503, NotApplied)])
async def test_a_tunnel_to_a_literal_address_has_its_brackets_and_a_refusal_is_final(
    bare: pytest.MonkeyPatch, status: int, failure: type[Exception]
) -> None:
    heads: list[str] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await head_of(reader))
        writer.write(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % status)

    async with served(refuse) as proxy, opened() as client:
        bare.setenv("ALL_PROXY", f"http://{proxy}")
        with pytest.raises(failure, match=rf"proxy {proxy} of ALL_PROXY.*HTTP {status}"):
            await client.request("GET", "https://[2001:db8::1]/key", {})
        with pytest.raises(failure):
            await client.request("GET", "https://[2001:db8::1]:9000/key", {})
    assert [head.split()[1] for head in heads] == ["[2001:db8::1]:443", "[2001:db8::1]:9000"]


async def test_a_plain_request_that_a_proxy_wants_a_password_for_is_refused(bare: pytest.MonkeyPatch) -> None:
    async with served(saying(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n")) as proxy, opened() as client:
        bare.setenv("http_proxy", f"http://{proxy}")
        with pytest.raises(Refused, match="of http_proxy answered HTTP 407"):
            await client.request("GET", "http://storage.test/", {})


async def test_an_endpoint_that_is_no_address_is_refused(bare: pytest.MonkeyPatch) -> None:
    async with opened() as client:
        for place in ("storage.test:port", "storage.test:99999", f"{'x' * 64}.test"):
            with pytest.raises(Refused, match=f"{place} is no address .*correct the endpoint"):
                await client.request("GET", f"http://{place}/", {})
