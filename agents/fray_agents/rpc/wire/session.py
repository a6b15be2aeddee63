"""Keys of one connection.

Invariant: nothing is unpickled, and no memory beyond a small message is taken, before it is known to come from a
holder of the RPC key, for this connection, at this position. Unsafe: a recorded request is sent again, on this
connection, on another, to another server or to a restarted one; a process that took over the port answers. Why not
here: both sides choose a nonce at connect; each direction's key derives from the RPC key, both nonces, the server's
identity and the certificate that its side of the connection was encrypted with, if it was; every message is sealed
over its position in the connection, and a reply's position is that of its request. No clock takes part.

Unsafe: somebody between the two speaks plainly with one and encrypted with the other, or shows a certificate of his
own. Why not here: the two sides then derive different keys.

Messages are sealed with HMAC-SHA-256, which every language has. The body of a large one is sealed with AES-GMAC, ten
times as fast, whose nonce is the position: it never repeats under one key.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Protocol

NONCE_BYTES = 16
BODY_SEAL_BYTES = 16


@dataclass(frozen=True, slots=True)
class RpcKey:
    """A key that all of a cluster share."""

    id: str
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) < 16:
            raise ValueError(f"RPC key {self.id!r} has {len(self.secret)} bytes; at least 16 are needed")


class Keyring(Protocol):
    """Where the keys come from."""

    @property
    def encrypted(self) -> bool:
        """Whether whatever goes by TCP is encrypted; callers and servers then speak no other way."""
        ...

    def keys(self, fresh: bool = False) -> list[RpcKey]:
        """All valid keys, newest first; what is known is returned at once.

        Args:
            fresh: read them again: one is missing, or may have been dropped.

        Raises:
            Exception: whatever reading them met.
        """
        ...


def new_nonce() -> bytes:
    """A value that no connection had before, as hexadecimal digits."""
    return os.urandom(NONCE_BYTES).hex().encode()


class SealSequence:
    """The seals of one direction of one connection, in order."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        # HMAC (RFC 2104) out of two states of SHA-256: 0.75 us a seal, where `hmac` takes 1.3.
        padded = key.ljust(sha256().block_size, b"\0")
        self._inner = sha256(bytes(byte ^ 0x36 for byte in padded))
        self._outer = sha256(bytes(byte ^ 0x5C for byte in padded))
        self._position = 0

    def proof(self, of: bytes = b"proof") -> bytes:
        """Shows that the key is known; position 0, so it is no message's.

        Args:
            of: what the client will speak: "proof" for tables of calls, "json" for calls in JSON.
        """
        return self._seal(of)

    def next(self, head: bytes) -> bytes:
        """The seal of the next message.

        Args:
            head: its length, and the body of a small message.
        """
        self._position += 1
        return self._seal(head)

    def next_json(self, path: bytes, body: bytes) -> bytes:
        """The seal of the next message, whose body is JSON, and of where it goes.

        It never fits a message of another form: those begin with their length, of which the first four bytes are small.
        """
        return self.next(length_prefixed((path, body)))

    def body(self) -> BodySeal:
        """The seal of the body of the message that `next` was last asked about."""
        return BodySeal(self._key, self._position)

    def _seal(self, data: bytes) -> bytes:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(self._position.to_bytes(8, "big") + data)
        outer.update(inner.digest())
        return outer.hexdigest().encode()


class BodySeal:
    """AES-GMAC over a large body, piece by piece."""

    def __init__(self, key: bytes, position: int) -> None:
        # Imported with the first large body: a server of small calls is spared 9 MB.
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        body_key = hmac.digest(key, b"body", "sha256")[:16]
        self._mac = Cipher(algorithms.AES(body_key), modes.GCM(position.to_bytes(12, "big"))).encryptor()

    def update(self, piece: bytes | bytearray | memoryview) -> None:
        """Add the next piece."""
        self._mac.authenticate_additional_data(piece)

    def digest(self) -> bytes:
        """The seal over all pieces; once."""
        self._mac.finalize()
        return self._mac.tag


@dataclass(frozen=True, slots=True)
class Session:
    """Both directions of one connection, made under `key`."""

    key: RpcKey
    to_server: SealSequence
    to_client: SealSequence

    @classmethod
    def derive(
        cls, key: RpcKey, client_nonce: bytes, server_nonce: bytes, identity: bytes, certificate: str = ""
    ) -> Session:
        """Both sides come to the same keys, if they hold the same RPC key, mean the same server and see the same.

        Args:
            certificate: the fingerprint of the server's certificate, as this side has it; empty: not encrypted.
        """
        parts = client_nonce, server_nonce, identity, certificate.encode()
        return cls(key, *(SealSequence(_derive(key, label, *parts)) for label in (b"up", b"down")))


def constant_time_equal(seal: bytes, expected: bytes) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(seal, expected)


def _derive(key: RpcKey, *parts: bytes) -> bytes:
    return hmac.digest(key.secret, length_prefixed((b"fray-rpc", *parts)), "sha256")


def length_prefixed(parts: Iterable[bytes]) -> bytes:
    """Unambiguous: each part with its length."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)
