"""The variables by which the replicas of a job find one another: Fray's own, and those of JAX and TPUs.

What jax 0.10 reads (`jax/_src/distributed.py`, `jax/_src/clusters/cloud_tpu_cluster.py`):

- `jax.distributed.initialize()` uses JAX_COORDINATOR_ADDRESS as its argument `coordinator_address`. Only on TPUs it
  finds the number of processes and its own, from the variables below or from the VM's metadata, which say the same.
  Elsewhere a program has to pass them: JAX_NUM_PROCESSES and JAX_PROCESS_ID hold them.
- On TPUs it reads TPU_WORKER_ID, TPU_WORKER_HOSTNAMES (of its own slice, joined by commas), MEGASCALE_NUM_SLICES and
  MEGASCALE_SLICE_ID. Its process number is worker + slice * workers, which is the replica's number.
- libtpu connects slices through the host MEGASCALE_COORDINATOR_ADDRESS, at MEGASCALE_PORT. Without metadata it reads
  TPU_ACCELERATOR_TYPE, too.
"""

from __future__ import annotations

from fray_agents.rpc.wire.sockets import host_and_port
from fray_coordinator.protocol.placements.gang_ports import COORDINATOR_PORT, MEGASCALE_PORT
from fray_layouts.records import JobRecord, PlacementMember
from fray_layouts.spec import is_gang


def place_variables(job: JobRecord, replica: int, address: str) -> dict[str, str]:
    """The FRAY_* variables for the replica's number and the other replicas. address: this host's."""
    members = _by_replica(job)
    hosts = list(dict.fromkeys(member.agent for member in members))
    slices = job.spec.slices or 1
    place = {
        "FRAY_REPLICA": str(replica),
        "FRAY_REPLICAS": str(job.spec.replicas),
        "FRAY_INDEX": str(replica),
        "FRAY_WORKERS": ";".join(member.address for member in members) or address,
        "FRAY_HOST": str(hosts.index(members[replica].agent) if members else 0),
        "FRAY_HOSTS": str(len(hosts) or 1),
        "FRAY_SLICE": str(replica * slices // job.spec.replicas),
        "FRAY_SLICES": str(slices),
    }
    coordinator = _coordinator(members, COORDINATOR_PORT)
    return place | ({"FRAY_COORDINATOR": coordinator} if coordinator else {})


def accelerator_variables(job: JobRecord, replica: int) -> dict[str, str]:
    """The variables that JAX and TPUs read; the job's own variables override them."""
    if not (members := _by_replica(job)):
        return {}
    jax = {"JAX_NUM_PROCESSES": str(job.spec.replicas), "JAX_PROCESS_ID": str(replica)}
    if coordinator := _coordinator(members, COORDINATOR_PORT):
        jax["JAX_COORDINATOR_ADDRESS"] = coordinator
    return jax | _tpu_variables(job, replica, members)


def _tpu_variables(job: JobRecord, replica: int, members: list[PlacementMember]) -> dict[str, str]:
    slices = job.spec.slices
    if not slices:
        return {}
    number, worker = divmod(replica, job.spec.replicas // slices)
    own = members[replica - worker : replica - worker + job.spec.replicas // slices]
    tpu = {
        "TPU_WORKER_ID": str(worker),
        "TPU_WORKER_HOSTNAMES": ",".join(member.address for member in own),
    }
    if (place := members[replica].slice) is not None:
        tpu["TPU_ACCELERATOR_TYPE"] = place.type
    if slices > 1:
        tpu |= {
            "MEGASCALE_COORDINATOR_ADDRESS": members[0].address,
            "MEGASCALE_NUM_SLICES": str(slices),
            "MEGASCALE_SLICE_ID": str(number),
        }
        if MEGASCALE_PORT in members[0].ports:
            tpu["MEGASCALE_PORT"] = str(members[0].ports[MEGASCALE_PORT])
    return tpu


def _by_replica(job: JobRecord) -> list[PlacementMember]:
    """The members in the order of the replicas that they run; [] if the job is no gang."""
    members = job.placement.members if job.placement is not None and is_gang(job.spec) else []
    by_replica = {replica: member for member in members for replica in member.bundles}
    return [by_replica[replica] for replica in sorted(by_replica)]


def _coordinator(members: list[PlacementMember], name: str) -> str:
    """The "address:port" where replica 0 listens for the others; "" if its host holds no such port."""
    port = members[0].ports.get(name) if members else None
    return host_and_port(members[0].address, port) if port is not None else ""
