"""A caller of actors: the standard library, plain file calls, and layouts/actors.md.

`python contract_caller.py ROOT NAMESPACE NAME METHOD [ARGS [KWARGS]]` calls once and prints the result, all in JSON.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import secrets
import ssl
import sys
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any, NamedTuple


class NotAuthentic(Exception):
    """The server does not hold the cluster's key, or it refuses ours."""


class ActorError(Exception):
    """The actor's answer was an error; `error` has its type, message, traceback, and whether calling again may do."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['type']}: {error['message']}")
        self.error = error


class Answer(NamedTuple):
    """A response."""

    status: int
    headers: dict[str, str]
    body: bytes


def endpoint_of(root: Path, namespace: str, name: str) -> dict[str, Any]:
    """The endpoint of an actor, one with the highest incarnation. Raises LookupError: none is announced."""
    found = []
    for path in (root / "actors" / namespace / name).glob("*.json"):
        with contextlib.suppress(FileNotFoundError):  # it has just ended
            found.append(json.loads(path.read_bytes()))
    if not found:
        raise LookupError(f"no actor {name!r} is announced in the namespace {namespace!r}")
    return max(found, key=lambda endpoint: int(endpoint.get("incarnation", 0)))


def key_of(root: Path) -> tuple[str, bytes]:
    """The id and the bytes of the key for new connections."""
    key = json.loads((root / "secrets/rpc.json").read_bytes())["keys"][0]
    cluster = json.loads((root / "cluster.json").read_bytes())
    identity = f"fray-cluster {cluster['cluster_id']} {cluster['addresses'][0]}"
    return key["id"], mac(base64.b64decode(key["secret"]), identity.encode())


def mac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


def joined(*parts: bytes) -> bytes:
    """The parts, each after its length."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def seal(key: bytes, position: int, data: bytes) -> str:
    """The seal at that position of the key's direction."""
    return mac(key, position.to_bytes(8, "big") + data).hex()


def direction_key(secret: bytes, way: str, *of_connection: str) -> bytes:
    """way: "up" to the server, "down" to the client; then both nonces, identity and fingerprint."""
    return mac(secret, joined(*(part.encode() for part in ("fray-rpc", way, *of_connection))))


class Connection:
    """To one actor, for one call at a time.

    Args:
        client: names this caller; under the same name a call can be asked for again over another connection.
    """

    def __init__(self, endpoint: dict[str, Any], key: tuple[str, bytes], client: str = "") -> None:
        self._client = client or secrets.token_hex(8)
        self._name = endpoint["name"]
        self._sent = 0
        self._http, fingerprint = opened(endpoint)
        key_id, secret = key
        nonce = secrets.token_hex(16)
        hello = self._post("/session", {"fray-key": key_id, "fray-nonce": nonce}).headers
        there = nonce, hello.get("fray-nonce", ""), hello.get("fray-identity", ""), fingerprint
        self._up, self._down = direction_key(secret, "up", *there), direction_key(secret, "down", *there)
        if not hmac.compare_digest(hello.get("fray-proof", ""), seal(self._down, 0, b"proof")):
            raise NotAuthentic("the server's proof is wrong")
        if hello["fray-identity"] != endpoint["nonce"]:
            raise ConnectionError("another server is at this address: look the endpoint up again")
        if self._post("/proof", {"fray-proof": seal(self._up, 0, b"json")}).status != 200:
            raise NotAuthentic("our proof is refused")

    def call(self, method: str, args: list[Any], kwargs: dict[str, Any] | None = None, number: int = 0) -> Any:
        """The method's result, or ActorError. number: of a call that is asked for again; a new one by default."""
        call = {"args": args, "kwargs": kwargs or {}, "client": self._client, "number": number or self._sent + 1}
        return self.send(f"/v1/actors/{self._name}/methods/{method}", json.dumps(call).encode())

    def send(self, path: str, body: bytes) -> Any:
        """The answer to a sealed request."""
        self._sent += 1
        answer = self._post(path, {"fray-seal": seal(self._up, self._sent, joined(path.encode(), body))}, body)
        expected = seal(self._down, self._sent, joined(path.encode(), answer.body))
        if not hmac.compare_digest(answer.headers.get("fray-seal", ""), expected):
            raise NotAuthentic("the seal of the reply is wrong")
        told = json.loads(answer.body)
        if "error" in told:
            raise ActorError(told["error"])
        return told["result"]

    def close(self) -> None:
        self._http.close()

    def _post(self, path: str, headers: dict[str, str], body: bytes = b"") -> Answer:
        self._http.request("POST", path, body, headers)
        response = self._http.getresponse()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())


def opened(endpoint: dict[str, Any]) -> tuple[HTTPConnection, str]:
    """A connection to the endpoint, and the fingerprint of its server's certificate; "" if it has none."""
    host, _, port = endpoint["address"].rpartition(":")
    host = host.strip("[]")
    if not endpoint.get("fingerprint"):
        return HTTPConnection(host, int(port)), ""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the fingerprint identifies it
    http = HTTPSConnection(host, int(port), context=context)
    http.connect()
    shown = hashlib.sha256(http.sock.getpeercert(binary_form=True) or b"").hexdigest()
    if shown != endpoint["fingerprint"]:
        raise NotAuthentic("the certificate is not the one of the endpoint record")
    return http, shown


if __name__ == "__main__":
    root, namespace, name, method, *given = sys.argv[1:]
    arguments = [json.loads(text) for text in given]
    connection = Connection(endpoint_of(Path(root), namespace, name), key_of(Path(root)))
    print(json.dumps(connection.call(method, *(arguments or [[]]))))
