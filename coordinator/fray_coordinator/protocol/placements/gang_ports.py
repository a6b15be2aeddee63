"""The ports at which a gang's replicas meet: held by the host of replica 0, from its vote on.

**Invariant.** All replicas of an attempt are told the same port, and it is free for replica 0.

**Unsafe sequence.** Each host guesses a number that is taken on replica 0's host; or replica 0 picks one once it runs,
and the others are never told.

**Why this cannot happen.** The agent that votes for replica 0 holds the ports before it votes, and lists them with the
vote; the write that starts the gang copies them into the record that every member reads before it starts.
"""

from collections.abc import Collection

from fray_layouts.spec import JobSpec

COORDINATOR_PORT, MEGASCALE_PORT = "coordinator", "megascale"
"""Names of the ports: where the replicas' program coordinates itself, and where several TPU slices do."""


def gang_port_names(spec: JobSpec, replicas: Collection[int]) -> list[str]:
    """The names of the ports that the host of these replicas holds for the whole gang."""
    if 0 not in replicas:
        return []
    return [COORDINATOR_PORT, MEGASCALE_PORT] if spec.slices > 1 else [COORDINATOR_PORT]
