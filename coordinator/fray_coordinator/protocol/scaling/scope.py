"""The pools that a process may scale: those that its user named or described; for agents on machines, every pool.

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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from fray_coordinator.protocol.scaling.provisioning import Account, account_of
from fray_layouts.records import ProvisioningSpec


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
