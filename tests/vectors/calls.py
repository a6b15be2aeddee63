"""How callers and servers of actors authenticate one another, and how a call lies in bytes."""

from __future__ import annotations

import struct
from typing import Any

from fray_rpc.wire.session import RpcKey, Session
from tests.vectors.form import File, base64_of

SECRET = bytes(range(32))
HELLO = {
    "secret": base64_of(SECRET),
    "client_nonce": "00112233445566778899aabbccddeeff",
    "server_nonce": "ffeeddccbbaa99887766554433221100",
    "identity": "0123456789abcdef0123456789abcdef",
}
CERTIFICATE = "c0ffee" * 10 + "c0de"


def _session(certificate: str = "") -> Session:
    client, server, identity = (HELLO[name].encode() for name in ("client_nonce", "server_nonce", "identity"))
    return Session.derive(RpcKey("k1", SECRET), client, server, identity, certificate)


def _proofs() -> File:
    cases = {}
    for case, fingerprint in (("plain", ""), ("encrypted", CERTIFICATE)):
        session = _session(fingerprint)
        cases[case] = (
            {**HELLO, "fingerprint": fingerprint},
            {
                "key_to_server": session.to_server._key.hex(),
                "key_to_client": session.to_client._key.hex(),
                "proof_of_server": session.to_client.proof().decode(),
                "proof_of_client": session.to_server.proof().decode(),
                "proof_of_client_for_json": session.to_server.proof(b"json").decode(),
            },
        )
    return File(
        "input: what both sides know after /session (`secret` in base64). expected: the keys of both "
        "directions, and the proofs",
        cases,
    )


def _seals() -> File:
    path, body = b"/v1/actors/store/methods/add", b'{"args":[1]}'
    up, down = _session().to_server, _session().to_client
    cases: dict[str, Any] = {}
    for number in (1, 2):
        given = {**HELLO, "position": number, "path": path.decode(), "body": body.decode()}
        cases[f"JSON request {number}"] = {**given, "direction": "to_server"}, up.next_json(path, body).decode()
    reply = b'{"result":3}'
    given = {**HELLO, "direction": "to_client", "position": 1, "path": path.decode(), "body": reply.decode()}
    cases["JSON reply 1"] = given, down.next_json(path, reply).decode()
    hint = b'{"hint":"submitted"}'
    given = {**HELLO, "direction": "to_server", "position": 1, "path": "/hint", "body": hint.decode()}
    cases["a hint"] = given, _session().to_server.next_json(b"/hint", hint).decode()
    return File(
        "input: a JSON message, its path and its position in its direction. expected: the seal, in hexadecimal", cases
    )


def _bodies() -> File:
    parts = [b"pickle", b"", b"buffer"]
    body = struct.pack(f"<I{len(parts)}Q", len(parts), *map(len, parts)) + b"".join(parts)
    up = _session().to_server
    small = up.next(len(body).to_bytes(8, "big") + body).decode()
    large = up.next((len(body) + 16).to_bytes(8, "big")).decode()
    mac = up.body()
    mac.update(body)
    given = {**HELLO, "parts": [part.decode() for part in parts]}
    return File(
        "input: the parts of a message to /calls. expected: its body in hexadecimal, its seal as the "
        "first message of a connection, and both seals that it would have as the second message if it "
        "were large",
        {
            "three parts": (
                given,
                {
                    "body": body.hex(),
                    "seal": small,
                    "seal_of_large_head": large,
                    "seal_behind_large_body": mac.digest().hex(),
                },
            )
        },
    )


FILES = {"sessions": _proofs, "seals": _seals, "call-bodies": _bodies}
