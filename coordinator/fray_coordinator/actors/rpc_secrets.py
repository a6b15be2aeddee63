"""The secrets with which callers and actors authenticate one another: who may read the bucket may call.

A new key may be used at once, because whoever meets an id that he does not know reads again. The one before stays
accepted for a while, for callers that have not read the new one yet.
"""

import base64
import secrets

from msgspec.structs import replace

from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord
from fray_layouts.object_keys import SecretKeys
from fray_layouts.records import RpcSecret, RpcSecrets

RETIRED_KEY_SECONDS = 86400.0
"""Seconds that a key is accepted after a newer one took its place."""

_SECRET_BYTES = 32
"""As many as HMAC-SHA-256 makes full use of."""
_MIN_SECRET_BYTES = 16
"""Of a secret that somebody else wrote there: 128 bits cannot be guessed."""


async def rpc_keys(core: Core) -> list[tuple[str, bytes]]:
    """(id, secret) of the accepted keys, newest first; makes the first one where there is none."""
    update = await core.records.update(
        SecretKeys.rpc,
        RpcSecrets,
        lambda found: None if found and found.keys else with_new_key(RpcSecrets(), core.now(), RETIRED_KEY_SECONDS),
    )
    assert update.stored is not None, "it was found or made"
    latest = core.now() - RETIRED_KEY_SECONDS
    accepted = [key for key in update.stored.record.keys if key.retired_at is None or key.retired_at > latest]
    return [(key.id, _secret(key)) for key in accepted]


def _secret(key: RpcSecret) -> bytes:
    try:
        secret = base64.b64decode(key.secret, validate=True)
    except ValueError:  # its message would show the secret
        secret = b""
    if len(secret) < _MIN_SECRET_BYTES:
        raise BadRecord(f"{SecretKeys.rpc} holds a key {key.id!r} that is none; replace it: fray rotate --at-once")
    return secret


async def rotate_keys(core: Core, kept: float = RETIRED_KEY_SECONDS) -> int:
    """Make a new key, and drop those whose place was taken longer than `kept` seconds ago (0: all others).

    Returns:
        How many keys are accepted now.
    """
    update = await core.records.update(
        SecretKeys.rpc, RpcSecrets, lambda found: with_new_key(found or RpcSecrets(), core.now(), kept)
    )
    assert update.stored is not None, "it was made"
    return len(update.stored.record.keys)


def with_new_key(found: RpcSecrets, now: float, kept: float) -> RpcSecrets:
    """The record with a new key, drawn from the operating system, at its head."""
    secret = base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()
    fresh = RpcSecret(id=secrets.token_hex(8), secret=secret, created_at=now)
    old = [replace(key, retired_at=now if key.retired_at is None else key.retired_at) for key in found.keys]
    return replace(found, keys=[fresh, *(key for key in old if now - (key.retired_at or now) < kept)])
