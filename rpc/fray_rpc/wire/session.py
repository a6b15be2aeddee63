"""The keys of one connection, and the seals (message authentication codes) that are computed with them.

**Invariant.** The receiver unpickles nothing, and allocates no memory beyond a small message, before it knows that the
data come from a holder of the RPC key, for this connection, at this position.
**Unsafe sequence.** An attacker sends a recorded request again: on this connection, on another, to another server or to
a restarted one. Or a process that took over the port answers.
**Why this cannot happen.** Both sides choose a nonce when they connect. The key of each direction derives from the RPC
key, both nonces, the server's identity, and the certificate with which that side's connection is encrypted, if it is.
Every message is sealed over its position in its direction, and a response has the position of its request. No clock is
involved.

**Unsafe sequence.** An attacker between the two sides speaks unencrypted with one and encrypted with the other, or
shows a certificate of its own.
**Why this cannot happen.** The two sides then derive different keys.

Messages are sealed with HMAC-SHA-256, which every language has. The body of a large message is sealed with AES-GMAC,
which is ten times as fast. Its nonce is the position, which never repeats under one key.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Protocol

NONCE_BYTES = 16
"""Size of a nonce: with 128 random bits no two connections ever draw the same one."""

BODY_SEAL_BYTES = 16
"""Size of the tag of AES-GMAC."""

KEY_READ_INTERVAL = 1.0
"""Least seconds between two reads of the keys by one server or cache, however many callers name unknown keys: it bounds
the requests to the bucket that strangers can cause."""

KEY_RECHECK_INTERVAL = 60.0
"""Age in seconds from which the keys are read again even if all named keys are known: one read a minute is cheap, and
bounds the time for which a dropped key is trusted."""

_MIN_SECRET_BYTES = 16
"""Least size of a secret: a shorter one could be guessed from recorded seals."""


@dataclass(frozen=True, slots=True)
class RpcKey:
    """An RPC key: a secret that all participants of a cluster share."""

    id: str
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) < _MIN_SECRET_BYTES:
            remedy = f"at least {_MIN_SECRET_BYTES} are needed"
            raise ValueError(f"RPC key {self.id!r} has {len(self.secret)} bytes; {remedy}")


class Keyring(Protocol):
    """The source of a cluster's RPC keys."""

    @property
    def encrypted(self) -> bool:
        """Whether TCP connections are encrypted; callers and servers then accept no others."""

    def keys(self, fresh: bool = False) -> list[RpcKey]:
        """All valid keys, newest first; known keys are returned at once.

        Args:
            fresh: read them again, because one is missing or may have been dropped.

        Raises:
            Exception: they cannot be read.
        """


def new_nonce() -> bytes:
    """A random value that no connection had before, as hexadecimal digits."""
    return os.urandom(NONCE_BYTES).hex().encode()


class SealSequence:
    """The seals of one direction of one connection, one for each message in order."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        # HMAC (RFC 2104) from two states of SHA-256: 0.75 us for a seal, where `hmac` takes 1.3.
        padded = key.ljust(sha256().block_size, b"\0")
        self._inner = sha256(bytes(byte ^ 0x36 for byte in padded))
        self._outer = sha256(bytes(byte ^ 0x5C for byte in padded))
        self._position = 0

    def proof(self, of: bytes = b"proof") -> bytes:
        """A seal that proves that the sender holds the key; it has position 0, which no message has.

        of: the protocol of the client: "proof" for batches of pickled calls, "json" for calls in JSON.
        """
        return self._seal(of)

    def next(self, head: bytes) -> bytes:
        """The seal of the next message.

        head: the length of its body as 8 bytes, followed by the body if that is small.
        """
        self._position += 1
        return self._seal(head)

    def next_json(self, path: bytes, body: bytes) -> bytes:
        """The seal of the next message, whose body is JSON and which goes to `path`.

        It never fits a batch of pickled calls: the seal of a batch begins with the batch's length, whose first four
        bytes are small.
        """
        return self.next(length_prefixed((path, body)))

    def body(self) -> BodySeal:
        """The seal for the large body of the message of the last call of `next`."""
        return BodySeal(self._key, self._position)

    def _seal(self, data: bytes) -> bytes:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(self._position.to_bytes(8, "big") + data)
        outer.update(inner.digest())
        return outer.hexdigest().encode()


class BodySeal:
    """AES-GMAC over a large body, chunk by chunk."""

    def __init__(self, key: bytes, position: int) -> None:
        # Imported with the first large body: a server of small calls saves 9 MB.
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        body_key = hmac.digest(key, b"body", "sha256")[:16]
        self._mac = Cipher(algorithms.AES(body_key), modes.GCM(position.to_bytes(12, "big"))).encryptor()

    def update(self, chunk: bytes | bytearray | memoryview) -> None:
        self._mac.authenticate_additional_data(chunk)

    def digest(self) -> bytes:
        """The seal over all chunks; can be called once."""
        self._mac.finalize()
        return self._mac.tag


@dataclass(frozen=True, slots=True)
class Session:
    """The seals of both directions of one connection, derived from `key`."""

    key: RpcKey
    to_server: SealSequence
    to_client: SealSequence

    @classmethod
    def derive(
        cls, key: RpcKey, client_nonce: bytes, server_nonce: bytes, identity: bytes, certificate: str = ""
    ) -> Session:
        """The session of a connection; both sides get the same one if all their arguments are the same.

        Args:
            identity: the server's identity.
            certificate: the fingerprint of the server's certificate as this side sees it; "" if not encrypted.
        """
        parts = client_nonce, server_nonce, identity, certificate.encode()
        return cls(key, *(SealSequence(_derive(key, label, *parts)) for label in (b"up", b"down")))


def constant_time_equal(seal: bytes, expected: bytes) -> bool:
    """Whether two seals are the same; takes equally long for all seals, so that the time reveals nothing."""
    return hmac.compare_digest(seal, expected)


def _derive(key: RpcKey, *parts: bytes) -> bytes:
    return hmac.digest(key.secret, length_prefixed((b"fray-rpc", *parts)), "sha256")


def length_prefixed(parts: Iterable[bytes]) -> bytes:
    """The parts as one text, each after its length, so that no other parts give the same text."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)
