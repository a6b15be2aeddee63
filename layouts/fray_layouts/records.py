"""The records: every JSON object under a root, as msgspec structs.

Each field's meaning stands here once; `layouts/README.md` says who writes which object under which condition, and the
JSON Schemas beside it are generated from these structs. Times are seconds since the epoch on the *storage's* clock
unless a field says otherwise; sizes are bytes. What a field may hold beyond its type is in `bounds`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fray_layouts.bounds import (
    Amount,
    AttemptNumber,
    Attempts,
    Base64,
    Count,
    Id,
    Interval,
    Key,
    MaybeId,
    Name,
    Number,
    Seconds,
    Time,
)
from fray_layouts.spec import JobSpec
from fray_layouts.states import AgentState, HoldingPhase, NameState, StopOrigin

LAYOUT_VERSION = 1


class Record(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What every object that is changed by compare-and-swap carries.

    Attributes:
        op: id of the write that made this body; unique, so that no two bodies of a name are equal.
        recent_ops: ids of the writes before it, newest first, at most `MAX_RECENT_OPS`.
        created_op: id of the write that created the name; kept for ever.
    """

    op: str = ""
    recent_ops: list[str] = []
    created_op: str = ""


MAX_RECENT_OPS = 8


class ClusterSettings(Record, kw_only=True):
    """`cluster.json`: what all participants must agree on. Durations in seconds.

    Attributes:
        beat_interval: between heartbeats of an agent that holds leases.
        idle_beat_interval: between heartbeats of an agent that holds none.
        poll_interval: between looks at a doorbell, at a followed job and at the own mailbox.
        pass_interval: between the coordinator's passes. With jitter and the pass's own work it must stay below two beat
            intervals, or no age accumulates.
        repair_interval: between full listings that repair what hints and indexes missed.
        quarantine: how long after the time in its name an object that may still be created is kept.
        outage_grace: how long tasks go on while the store does not answer.
        retention: how long a finished job is kept.
        inbox_patience: how long an unreadable file must lie unchanged before it is rejected.
        requeue_backoff: wait before the second attempt; doubles up to `requeue_backoff_max`.
        host_killer_limit: attempts in a row that ended with their agent's death that count as one failure.
        start_failure_limit: failed starts in a row after which an agent stops claiming.
        encrypt: calls of actors between hosts are encrypted, not only authenticated.
    """

    layout: int = LAYOUT_VERSION
    cluster_id: str = ""
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


class JobLease(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Who runs the job's current attempt. `agent` is an agent id, `host` its host name."""

    agent: Id
    host: str
    since: Time


class StopRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A wish that the job end. `reason` is shown to people; `by` says who: "user", "parent", "expired"."""

    at: Time
    reason: str = ""
    by: str = StopOrigin.USER


class ParentLink(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The job and the attempt of it that launched this one; `detached` children outlive their parent."""

    job: Id
    attempt: AttemptNumber
    detached: bool = False


class InboxOrigin(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The dropped file a job was made from: its key and the version that was read; `taken_in`: its key after that."""

    key: Key
    version: str
    staged_key: Key = ""

    @property
    def place(self) -> str:
        """Where it lies until the job is admitted."""
        return self.staged_key or self.key


class ResourceUsage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a task uses. CPU in seconds so far, cpu_percent of one core lately; memory and disk in bytes."""

    cpu_seconds: Number = 0.0
    cpu_percent: Number = 0.0
    memory: Amount = 0
    memory_peak: Amount = 0
    disk: Amount = 0


class JobResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a job returned: in `value` (JSON), in `data` (base64), or in the object `key` when it is large.

    Attributes:
        encoding: "json", "pickle" (cloudpickle, protocol 5) or "bytes".
        value: the result itself, for "json" that fits the record.
        data: base64 of the bytes, for the other encodings that fit the record.
        key: object that holds the bytes otherwise.
        size: bytes of the encoded result.
    """

    encoding: str
    value: Any = None
    data: str = ""
    key: Key = ""
    size: Count = 0


class AttemptExit(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How an attempt ended.

    Attributes:
        kind: "success", "exited" (code), "signalled" (signal), "out-of-memory", "timeout", "exception" (traceback),
            "unhealthy", "stopped", "preempted", "start-failed", "host-failed" (while it ran), "lost" (its agent died),
            "too-large" (the result).
        message: one line for people.
        code: exit code of the process.
        signal: number of the signal that ended it.
        exception: type name of what a callable raised.
        traceback: text of it.
        data: base64 of the pickled exception, if it could be pickled.
        usage: totals and peaks over the attempt.
        log_chunks: number of log chunks that were shipped; followers stop after the last.
    """

    kind: str
    message: str = ""
    code: Amount | None = None
    signal: Amount | None = None
    exception: str = ""
    traceback: str = ""
    data: str = ""
    usage: ResourceUsage | None = None
    log_chunks: Count | None = None


class PastAttempt(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One finished attempt, kept in the record for people: the last `MAX_HISTORY` of them."""

    attempt: AttemptNumber
    agent: str
    host: str
    started_at: Time
    ended_at: Time
    exit: AttemptExit


MAX_HISTORY = 5


class JobRecord(Record, kw_only=True):
    """`jobs/<job_id>.json`: the one truth about a job: its spec and its mutable state.

    Attributes:
        status: see `fray_coordinator.protocol.transitions`; one that is not known is left alone.
        attempt: number of the current attempt, from 1; only grows. The fence of every commit.
        lease: the current attempt's holder; in a job that has ended, the last one's.
        stop: set once; a job with it is never requeued or restarted.
        failures, preemptions: attempts spent from either budget.
        agent_deaths: attempts in a row that ended with their agent's death and no SIGTERM.
        start_failures: attempts in a row that could not be started.
        avoid: hosts that failed to start it lately; a claimer on one of them waits `not_before` out.
        not_before: earliest time of the next claim.
        expiring: retention has begun to delete what belongs to this job.
        driver: it stands for a program outside of jobs, which is its holder: it was born running, and has one attempt.
    """

    id: str
    spec: JobSpec
    status: str
    attempt: AttemptNumber = 1
    lease: JobLease | None = None
    stop: StopRequest | None = None
    parent: ParentLink | None = None
    inbox: InboxOrigin | None = None
    failures: Count = 0
    preemptions: Count = 0
    agent_deaths: Count = 0
    start_failures: Count = 0
    avoid_hosts: list[str] = []
    not_before: Time = 0.0
    submitted_at: Time = 0.0
    started_at: Time | None = None
    ended_at: Time | None = None
    exit: AttemptExit | None = None
    result: JobResult | None = None
    history: list[PastAttempt] = []
    expiring: bool = False
    driver: bool = False


class Holding(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One lease as its holder's heartbeat lists it.

    Attributes:
        attempt: the attempt that is (or is about to be) held.
        phase: "claiming" (not known to be applied), "running", "ending" (until terminal or the next entry exists).
    """

    attempt: AttemptNumber
    phase: str = HoldingPhase.CLAIMING
    usage: ResourceUsage | None = None


class Resources(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An amount of resources: what a task wants, what a host has, what is free. memory and disk in bytes.

    Attributes:
        cpu: cores, in thousandths.
        device: "gpu-h100", "tpu-v5litepod-16" ...: kind and variant of the accelerator; "" for none.
        device_count: accelerators (GPU) or chips of this host (TPU).
    """

    cpu: Amount = 0
    memory: Amount = 0
    disk: Amount = 0
    device: str = ""
    device_count: Amount = 0


class HintEndpoint(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Where an agent takes hints. address: "host:port"; nonce: identity of the server there."""

    address: str
    nonce: str


class AgentRecord(Record, kw_only=True):
    """`agents/<agent_id>.json`: heartbeat, capacity, leases and mailbox of one agent process.

    Attributes:
        state: "live", "dead" (declared by an observer), "left" (ended by itself with nothing held).
        beat: counter that only the agent raises.
        interval: seconds between beats that this record promises.
        holdings: leases by job id, unresolved claims included. In a dead record: the log of its burial.
        mail: someone asks the agent to look at its jobs; set by senders, cleared by an applied beat.
        drain: someone asks the agent to take no more work and to leave when it has none.
        reaped: every holding of this dead agent has been put back.
        started_at: when the process started.
        problem: what is wrong with the agent now, for people; "" if nothing is.
        preemptible: the host may be taken away at any time.
        requests: what the process had asked of the storage before this beat: "writes", "lists", "reads", "deletes".
        network: name of the network that its address belongs to; agents of one network reach one another.
        bind: address that servers on this host listen on.
        advertise: host name or address under which others reach them.
        inbound: whether they can be reached at all; actors are not placed elsewhere.
        ear: where the agent itself takes hints; None if it takes none.
        driver: it is a program outside of jobs, which runs no jobs and holds only the one that stands for it.
    """

    id: str
    host: str
    pool: Name
    state: str = AgentState.LIVE
    beat: Count = 0
    interval: Interval = 5.0
    holdings: dict[str, Holding] = {}
    mail: bool = False
    drain: bool = False
    reaped: bool = False
    capacity: Resources = msgspec.field(default_factory=Resources)
    free: Resources = msgspec.field(default_factory=Resources)
    started_at: Time = 0.0
    problem: str = ""
    preemptible: bool = False
    requests: dict[str, Count] = {}
    network: str = "default"
    bind: str = ""
    advertise: str = ""
    inbound: bool = True
    hint_endpoint: HintEndpoint | None = None
    driver: bool = False


class Suspect(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An agent whose beat stands still at `beat`, for `age` seconds; `spared` once by the mass-death guard."""

    beat: Count
    age: Seconds = 0.0
    deferred: bool = False


class PoolSummary(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What the last pass saw of a pool.

    Attributes:
        agents: live ones.
        slots: one-core tasks that they can run at once.
        ears: of a few of them, those with room first: who has submitted may tell them.
    """

    agents: Count = 0
    slots: Count = 0
    hint_endpoints: list[HintEndpoint] = []


class ReconcilerRecord(Record, kw_only=True):
    """`coordinator/reconciler.json`: the lease of the coordinator's pass and what it knows of suspects.

    Attributes:
        holder: agent id, or "once-<token>" of a `fray coordinate --once`; "" when free.
        progress: raised by the holder after each pass; the lease's heartbeat.
        holder_beat: the holder's own beat when it wrote this; lets a successor credit its observation.
        suspects: by agent id.
        pools: by pool name; a hint for claimers.
        problems: objects that raised in the last pass, with the error, for `fray fsck` and `fray doctor`; some of them.
        problems_untold: how many more there were.
        repaired_at: when the last full repair (indexes, children, retention) that has ended was begun.
    """

    holder: MaybeId = ""
    progress: Count = 0
    holder_beat: Count = 0
    suspects: dict[str, Suspect] = {}
    pools: dict[str, PoolSummary] = {}
    problems: dict[str, str] = {}
    problems_omitted: Count = 0
    repaired_at: Time = 0.0


class PendingEntry(Record, kw_only=True):
    """`pending/<pool>/...`: an index entry; everything that matters is in its name."""

    job: str
    attempt: AttemptNumber


class ChildEntry(Record, kw_only=True):
    """`children/<parent>/<attempt>/<child>`: an index entry; everything that matters is in its name."""

    child: str


class Doorbell(Record, kw_only=True):
    """`pools/<pool>/doorbell`: a hint that `pending/` changed; losing it costs latency only.

    Attributes:
        released_at: of a queue's doorbell: when the ringer last released an item.
    """

    rung_at: Time = 0.0
    released_at: Time = 0.0


class RpcSecret(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A secret of the cluster. secret: base64; retired_at: when a newer one took its place, None for the newest."""

    id: str
    secret: Base64
    created_at: Time
    retired_at: Time | None = None


class RpcSecrets(Record, kw_only=True):
    """`secrets/rpc.json`: what callers and actors authenticate one another with, newest first.

    The newest key is for new connections; a listed one is accepted until a day after its `retired_at`. Whoever meets an
    id that he does not know reads this object again, so a new key may be used at once.
    """

    keys: list[RpcSecret] = []


class NameRecord(Record, kw_only=True):
    """`names/<namespace>/<kind>/<name>.json`: who holds the name. Never deleted, so that incarnations only grow.

    Attributes:
        state: "held" or "free". A name that is held for a job that has ended is free too.
        job: id of the job it is held for; "" for what needs none (a queue).
        incarnation: raised by each taking.
        attempt: the highest attempt of the job that has announced an endpoint under this incarnation; 0 before.
        since: when it was taken.
    """

    state: str = NameState.HELD
    job: str = ""
    incarnation: Count = 1
    attempt: Attempts = 0
    since: Time = 0.0


class EndpointRecord(Record, kw_only=True):
    """`actors/<namespace>/<name>/<actor_id>.json`: where an actor is called. A caller never goes back to a lower
    (incarnation, attempt) of a name than it has seen.

    Attributes:
        job: the job that serves it, or that stands for the program outside of jobs that does.
        attempt: the job's attempt.
        incarnation: of the name, or of the group whose name it is; 0 where names are not taken.
        nonce: identity of the server, new with each start.
        address: "host:port" as advertised.
        unix: path of the server's Unix socket, for callers on `host`; "" if there is none.
        host: identity of the host, equal for processes that share its file system and memory.
        fingerprint: SHA-256 of the server's TLS certificate, in hex; "" without TLS.
        metadata: whatever the actor's owner wants to tell.
        published_at: when this was written.
    """

    namespace: str
    name: str
    actor_id: str
    job: str = ""
    attempt: Attempts = 0
    incarnation: Count = 0
    nonce: str
    address: str
    unix: str = ""
    host: str = ""
    fingerprint: str = ""
    metadata: dict[str, Any] = {}
    published_at: Time = 0.0


class CheckpointHead(msgspec.Struct, kw_only=True, omit_defaults=True):
    """First line of `work/<job_id>/checkpoints/<actor>/<number>`; the state's bytes follow.

    Attributes:
        attempt: of the job whose process wrote it.
        writer: that process, unique.
        fence: written to shut earlier attempts out, with the state that was restored.
        empty: there is no state yet.
    """

    attempt: Attempts
    writer: str
    fence: bool = False
    empty: bool = False


class Rejection(msgspec.Struct, kw_only=True):
    """`inbox/rejected/<name>.<version>.json`: why a dropped file was not admitted, and what it held."""

    key: str
    reason: str
    rejected_at: Time
    content: str
