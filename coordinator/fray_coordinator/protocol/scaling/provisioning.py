"""The accounts of providers in which the machines of a pool are, whatever the pool's record says now.

**Invariant.** A machine is looked for, and deleted, in the account where it was made.

**Unsafe sequence.**

1. Somebody removes `provisioning` from a pool's record, or names another provider or project there.
2. No run of the scaler asks the first provider any more.
3. Its machines are billed for ever.

Or: a slow run, which read the pool before the change, makes a machine in the first account after another run has
found nothing there. Or: a region is removed, and a container there, which nobody lists, starts its agent again and
again.

**Why this cannot happen.** An intent says where its machine is made, and each run first reads all records. It looks in
every account that one of them names, and makes no machine there unless the pool's record says so. A machine without a
record can only be in an account where the last run could have made one, or found one. The scaler's record lists these
accounts until a run that could read everything has found nothing there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
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
