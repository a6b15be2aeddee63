"""A cluster's identity: its id and the first address at which it was. A copy of its objects is not the cluster.

**Invariant.** Nobody makes or deletes a machine, calls a process, claims a job or writes for a cluster anywhere but at
one of that cluster's addresses.

**Unsafe sequence.**

1. Somebody copies a root, with `cluster.json` and the key of its calls, to try something out.
2. A scaler on the copy lists the machines that bear the cluster's id. It has no record of those that the original made
   since, and deletes them, with the jobs on them. A caller on the copy calls the original's actors.

Or: a folder is moved away, and somebody's `fray run` makes a new cluster in its place. An agent of the old cluster
finds that its record is gone, kills its tasks, joins the new cluster and runs its jobs.

**Why this cannot happen.** `cluster.json` names the addresses at which it is valid, and a process opens a root only
under one of them. Names and labels of machines, and the keys of calls, derive from the identity, so a copy that was
adopted, or whose `cluster.json` was changed by hand, has others. A process that is at work confirms that `cluster.json`
has the identity which it opened: when an object that it knew is gone, when the doorbell of its pool names another
cluster, before a write if it has not confirmed that for `CONFIRMED_SECONDS`, between the read and the write of a claim,
before it tells of a submission, before it acknowledges a checkpoint, and after its own record was not as it had written
it. A confirmation counts from its request, because a process may be frozen before it sees the answer, and a write that
is repeated after a read needs one as the first did. If another identity is there, or none, every request counts as not
answered until the cluster is back, so tasks run on as in any outage. An agent that writes its own record on the version
that it wrote last, or has just done so, needs no further confirmation, nor does one that has just read its own name in
the lease of a role: ids are used once, so no other cluster has these records. That holds once the root was confirmed
after the record was created, or the role taken; before, they may have been written elsewhere. One case is left: the
network delivers the create a second time, late, after another cluster came to the root. Then the agent's beats are
applied there, and it trusts its leases by them, until it sees the other cluster by its doorbell, pass or a claim.
"""

from msgspec.structs import replace

from fray_layouts.records import ClusterSettings

CONFIRMED_SECONDS = 30.0
"""Seconds for which a confirmation of the root counts. Two cheap reads a minute are 3 cents a month for a process that
writes all the time. Idle agents need none: heartbeats, and the pass's lease, confirm the root."""


def identity_of(settings: ClusterSettings) -> str:
    """The text from which everything derives that lies outside the root and belongs to the cluster."""
    return f"{settings.cluster_id} {settings.addresses[0] if settings.addresses else ''}"


def why_not_here(settings: ClusterSettings, address: str, root: str) -> str:
    """Why the cluster with these settings must not be used at this address, with the remedy; "" if it may be.

    root: the root as the user gave it, for the remedy's command.
    """
    if address in settings.addresses:
        return ""
    other = f"the cluster of {settings.addresses[0]}" if settings.addresses else "a cluster that names no address"
    return (
        f"{address} holds {other}: it is a copy of that, or was moved here, or has two addresses. Nothing was done "
        f"with it. If it is a copy, make it a cluster of its own: fray init --adopt-copy {root}. If it is the cluster "
        f"itself, and none is left at the other address: fray init --add-address {root}"
    )


def why_lost(known: ClusterSettings, found: ClusterSettings | None, root: str) -> str:
    """Why a process that opened the cluster must not use the root now; "" if it may.

    Args:
        known: the settings with which the process opened the root.
        found: those in the root now; None if there are none.
    """
    if found is None:
        return f"there is no cluster at {root} any more: put {known.cluster_id} back there, or stop this process"
    if identity_of(found) == identity_of(known):
        return ""
    return (
        f"another cluster, {found.cluster_id}, is at {root} now: this process belongs to {known.cluster_id}; put that "
        "back there, or start this process again"
    )


def adopted(settings: ClusterSettings, cluster_id: str, address: str, now: float) -> ClusterSettings:
    """The settings of a copy that becomes a cluster of its own, with a new id."""
    return replace(settings, cluster_id=cluster_id, addresses=[address], created_at=now)


def also_at(settings: ClusterSettings, address: str) -> ClusterSettings | None:
    """The settings of a cluster that was moved to this address, or has it as well; its identity stays.

    None: it is there already.
    """
    return None if address in settings.addresses else replace(settings, addresses=[*settings.addresses, address])
