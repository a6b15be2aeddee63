"""By what a pool is looked after, when what it says of its machines changes.

**Invariant.** A machine is removed by the provider that made it, in whichever zone it is.

**Unsafe sequence.** Somebody takes `provisioning` out of a pool's record, or names another provider there: no look
asks the first one any more, and its machines are paid for ever. Or: a region is taken out, and a container there, which
nobody lists, starts its agent again and again.

**Why this cannot happen.** Each look writes what it went by, with the zones of all machines that are left, be it by
their records or by the provider's list. The next one goes by that, with a `max` of 0, until a look that did so could
read all and found no machine; and it lists those zones too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from fray_layouts.records import PoolScaling, ProvisioningSpec


def in_force(said: ProvisioningSpec | None, before: PoolScaling) -> ProvisioningSpec | None:
    """What the next look goes by: what the pool says, unless machines may be left that only another provider removes.

    Args:
        said: by the pool's record; None if it has no machines of its own.
        before: the pool as the last look left it.
    """
    last = before.provisioning
    if last is None or (said is not None and _maker(said) == _maker(last)):
        return said
    return replace(last, min=0, max=0)


def everywhere(spec: ProvisioningSpec, before: PoolScaling) -> ProvisioningSpec:
    """The same with all zones in which there may be machines; a local pool's are only ever on its own host."""
    if spec.provider == "local" or before.provisioning is None:
        return spec
    return replace(spec, zones=_in_order([*spec.zones, *before.provisioning.zones]))


def gone_by(spec: ProvisioningSpec, before: PoolScaling, left: Collection[str] | None) -> ProvisioningSpec | None:
    """What a look went by, for the next one; None if the pool may have no machine, and has none.

    left: the zone of each machine that is left; None if the look could not find out.
    """
    if left is None:
        return everywhere(spec, before)
    return replace(spec, zones=_in_order([*spec.zones, *filter(None, left)])) if left or spec.max else None


def _maker(spec: ProvisioningSpec) -> tuple[str, str]:
    """What lists a pool's machines; where programs of the provider `command` lie makes no difference."""
    settings = spec.tpu or spec.cloud_run
    return spec.provider, settings.project if settings is not None else ""


def _in_order(zones: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(zones))
