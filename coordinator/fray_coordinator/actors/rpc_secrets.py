"""The secrets with which callers and actors authenticate one another: anybody who may read the bucket may call.

A new secret may be used at once, because a process that meets an unknown id reads the secrets again. The previous
secret stays accepted for a while, for callers that have not read the new one yet.

The key of a call derives from the secret and the cluster's identity. So nobody who has only a copy of the root reaches
the actors and agents of the original.
"""

import base64
import hmac
import secrets

from msgspec.structs import replace

from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord
from fray_layouts.object_keys import SecretKeys
from fray_layouts.records import RpcSecret, RpcSecrets

RETIRED_KEY_SECONDS = 86400.0
"""Seconds for which a secret is accepted after a newer one replaced it: callers of a day ago still get through."""

_SECRET_BYTES = 32
"""Length of a new secret: HMAC-SHA-256 makes full use of 32 bytes."""
_MIN_SECRET_BYTES = 16
"""Shortest accepted secret that somebody else wrote: 128 bits cannot be guessed."""


async def rpc_keys(core: Core) -> list[tuple[str, bytes]]:
    """(id, key of calls) of the accepted secrets, newest first; creates the first one if there is none."""
    update = await core.records.update(
        SecretKeys.rpc,
        RpcSecrets,
        lambda found: None if found and found.keys else with_new_key(RpcSecrets(), core.now(), RETIRED_KEY_SECONDS),
    )
    assert update.stored is not None, "it was found or made"
    latest = core.now() - RETIRED_KEY_SECONDS
    accepted = [key for key in update.stored.record.keys if key.retired_at is None or key.retired_at > latest]
    return [(key.id, key_of_calls(_secret(key), core.identity)) for key in accepted]


def key_of_calls(secret: bytes, identity: str) -> bytes:
    """The key with which this cluster's processes authenticate one another."""
    return hmac.digest(secret, f"fray-cluster {identity}".encode(), "sha256")


def _secret(key: RpcSecret) -> bytes:
    try:
        secret = base64.b64decode(key.secret, validate=True)
    except ValueError:  # the error's message would show the secret
        secret = b""
    if len(secret) < _MIN_SECRET_BYTES:
        raise BadRecord(f"{SecretKeys.rpc} holds a key {key.id!r} that is unusable; replace it: fray rotate --at-once")
    return secret


async def rotate_keys(core: Core, kept: float = RETIRED_KEY_SECONDS) -> int:
    """Create a new secret, and drop those that were replaced longer than `kept` seconds ago (0: all others).

    Returns:
        The number of secrets that are accepted now.
    """
    update = await core.records.update(
        SecretKeys.rpc, RpcSecrets, lambda found: with_new_key(found or RpcSecrets(), core.now(), kept)
    )
    assert update.stored is not None, "it was made"
    return len(update.stored.record.keys)


def with_new_key(found: RpcSecrets, now: float, kept: float) -> RpcSecrets:
    """The record with a new secret, drawn from the operating system, in first place."""
    secret = base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()
    fresh = RpcSecret(id=secrets.token_hex(8), secret=secret, created_at=now)
    old = [replace(key, retired_at=now if key.retired_at is None else key.retired_at) for key in found.keys]
    return replace(found, keys=[fresh, *(key for key in old if now - (key.retired_at or now) < kept)])
