"""The environment variables of a task, and the files through which it informs its agent."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from fray_agents.host.network import NetworkSettings
from fray_agents.tasks.gang_environment import accelerator_variables, place_variables
from fray_layouts.records import JobRecord
from fray_layouts.spec import port_variable

PRIVATE_VAR = "FRAY_PRIVATE"
"""Variable of the tasks of a private cluster: what they launch runs there, whatever it asks for."""

TASK_DIR_VAR = "FRAY_TASK_DIR"
"""Variable with the path of the task's directory; it also tells to which task a process belongs."""

CHILDREN_MARKER = "children"
"""A file of this name in FRAY_TASK_DIR says that the task submitted children."""

ENDPOINTS_FILE = "endpoints"
"""A file of this name in FRAY_TASK_DIR lists the keys of what the task has published; its agent removes them."""


def note_endpoint(task_dir: str, key: str) -> None:
    """Tell the agent, before it is published, that the task publishes an endpoint under `key`."""
    with open(Path(task_dir, ENDPOINTS_FILE), "a", encoding="utf-8") as file:
        file.write(f"{key}\n")


def noted_endpoints(listed: bytes) -> list[str]:
    """Keys of the endpoints that a task may have published, from the list that it left."""
    return listed.decode(errors="replace").split("\n")[:-1]


THREADS_VAR = "OMP_NUM_THREADS"
"""Variable that sizes the thread pools of numerical libraries (OpenBLAS, MKL, PyTorch). Without it each task has a
thread for every core of the host, and tasks that share one slow each other down."""


_PYTHON_VARIABLES = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
"""Variables by which a Python program's output is seen at once, and a fault in native code leaves a stack."""


def inherited_environment() -> dict[str, str]:
    """The part of the agent's own environment that every task inherits; `python` is the one that runs the agent."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("FRAY_")}
    path = os.pathsep.join([os.path.dirname(sys.executable), own.get("PATH", os.defpath)])
    return {**_PYTHON_VARIABLES, **own, "PATH": path}


_SHARED_WITH_CONTAINERS = (
    "AWS_", "GOOGLE_", "CLOUDSDK_", "BOTO",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
"""Beginnings of the agent's variables that hold in an image, too: which storage it may use, and how it is reached."""


def container_environment() -> dict[str, str]:
    """The part of the agent's own environment that tasks in a container inherit; the rest describes the host."""
    own = {name: value for name, value in os.environ.items() if name.startswith(_SHARED_WITH_CONTAINERS)}
    return {**_PYTHON_VARIABLES, **own}


def job_variables(job: JobRecord) -> dict[str, str]:
    """The variables that the job itself asks for, but for FRAY_*, which it may not set."""
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
    """A task's environment: threads as many as cores, the agent's own variables, those that tell JAX of the other
    replicas, the spec's, FRAY_*; later ones win.

    In a container they come on top of the image's.

    FRAY_CLUSTER_SPEC makes `current_cluster()` in the task open the cluster that runs it.
    """
    spec = job.spec
    return {
        THREADS_VAR: str(max(1, int(spec.resources.cpu))),
        **(container_environment() if spec.environment.docker_image else inherited_environment()),
        **accelerator_variables(job, replica),
        **spec.environment.env_vars,
        **spec.environment.secret_env_vars,
        "FRAY_JOB_ID": job.id,
        "FRAY_JOB_NAME": spec.name,
        "FRAY_NAMESPACE": spec.namespace,
        "FRAY_USER": spec.user,
        "FRAY_CLUSTER_ADDRESS": root,
        "FRAY_CLUSTER_SPEC": root,
        "FRAY_ATTEMPT": str(job.attempt),
        **place_variables(job, replica, network.advertise),
        "FRAY_AGENT_ID": agent,
        "FRAY_RESULT": str(directory / "result"),
        TASK_DIR_VAR: str(directory),
        "FRAY_BIND_HOST": network.bind,
        "FRAY_ADVERTISE_HOST": network.advertise,
        "FRAY_NETWORK": network.network,
        **{port_variable(name): str(number) for name, number in ports.items()},
    }
