"""Where the machines of a pool are: in which accounts of which providers, whatever the pool says now.

**Invariant.** A machine is looked for, and removed, where it was made.

**Unsafe sequence.** Somebody takes `provisioning` out of a pool's record, or names another provider or project there:
no look asks the first one any more, and its machines are paid for ever. Or: a slow look, which has read the pool before
that, makes a machine in the first one after another look has found nothing there. Or: a region is taken out, and a
container there, which nobody lists, starts its agent again and again.

**Why this cannot happen.** An intent says where its machine is made, and each look reads all records first: it looks in
every account that one of them names, and there it may make none, but for what the pool says. What has no record
may be in an account in which a machine could be made, or was, at the last look: these lie in the scaler's record, until
a look that could read all has found nothing there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from fray_layouts.records import CloudRunSettings, MachineRecord, PoolScaling, ProvisioningSpec, TpuSettings


class Account(NamedTuple):
    """What is listed as one: where programs of the provider `command` lie makes no difference.

    Attributes:
        project: of Google Cloud; "" for that of the credentials, and elsewhere.
    """

    provider: str
    project: str


def account_of(spec: ProvisioningSpec) -> Account:
    """The account in which machines are made so."""
    settings = spec.tpu or spec.cloud_run
    return Account(spec.provider, settings.project if settings is not None else "")


def account_of_machine(machine: MachineRecord) -> Account:
    """The account in which a machine is."""
    return Account(machine.provider, machine.project)


def accounts(
    said: ProvisioningSpec | None, left: Iterable[ProvisioningSpec], machines: Iterable[MachineRecord]
) -> dict[Account, ProvisioningSpec]:
    """Where a pool is looked at, with all zones in which there may be machines; what the pool says comes last.

    Args:
        said: by the pool's record; None if it has no machines of its own.
        left: what the last looks have left there (`PoolScaling.accounts`).
        machines: of the pool that are not gone.
    """
    found: dict[Account, ProvisioningSpec] = {}
    for spec in [*left, *map(_spec_of, machines), *([said] if said is not None else [])]:
        account = account_of(spec)
        known = found.pop(account, spec)
        found[account] = replace(spec, zones=_in_order([*spec.zones, *known.zones]))
    if said is not None and said.provider == "local":  # its machines are only ever on its own host
        found[account_of(said)] = said
    return found


def in_force(said: ProvisioningSpec | None, found: ProvisioningSpec) -> ProvisioningSpec:
    """By what a pool is looked at in an account that `accounts` found: it may have machines only where it says."""
    if said is not None and account_of(said) == account_of(found):
        return said
    return replace(found, min=0, max=0)


def still_looked_at(
    spec: ProvisioningSpec, found: ProvisioningSpec, zones: Collection[str] | None
) -> list[ProvisioningSpec]:
    """What the next look is told of an account, if it may have machines.

    Args:
        spec: in force there. found: the same with all zones that were looked at.
        zones: those of all machines that are left; None if the look could not find out.
    """
    if zones is None:
        return [found]
    return [replace(spec, zones=_in_order([*spec.zones, *filter(None, zones)]))] if zones or spec.max else []


def with_others(
    found: Mapping[str, PoolScaling], now: Mapping[str, PoolScaling], before: Mapping[str, PoolScaling]
) -> dict[str, PoolScaling]:
    """What a look found, with the accounts that another one, which overlapped with it, has told of meanwhile.

    Args:
        now: the pools as the scaler's record has them. before: the same, as the look has read it.
    """
    merged = dict(found)
    for pool, theirs in now.items():
        mine = merged.get(pool, PoolScaling())
        known = {account_of(spec) for spec in (*mine.accounts, *before.get(pool, PoolScaling()).accounts)}
        added = [spec for spec in theirs.accounts if account_of(spec) not in known]
        if added:
            merged[pool] = replace(mine, accounts=[*added, *mine.accounts])
    return merged


def _spec_of(machine: MachineRecord) -> ProvisioningSpec:
    """What opens the account of a machine, and lists its zone."""
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
