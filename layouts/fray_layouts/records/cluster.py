"""Records of the whole cluster: its settings, and the secrets with which its members authenticate one another."""

from __future__ import annotations

import msgspec

from fray_layouts.bounds import Base64, Count, Interval, Seconds, Time
from fray_layouts.records.base import Record

LAYOUT_VERSION = 1
"""Raised when records or keys change so that an older Fray would do harm; a root of another version is refused."""


class ClusterSettings(Record, kw_only=True):
    """`cluster.json`: the settings that all participants must share. Durations in seconds.

    Attributes:
        cluster_id: random; a copy of a root that is adopted gets another.
        addresses: where the root is, each in its canonical form (`Store.address`). With the id, the first one is
            the cluster's identity, from which the names of machines and the keys of calls derive.
        beat_interval: between heartbeats of an agent that holds leases.
        idle_beat_interval: between heartbeats of an agent that holds none.
        poll_interval: between polls of a doorbell, of a followed job and of the agent's own mailbox.
        pass_interval: between the reconciler's passes. With jitter and the pass's own work it must stay below two
            heartbeat intervals; otherwise an agent's silence never adds up to a time-out.
        repair_interval: between full listings that repair what hints and indexes missed.
        quarantine: how long an object that may still be created is kept after the time in its name.
        outage_grace: how long tasks go on while the store does not answer.
        retention: how long a finished job is kept.
        inbox_patience: how long an unreadable file must lie unchanged before it is rejected.
        requeue_backoff: wait before the second attempt; doubles up to `requeue_backoff_max`. Gangs wait less at first.
        host_killer_limit: attempts in a row whose agent died that count as one failure of the job.
        start_failure_limit: failed starts in a row after which an agent stops claiming.
        encrypt: whether calls of actors between hosts are encrypted, not only authenticated.
    """

    layout: int = LAYOUT_VERSION
    cluster_id: str = ""
    addresses: list[str] = msgspec.field(default_factory=list)
    created_at: Time = 0.0
    beat_interval: Interval = 5.0
    idle_beat_interval: Interval = 60.0
    poll_interval: Interval = 1.0
    pass_interval: Interval = 7.5
    repair_interval: Seconds = 60.0
    quarantine: Seconds = 600.0
    outage_grace: Seconds = 900.0
    retention: Seconds = 30 * 86400.0
    inbox_patience: Seconds = 5.0
    requeue_backoff: Seconds = 1.0
    requeue_backoff_max: Seconds = 60.0
    host_killer_limit: Count = 3
    start_failure_limit: Count = 3
    encrypt: bool = False


class RpcSecret(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A secret of the cluster. secret: base64; retired_at: when a newer one replaced it, None for the newest."""

    id: str
    secret: Base64
    created_at: Time
    retired_at: Time | None = None


class RpcSecrets(Record, kw_only=True):
    """`secrets/rpc.json`: the secrets with which callers and actors authenticate one another, newest first.

    New connections use the newest secret. Every listed secret is accepted until a day after its `retired_at`. A process
    that meets an unknown id reads this object again, so a new secret may be used at once.
    """

    keys: list[RpcSecret] = msgspec.field(default_factory=list)
