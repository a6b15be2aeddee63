"""The ports at which a gang's replicas meet. The host of replica 0 holds them from its vote on.

**Invariant.** All replicas of an attempt get the same port, and replica 0 can listen on it.

**Unsafe sequence.**

1. Each host chooses the same number without asking.
2. On the host of replica 0 another process uses that port.

Or: replica 0 picks a port once it runs, and the other replicas never learn it.

**Why this cannot happen.** The agent that votes for replica 0 holds the ports before it votes, and lists them with its
vote. The write that starts the gang copies them into the record, which every member reads before it starts.
"""

from collections.abc import Collection

from fray_layouts.spec import JobSpec

COORDINATOR_PORT, MEGASCALE_PORT = "coordinator", "megascale"
"""Names of the ports: one where the replicas' program coordinates itself, and one where several TPU slices do."""


def gang_port_names(spec: JobSpec, replicas: Collection[int]) -> list[str]:
    """The names of the ports that the host of these replicas holds for the whole gang."""
    if 0 not in replicas:
        return []
    return [COORDINATOR_PORT, MEGASCALE_PORT] if spec.slices > 1 else [COORDINATOR_PORT]
