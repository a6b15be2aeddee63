"""Records of the machines that a pool may have: what is made, what was made, and what was answered."""

from __future__ import annotations

import msgspec

from fray_layouts.bounds import Count, Id, Interval, MaybeId, MaybeName, Name, Number, Pool, Seconds, Time
from fray_layouts.records.agent import Resources
from fray_layouts.records.base import Record
from fray_layouts.states import MachineState

Command = list[str]
"""A program and its arguments."""


class TpuSettings(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The settings of the provider `tpu` besides a type and zones.

    Attributes:
        project: of Google Cloud; "" for the one of the credentials.
        runtime_version: software of the hosts; "" for the one that fits the type.
        network, subnetwork: of the hosts; "" for the project's default ones.
        service_account: that the hosts act as; "" for the project's default one.
        image: container that the hosts run the agent in; "" to install it by pip.
        package: what pip installs there; "" for the scaler's own version of Fray.
    """

    project: str = ""
    runtime_version: str = ""
    network: str = ""
    subnetwork: str = ""
    service_account: str = ""
    image: str = ""
    package: str = ""


class CloudRunSettings(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The settings of the provider `cloud_run` besides regions, which stand in `zones`.

    Attributes:
        image: container with Fray in it; see `agents/deploy`.
        project: of Google Cloud; "" for the one of the credentials.
        service_account: that the containers act as; "" for the project's default one.
    """

    image: str
    project: str = ""
    service_account: str = ""


class CommandSettings(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The commands of the provider `command`: programs with their arguments, run without a shell.

    Attributes:
        list: prints the machines that there are, as JSON.
        create: makes a machine; told by variables of its environment.
        delete: removes a machine; told by variables of its environment.
        timeout: seconds that each of them may take.
    """

    list: Command
    create: Command
    delete: Command
    timeout: Interval = 60.0


class MachineSettings(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The settings of a pool's machines and their bounds, but for the resources of their hosts.

    A machine is what is made and deleted at once: one host, or all hosts of a TPU slice. Each host runs one agent.

    Attributes:
        provider: "local", "tpu", "cloud_run" or "command".
        machine_type: as the provider names it, such as "v5litepod-16"; "" where it has none.
        zones: where machines may be, in order of preference; regions for "cloud_run", none for "local".
        spot: the provider may take machines away at any time, for a lower price.
        min, max: machines of the pool.
        idle_seconds: without work before a machine is released.
        max_hourly_cost: dollars an hour that all machines of the pool may cost together; None: any amount.
        hourly_cost: dollars an hour of one machine; None: as the price table says.
        labels: of the agents on the machines; jobs may ask for them.
        tpu, cloud_run, command: what that provider needs; only the pool's own may be given.
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
        capacity: of each host; None: as the machine type has it.
    """

    capacity: Resources | None = None


class MachineRecord(Record, kw_only=True):
    """`machines/<pool>/<name>.json`: the life of one machine, written before each call that costs money.

    Attributes:
        pool, name: of the machine; the provider's name is made of them and of the cluster's id.
        state: "wanted" (an intent, nothing was called), "creating" (the provider may have been called), "up" (all of
            its hosts have an agent), "draining" (its agents claim nothing more), "deleting" (the provider may have been
            told to remove it), "gone" (the provider no longer has it).
        provider, project, zone: where it is made, which does not change with the pool: it is looked for, and removed,
            there. project: of Google Cloud; "" for that of the credentials.
        command: of the provider `command`, what lists and removes it once the pool has another provider.
        machine_type, spot, hosts: as it is made.
        batch: name of the machine that stands for all that are made by one request; its own if it is alone.
        batch_size: machines of that request; they are asked for once all of them have a record.
        operation: the provider's name of what makes it, or removes it; "" if it has none.
        reason: why it was wanted; later why it goes, for people.
        error: the provider's last error, what the machine said as it could not start, or why one of its hosts takes no
            work; "" for none.
        hourly_cost: dollars an hour when it was made; None if nobody knows.
        wanted_at, asked_at, created_at, up_at, draining_at, ended_at: when it was written as wanted, when the provider
            was last about to be asked for it, when that had taken the request, when it was up first, when it was told
            to drain, when it was gone. None: not yet.
        billed_at: since when it costs money: a request that waits for capacity does not. None: not yet.
        idle_since: since when nothing needs it, be it up or on its way; None while something does.
        unseen_since: since when a machine that should be there has no agent that beats; None while all have.
        unfit_since: since when one of its agents takes no work because something is wrong there; None while all may.
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


class ZoneAnswer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The answer of a zone to the last request for machines that it did not grant.

    Attributes:
        kind: "stockout", "quota", "denied", "invalid", "unavailable", or "boot-failure": a machine had no agents.
        text: the provider's own words.
        at: when it was answered.
        until: before which it is asked for no more machines.
        times: answers of this kind in a row.
    """

    kind: str
    text: str = ""
    at: Time = 0.0
    until: Time = 0.0
    times: Count = 1


class PoolScaling(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A pool as the last look saw it.

    Attributes:
        wanted: machines that the waiting work and `min` ask for.
        machines: that there are, or may come.
        hourly_cost: dollars an hour of these.
        limit: what keeps it from more: "max", "cost", "zones" (none of them grants any), "" for nothing.
        zones: by zone, the answers that still count.
        problem: why the pool cannot be looked after, for people; "" if it can.
        accounts: of providers in which there may be machines, each with the zones of those that are left: where the
            pool may have some, and where it had, until a look has found none there.
    """

    wanted: Count = 0
    machines: Count = 0
    hourly_cost: Number = 0.0
    limit: str = ""
    zones: dict[str, ZoneAnswer] = {}
    problem: str = ""
    accounts: list[ProvisioningSpec] = []


class ScalerRecord(Record, kw_only=True):
    """`coordinator/scaler.json`: the lease of the scaler, and what its last look found.

    Attributes:
        holder: agent id, or "<what>-<token>" of another process; "" when free.
        progress: raised by the holder at each look; the lease's heartbeat.
        looked_at: when the last look ended.
        pools: by pool, of those that have a provider, or machines that are left of one.
    """

    holder: MaybeId = ""
    progress: Count = 0
    looked_at: Time = 0.0
    pools: dict[str, PoolScaling] = msgspec.field(default_factory=dict)
