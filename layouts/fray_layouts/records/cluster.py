"""Records of the whole cluster: its settings, its secrets, its pools of agents, and the reconciler's lease."""

from __future__ import annotations

import msgspec

from fray_layouts.bounds import Base64, Count, Interval, MaybeId, Seconds, Time
from fray_layouts.records.agent import HintEndpoint
from fray_layouts.records.base import Record
from fray_layouts.records.machine import ProvisioningSpec
from fray_layouts.spec import EnvironmentSpec

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


DEFAULT_HOLD_LIMIT = 6 * 3600.0
"""Longer than most jobs take, so that a gang seldom loses its turn to a job that has nothing to do with it."""


class AgentPoolRecord(Record, kw_only=True):
    """`pools/<pool>/pool.json`: settings of a pool of agents; absent if the pool has none.

    Attributes:
        environments: each agent prepares them, in this order, before it claims. They have no variables.
        provisioning: how the pool's machines are made; None if people start its agents.
        hold_limit: seconds for which an owner of a placement waits with members before jobs for whose end it may be
            waiting, though no record says so, are let in on its hosts.
    """

    environments: list[EnvironmentSpec] = msgspec.field(default_factory=list)
    provisioning: ProvisioningSpec | None = None
    hold_limit: Interval = DEFAULT_HOLD_LIMIT

    def check(self) -> None:
        """Raise InvalidInput if the numbers of machines contradict one another."""
        if self.provisioning is not None:
            self.provisioning.check("provisioning")


class Suspect(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An agent whose heartbeat does not advance.

    Attributes:
        beat: the value at which the heartbeat stands.
        age: seconds for which observers have seen that value.
        deferred: it timed out together with too many others, and got one more full time-out.
    """

    beat: Count
    age: Seconds = 0.0
    deferred: bool = False


class PoolSummary(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A pool as the last pass saw it.

    Attributes:
        agents: number of live agents.
        slots: number of one-core tasks that they can run at once.
        hint_endpoints: endpoints of a few agents, those with room first; submitters may send hints there.
    """

    agents: Count = 0
    slots: Count = 0
    hint_endpoints: list[HintEndpoint] = msgspec.field(default_factory=list)


class ReconcilerRecord(Record, kw_only=True):
    """`coordinator/reconciler.json`: the lease of the reconciler, and the suspects that it knows of.

    Attributes:
        holder: agent id, or "once-<token>" of a `fray coordinate --once`; "" when free.
        progress: raised by the holder after each pass; the lease's heartbeat.
        interval: seconds within which the holder promises its next renewal; 0: `pass_interval`. It is longer while the
            cluster is quiet.
        hint_endpoint: where the holder takes hints, so that a submitter of a gang can wake it; None: nowhere.
        holder_beat: the holder's own beat when it wrote this; with it, a successor can count the holder's silence so
            far.
        suspects: by agent id.
        pools: by pool name; a hint for claimers.
        problems: some of the objects that raised an error in the last pass, with the error; `fray fsck` and `fray
            doctor` show them.
        problems_omitted: number of further such objects.
        repaired_at: start of the last complete repair (indexes, children, retention).
    """

    holder: MaybeId = ""
    progress: Count = 0
    holder_beat: Count = 0
    interval: Seconds = 0.0
    hint_endpoint: HintEndpoint | None = None
    suspects: dict[str, Suspect] = msgspec.field(default_factory=dict)
    pools: dict[str, PoolSummary] = msgspec.field(default_factory=dict)
    problems: dict[str, str] = msgspec.field(default_factory=dict)
    problems_omitted: Count = 0
    repaired_at: Time = 0.0
