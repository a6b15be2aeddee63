"""The environment variables of a task, also in a gang, and the limits that its runner enforces.

The replicas of a job find one another by Fray's own variables, and by those of JAX and TPUs. What jax 0.10 reads
(`jax/_src/distributed.py`, `jax/_src/clusters/cloud_tpu_cluster.py`):

- `jax.distributed.initialize()` uses JAX_COORDINATOR_ADDRESS as its argument `coordinator_address`. Only on TPUs it
  finds the number of processes and its own, from the variables below or from the VM's metadata, which say the same.
  Elsewhere a program has to pass them: JAX_NUM_PROCESSES and JAX_PROCESS_ID hold them.
- On TPUs it reads TPU_WORKER_ID, TPU_WORKER_HOSTNAMES (of its own slice, joined by commas), MEGASCALE_NUM_SLICES and
  MEGASCALE_SLICE_ID. Its process number is worker + slice * workers, which is the replica's number.
- libtpu connects slices through the host MEGASCALE_COORDINATOR_ADDRESS, at MEGASCALE_PORT. Without metadata it reads
  TPU_ACCELERATOR_TYPE, too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from fray_agents.runner.limits import Limits
from fray_coordinator.protocol.placements.launching import COORDINATOR_PORT, MEGASCALE_PORT
from fray_layouts.records import JobRecord, PlacementMember
from fray_layouts.spec import ResourceSpec, is_gang, port_variable
from fray_rpc.wire.buffers import LIMIT_VAR
from fray_rpc.wire.http_connection import host_and_port
from fray_runtime.current_task import TASK_DIR_VAR
from fray_runtime.network import NetworkSettings

ARENAS_VAR = "MALLOC_ARENA_MAX"
"""Variable of glibc. Otherwise each thread keeps what it freed (30 MB), and an actor has a thread for each caller."""

THREADS_VAR = "OMP_NUM_THREADS"
"""Variable with the size of the thread pools of numerical libraries (OpenBLAS, MKL, PyTorch). Without it each task has
a thread for every core of the host, and tasks on one host slow each other down."""


_PYTHON_VARIABLES = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
"""Variables that make a Python program's output visible at once, and a fault in native code print a stack."""


def inherited_environment() -> dict[str, str]:
    """The part of the agent's own environment that every task inherits; `python` is the agent's interpreter."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("FRAY_")}
    path = os.pathsep.join([os.path.dirname(sys.executable), own.get("PATH", os.defpath)])
    return {**_PYTHON_VARIABLES, **own, "PATH": path}


_SHARED_WITH_CONTAINERS = (
    "AWS_", "GOOGLE_", "CLOUDSDK_", "BOTO",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
"""Prefixes of the agent's variables that apply in an image, too: credentials of the storage, and proxies."""


def container_environment() -> dict[str, str]:
    """The part of the agent's own environment that tasks in containers inherit; the rest describes the host."""
    own = {name: value for name, value in os.environ.items() if name.startswith(_SHARED_WITH_CONTAINERS)}
    return {**_PYTHON_VARIABLES, **own}


def job_variables(job: JobRecord) -> dict[str, str]:
    """The variables that the job itself asks for, without FRAY_*, which a job may not set."""
    asked = {**job.spec.environment.env_vars, **job.spec.environment.secret_env_vars}
    return {name: value for name, value in asked.items() if not name.startswith("FRAY_")}


def task_environment(
    job: JobRecord,
    root: str,
    agent: str,
    directory: Path,
    network: NetworkSettings,
    ports: Mapping[str, int],
    replica: int = 0,
) -> dict[str, str]:
    """The environment of a task: thread counts, the agent's variables, those for JAX, the spec's, and FRAY_*.

    Where a name occurs twice, the later of these wins. In a container they override those of the image.

    FRAY_CLUSTER_SPEC makes `current_cluster()` in the task open the cluster that runs it.
    """
    spec = job.spec
    return {
        THREADS_VAR: str(max(1, int(spec.resources.cpu))),
        **(container_environment() if spec.environment.docker_image else inherited_environment()),
        **accelerator_variables(job, replica),
        **({ARENAS_VAR: "1"} if spec.resources.memory_limit else {}),
        **spec.environment.env_vars,
        **spec.environment.secret_env_vars,
        "FRAY_JOB_ID": job.id,
        "FRAY_JOB_NAME": spec.name,
        "FRAY_NAMESPACE": spec.namespace,
        "FRAY_USER": spec.user,
        "FRAY_CLUSTER_ADDRESS": root,
        "FRAY_CLUSTER_SPEC": root,
        "FRAY_ATTEMPT": str(job.attempt),
        "FRAY_ANCESTORS": " ".join(job.ancestors),
        **place_variables(job, replica, network.advertise),
        "FRAY_AGENT_ID": agent,
        "FRAY_RESULT": str(directory / "result"),
        TASK_DIR_VAR: str(directory),
        **({LIMIT_VAR: str(spec.resources.memory_limit)} if spec.resources.memory_limit else {}),
        "FRAY_BIND_HOST": network.bind,
        "FRAY_ADVERTISE_HOST": network.advertise,
        "FRAY_NETWORK": network.network,
        **{port_variable(name): str(number) for name, number in ports.items()},
    }


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


_PROCESSES, _PROCESSES_PER_CORE = 8_192, 256
"""Processes and threads that a task may have: so many and, for each core, so many more. A training job with its data
loaders has a few thousand, and a fork bomb stops before the 32,768 that smaller hosts have room for."""


def limits_of(resources: ResourceSpec) -> Limits:
    """The limits of one task. Memory and disk are limited only if somebody asked for an amount."""
    cpu = round(resources.cpu * 1000)
    return Limits(
        memory=resources.memory_limit,
        disk=resources.disk_limit,
        processes=_PROCESSES + _PROCESSES_PER_CORE * cpu // 1000,
        cpu=cpu,
        hard_cpu=resources.hard_cpu,
    )
