"""Records of the machines of pools: their settings, each machine's life, and the providers' answers."""

from __future__ import annotations

import msgspec

from fray_layouts.bounds import MAX_MACHINES, Count, Id, Interval, MaybeId, MaybeName, Name, Number, Pool, Seconds, Time
from fray_layouts.errors import InvalidInput
from fray_layouts.records.agent import Resources
from fray_layouts.records.base import Record
from fray_layouts.states import MachineState

Command = list[str]
"""A program and its arguments."""


class TpuSettings(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The settings of the provider `tpu` besides machine type and zones.

    Attributes:
        project: project of Google Cloud; "" for the project of the credentials.
        runtime_version: software of the hosts; "" for the one that fits the machine type.
        network, subnetwork: of the hosts; "" for the project's defaults.
        service_account: account that the hosts act as; "" for the project's default.
        image: container image with Fray in it, in which the hosts run the agent; "" installs `package`.
        package: URL of a wheel of Fray with its hash, "gs://bucket/fray_cluster-0.1.0-py3-none-any.whl#sha256=...".
    """

    project: str = ""
    runtime_version: str = ""
    network: str = ""
    subnetwork: str = ""
    service_account: str = ""
    image: str = ""
    package: str = ""


class CloudRunSettings(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The settings of the provider `cloud_run` besides its regions, which are in `zones`.

    Attributes:
        image: container image with Fray in it; see `agents/deploy`.
        project: project of Google Cloud; "" for the project of the credentials.
        service_account: account that the containers act as; "" for the project's default.
    """

    image: str
    project: str = ""
    service_account: str = ""


class CommandSettings(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The commands of the provider `command`: programs with their arguments, run without a shell.

    Attributes:
        list: prints the existing machines as JSON.
        create: makes a machine, which variables of its environment describe.
        delete: removes a machine, which variables of its environment name.
        timeout: seconds that each command may take.
    """

    list: Command
    create: Command
    delete: Command
    timeout: Interval = 60.0


class MachineSettings(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The settings of a pool's machines and their bounds, except the resources of their hosts.

    A machine is what is made and deleted together: one host, or all hosts of a TPU slice. Each host runs one agent.

    Attributes:
        provider: "local", "tpu", "cloud_run" or "command".
        machine_type: the provider's name of the type, such as "v5litepod-16"; "" if the provider has no types.
        zones: where machines may be, in order of preference; regions for "cloud_run", none for "local".
        spot: the provider may take machines away at any time, for a lower price.
        min, max: smallest and largest number of machines of the pool.
        idle_seconds: seconds without work after which a machine is released.
        max_hourly_cost: dollars an hour that all machines of the pool may cost together; None: any amount.
        hourly_cost: dollars an hour of one machine; None: the price table's value.
        labels: labels of the agents on the machines; jobs may require them.
        tpu, cloud_run, command: settings of that provider; a pool may only have those of its own provider.
    """

    provider: str
    machine_type: str = ""
    zones: list[Name] = []
    spot: bool = False
    min: Count = 0
    max: Count = 1
    idle_seconds: Seconds = 300.0
    max_hourly_cost: Number | None = None
    hourly_cost: Number | None = None
    labels: dict[str, str] = {}
    tpu: TpuSettings | None = None
    cloud_run: CloudRunSettings | None = None
    command: CommandSettings | None = None


class ProvisioningSpec(MachineSettings, kw_only=True, omit_defaults=True):
    """The settings of a pool's machines and their bounds.

    Attributes:
        capacity: resources of each host; None: those of the machine type.
    """

    capacity: Resources | None = None

    def check(self, field: str = "") -> None:
        """Raise InvalidInput, which names a part of `field`, if the numbers of machines contradict one another."""
        before = f"{field}." if field else ""
        if self.max > MAX_MACHINES:
            raise InvalidInput(f"{before}max", self.max, f"give at most {MAX_MACHINES} machines")
        if self.min > self.max:
            remedy = f"it is above max, which is {self.max}; raise max, or lower min"
            raise InvalidInput(f"{before}min", self.min, remedy)


class MachineRecord(Record, kw_only=True):
    """`machines/<pool>/<name>.json`: the life of one machine. It is written before each call that costs money.

    Attributes:
        pool, name: the pool and the machine's own name; the provider's name joins them with the cluster's id.
        state: "wanted" (an intent, nothing was called), "creating" (the provider may have been called), "up" (all of
            its hosts have an agent), "draining" (its agents claim nothing more), "deleting" (the provider may have been
            asked to remove it), "stray" (the provider has it, and its record was missing), "gone" (the provider no
            longer has it).
        provider, project, zone: where the machine is made, looked for and removed; fixed even if the pool changes.
            project: of Google Cloud; "" for that of the credentials.
        command: for the provider `command`: the commands that list and remove it, also once the pool has another
            provider.
        machine_type, spot, hosts: the settings it was made with.
        batch: name of the machine that stands for all machines of one request; its own name if it is alone.
        batch_size: machines of that request; the provider is asked once all of them have a record.
        operation: the provider's name of the operation that makes or removes it; "" if there is none.
        reason: why it was wanted; later, why it is removed; for people.
        error: the provider's last error, what the machine reported when it could not start, or why one of its hosts
            takes no work; "" for none.
        hourly_cost: dollars an hour when it was made; None if unknown.
        wanted_at, asked_at, created_at, up_at, draining_at, ended_at: when the record was written as wanted, when the
            provider was last about to be asked for it, when the provider had accepted that request, when the machine
            was first up, when it was told to drain, when it was gone. None: not yet.
        billed_at: since when it costs money; a request that waits for capacity costs none. None: not yet.
        idle_since: since when nothing needs it, whether it is up or still starting; None while something does.
        unseen_since: since when one of its hosts, though expected, has no live agent; None while all hosts have one.
        unfit_since: since when one of its agents takes no work because of a problem there; None while all may.
    """

    pool: Pool
    name: Id
    state: str = MachineState.WANTED
    provider: str = ""
    project: str = ""
    command: CommandSettings | None = None
    machine_type: str = ""
    zone: MaybeName = ""
    spot: bool = False
    hosts: Count = 1
    batch: MaybeId = ""
    batch_size: Count = 1
    operation: str = ""
    reason: str = ""
    error: str = ""
    hourly_cost: Number | None = None
    wanted_at: Time = 0.0
    asked_at: Time | None = None
    created_at: Time | None = None
    billed_at: Time | None = None
    up_at: Time | None = None
    draining_at: Time | None = None
    ended_at: Time | None = None
    idle_since: Time | None = None
    unseen_since: Time | None = None
    unfit_since: Time | None = None

    def check(self) -> None:
        """Raise InvalidInput if it has no hosts, or too many, or no place in its request."""
        if not 0 < self.hosts <= MAX_MACHINES:
            raise InvalidInput("hosts", self.hosts, f"a machine has from 1 to {MAX_MACHINES} hosts")
        if not 0 < self.batch_size <= MAX_MACHINES:
            raise InvalidInput("batch_size", self.batch_size, f"a request is for 1 to {MAX_MACHINES} machines")
        if self.batch_size > 1 and not self.batch:
            raise InvalidInput("batch", self.batch, f"name the machine that stands for all {self.batch_size}")


class ZoneAnswer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A zone's refusal of the latest request for machines.

    Attributes:
        kind: "stockout", "quota", "denied", "invalid", "unavailable", or "boot-failure": a machine had no agents.
        text: the provider's own words.
        at: when the provider answered.
        until: no more machines are requested in this zone before this time.
        times: refusals of this kind in a row.
    """

    kind: str
    text: str = ""
    at: Time = 0.0
    until: Time = 0.0
    times: Count = 1


class PoolScaling(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A pool as the scaler's last run left it.

    Attributes:
        wanted: number of machines that the waiting work and `min` call for.
        machines: number of machines that exist or may come to exist.
        hourly_cost: dollars an hour of these machines.
        limit: what keeps the pool from growing: "max", "cost", "zones" (none of them grants any), "" for nothing.
        zones: by zone, the refusals that still count.
        problem: why the scaler cannot manage the pool, for people; "" if it can.
        accounts: provider settings under which machines of the pool may still exist, with their zones: the current
            ones, and earlier ones until a run has found no machine there.
        ran_at: when the last run over it ended; 0 if there was none.
    """

    wanted: Count = 0
    machines: Count = 0
    hourly_cost: Number = 0.0
    limit: str = ""
    zones: dict[str, ZoneAnswer] = {}
    problem: str = ""
    accounts: list[ProvisioningSpec] = []
    ran_at: Time = 0.0


class ScalerRecord(Record, kw_only=True):
    """`coordinator/scaler.json`: the lease of the scaler, and the findings of its last run.

    Attributes:
        holder: agent id, or "<what>-<token>" of another process; "" when free.
        progress: raised by the holder at each run; the lease's heartbeat.
        scope: the pools that the holder scales; other processes scale the others, without the lease.
        pools: by name, the pools that have a provider or still have machines of one.
    """

    holder: MaybeId = ""
    progress: Count = 0
    scope: list[Pool] = msgspec.field(default_factory=list)
    pools: dict[str, PoolScaling] = msgspec.field(default_factory=dict)
