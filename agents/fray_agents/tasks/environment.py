"""The environment variables of a task, and the files through which it informs its agent."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from fray_agents.host.network import NetworkSettings
from fray_agents.rpc.wire.buffers import LIMIT_VAR
from fray_agents.tasks.gang_environment import accelerator_variables, place_variables
from fray_layouts.records import JobRecord
from fray_layouts.spec import port_variable

PRIVATE_VAR = "FRAY_PRIVATE"
"""Variable of the tasks of a private cluster: everything that they launch runs there too, whatever it asks for."""

ARENAS_VAR = "MALLOC_ARENA_MAX"
"""Variable of glibc. Otherwise each thread keeps what it freed (30 MB), and an actor has a thread for each caller."""

TASK_DIR_VAR = "FRAY_TASK_DIR"
"""Variable with the path of the task's directory; it also identifies the task to which a process belongs."""

CHILDREN_MARKER = "children"
"""Name of a file in FRAY_TASK_DIR whose existence says that the task submitted children."""

ENDPOINTS_FILE = "endpoints"
"""Name of a file in FRAY_TASK_DIR with the keys of endpoints that the task published; its agent removes these."""


def note_endpoint(task_dir: str, key: str) -> None:
    """Record, before it is published, that the task publishes an endpoint under `key`, so that the agent removes it."""
    with open(Path(task_dir, ENDPOINTS_FILE), "a", encoding="utf-8") as file:
        file.write(f"{key}\n")


def noted_endpoints(listed: bytes) -> list[str]:
    """Keys of the endpoints that a task may have published, from the content of its endpoints file."""
    return listed.decode(errors="replace").split("\n")[:-1]


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
