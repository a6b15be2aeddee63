"""Where a run of the scaler may act: the accounts in which a pool has machines, and the pools of this process.

**Accounts** of providers: those in which a pool has machines, whatever its record says now.

**Invariant.** A machine is looked for, and deleted, in the account where it was made.

**Unsafe sequence.**

1. Somebody removes `provisioning` from a pool's record, or names another provider or project there.
2. No run of the scaler asks the first provider any more.
3. Its machines are billed for ever.

Or: a slow run, which read the pool before the change, makes a machine in the first account after another run has found
nothing there. Or: a region is removed, and a container there, which nobody lists, starts its agent again and again.

**Why this cannot happen.** An intent says where its machine is made, and each run first reads all records. It looks in
every account that one of them names, and makes no machine there unless the pool's record says so. A machine without a
record can only be in an account where the last run could have made one, or found one. The scaler's record lists these
accounts until a run that could read everything has found nothing there.

**Scope**: the pools that a process may scale. These are the ones that its user named or described; for agents on
machines, every pool.

**Invariant.** A process runs a program of a pool, or uses its user's rights at a cloud, only for pools that this user
named on the command line or described in a file of their own. Nothing that is written to the bucket adds a pool. The
exception is an agent on a machine that Fray made: it has every pool, since it runs what anybody writes to the bucket
anyway.

**Unsafe sequence.**

1. Somebody with write access to the bucket writes a pool with the provider `command`, or the record of a machine with
   such commands. Or they change a pool's settings to a thousand machines, or to agents on a laptop.
2. A user runs `fray run`, which only waits. No other process scales, so this one reads all pools.
3. The commands run as the user, on the user's laptop, or the user pays for the machines.

**Why this cannot happen.** A run of the scaler looks only at pools of its scope. A pool that the user named is scaled
as its record says: that user trusts whoever may write it. A pool that the user described is scaled only while its
record says the same as the description, or allows no machine at all, and only in the account that it describes: what
machines' records and the scaler's own record say about other accounts and commands counts for nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from fray_layouts.records import CloudRunSettings, MachineRecord, PoolScaling, ProvisioningSpec, TpuSettings


class Account(NamedTuple):
    """A place that a provider lists as a whole.

    For the provider `command` it makes no difference where its programs are.

    Attributes:
        project: of Google Cloud; "" for the project of the credentials, and for other providers.
    """

    provider: str
    project: str


def account_of(spec: ProvisioningSpec) -> Account:
    """The account in which machines of this spec are made."""
    settings = spec.tpu or spec.cloud_run
    return Account(spec.provider, settings.project if settings is not None else "")


def account_of_machine(machine: MachineRecord) -> Account:
    """The account in which a machine is."""
    return Account(machine.provider, machine.project)


def accounts(
    said: ProvisioningSpec | None, left: Iterable[ProvisioningSpec], machines: Iterable[MachineRecord]
) -> dict[Account, ProvisioningSpec]:
    """The accounts in which a pool is scaled, with all zones that may have machines. The pool's own comes last.

    Args:
        said: what the pool's record says; None if it has no machines of its own.
        left: what the last runs left there (`PoolScaling.accounts`).
        machines: those of the pool that are not gone.
    """
    found: dict[Account, ProvisioningSpec] = {}
    for spec in [*left, *map(_spec_of, machines), *([said] if said is not None else [])]:
        account = account_of(spec)
        known = found.pop(account, spec)
        found[account] = replace(spec, zones=_in_order([*spec.zones, *known.zones]))
    if said is not None and said.provider == "local":  # it has machines only on its own host
        found[account_of(said)] = said
    return found


def in_force(said: ProvisioningSpec | None, found: ProvisioningSpec) -> ProvisioningSpec:
    """The spec by which a pool is scaled in one of its `accounts`.

    The pool may have machines only where its record says so.
    """
    if said is not None and account_of(said) == account_of(found):
        return said
    return replace(found, min=0, max=0)


def still_managed(
    spec: ProvisioningSpec, found: ProvisioningSpec, zones: Collection[str] | None
) -> list[ProvisioningSpec]:
    """The specs from which the next run knows that it must list an account; [] if no machine can be there.

    Args:
        spec: the spec in force there.
        found: the same with all zones that were listed.
        zones: the zones of all machines that are left; None if the run could not find out.
    """
    if zones is None:
        return [found]
    return [replace(spec, zones=_in_order([*spec.zones, *filter(None, zones)]))] if zones or spec.max else []


def with_others(
    found: Mapping[str, PoolScaling],
    now: Mapping[str, PoolScaling],
    before: Mapping[str, PoolScaling],
    looked_at: Collection[str],
) -> dict[str, PoolScaling]:
    """What a run found, with the accounts that another run, which ran at the same time, has added meanwhile.

    Args:
        now: the pools in the scaler's record.
        before: the same, as the run read them.
        looked_at: the pools over which the run went; the others stay as they are.
    """
    merged = {pool: theirs for pool, theirs in now.items() if pool not in looked_at} | dict(found)
    for pool, theirs in now.items():
        if pool not in looked_at:
            continue
        mine = merged.get(pool, PoolScaling())
        known = {account_of(spec) for spec in (*mine.accounts, *before.get(pool, PoolScaling()).accounts)}
        added = [spec for spec in theirs.accounts if account_of(spec) not in known]
        if added:
            merged[pool] = replace(mine, accounts=[*added, *mine.accounts])
    return merged


def _spec_of(machine: MachineRecord) -> ProvisioningSpec:
    """A spec that opens the account of a machine, and lists its zone."""
    zones, project = [machine.zone] if machine.zone else [], machine.project
    return ProvisioningSpec(
        provider=machine.provider,
        machine_type=machine.machine_type,
        zones=zones,
        tpu=TpuSettings(project=project) if machine.provider == "tpu" else None,
        cloud_run=CloudRunSettings(image="", project=project) if machine.provider == "cloud_run" else None,
        command=machine.command,
    )


def _in_order(zones: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(zones))


@dataclass(frozen=True, slots=True)
class ScalingScope:
    """The pools that a process may scale.

    Attributes:
        named: pools that the user named; they are scaled as their records say.
        described: settings in the user's own file, by pool.
        every: all pools, as their records say: for agents on machines, which run what anybody writes to the bucket
            anyway, and which must not leave another pool's last machine behind.
    """

    named: frozenset[str] = frozenset()
    described: Mapping[str, ProvisioningSpec] = field(default_factory=dict)
    every: bool = False

    @property
    def pools(self) -> frozenset[str]:
        """The pools that the user named or described."""
        return self.named | self.described.keys()

    def among(self, known: Iterable[str]) -> frozenset[str]:
        """The pools of the scope. known: the names of all pools that the process has found."""
        return self.pools | frozenset(known) if self.every else self.pools


def difference(scope: ScalingScope, pool: str, said: ProvisioningSpec | None) -> str:
    """How a pool's record differs from its description in the user's file; "" if the pool may be scaled.

    Args:
        said: what the record says; None if the pool has no machines of its own.
    """
    described = scope.described.get(pool)
    if pool in scope.named or described is None:
        return ""
    if said is None:
        return "the cluster has no such pool of machines"
    if said in (described, replace(described, min=0, max=0)):  # the second is what `fray down` writes
        return ""
    fields = [name for name in said.__struct_fields__ if getattr(said, name) != getattr(described, name)]
    return f"the cluster has other settings for it ({', '.join(fields)})"


def allowed_accounts(
    scope: ScalingScope, pool: str, found: Mapping[Account, ProvisioningSpec]
) -> dict[Account, ProvisioningSpec]:
    """Those of a pool's accounts in which the process may scale it. found: from `provisioning.accounts`."""
    described = scope.described.get(pool)
    if pool in scope.named or described is None:
        return dict(found)
    return {account: spec for account, spec in found.items() if account == account_of(described)}


def left_out(scope: ScalingScope, scaled: Mapping[str, float], holder: frozenset[str], since: float) -> frozenset[str]:
    """The pools of the scope that the holder of the scaler's role does not scale, and that nobody has scaled lately.

    Args:
        scaled: when the last run over each pool ended.
        holder: the pools in the holder's scope.
        since: a pool that was scaled after this time has another process that scales it.
    """
    return frozenset(pool for pool in scope.among(scaled) - holder if scaled.get(pool, 0.0) < since)
