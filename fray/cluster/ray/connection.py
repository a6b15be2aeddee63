"""The Ray that this process is connected to: connecting to it, and the names by which programs say which one.

A process is connected to one Ray at a time. "ray:auto" is the one that it is connected to or runs in, else the one that
RAY_ADDRESS names or that runs on this machine; "ray:host:6379" has its head there, and "ray://host:10001" is reached
through Ray's own proxy, from outside of its network.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from fray_layouts.errors import InvalidInput

T = TypeVar("T")

AUTO = "ray:auto"
"""The root of the Ray that a process is connected to or runs in."""

NAMESPACE = "fray"
"""Ray's namespace of the actors by which Fray works. Ray finds named actors within a namespace only."""

_PROXY_ATTEMPTS = 5
"""Times that Ray's proxy is asked for a server for this process: the one that it forks may die at once (gRPC)."""

_LISTENS_WITHIN = 10.0
"""Seconds in which a Ray's port accepts a connection, on a busy host too."""

_NOT_INSTALLED = "Ray is not installed here; install Fray with its extra: pip install 'fray-cluster[ray]'"


def is_ray(root: str) -> bool:
    """Whether a cluster's root names Ray."""
    return root.partition("?")[0].partition(":")[0] == "ray"


def import_ray(root: str = AUTO) -> Any:
    """Ray's package. Raises InvalidInput, which names `root`: it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise InvalidInput("root", root, _NOT_INSTALLED) from error
    return ray


def connected(root: str = AUTO) -> Any:
    """Ray's package, in a process that is connected to the Ray that `root` names; any, if it is connected already.

    Raises:
        InvalidInput: Ray is not installed, or there is none at that address.
    """
    ray = import_ray(root)
    if ray.is_initialized():
        return ray
    address = _address(root)
    _check_listens(root, address)
    refusal: ConnectionError | None = None
    for _ in range(_PROXY_ATTEMPTS):
        try:
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, ignore_reinit_error=True)
        except ConnectionAbortedError as error:
            refusal = error
        except ConnectionError as error:
            refusal = error
            break
        else:
            return ray
    raise InvalidInput("root", root, _remedy(refusal)) from refusal


def _check_listens(root: str, address: str) -> None:
    """Raises InvalidInput: nothing listens at an address of HOST:PORT, for which Ray itself would look for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), _LISTENS_WITHIN).close()
        except OSError as error:
            raise InvalidInput("root", root, _remedy(error)) from error


def _remedy(refusal: Exception | None) -> str:
    if "InvalidAuthToken" in str(refusal.__cause__ if refusal is not None else ""):
        return "this Ray wants its token; set RAY_AUTH_TOKEN to that of its nodes, or RAY_AUTH_TOKEN_PATH to its file"
    return f"there is no Ray ({refusal}); start it by `ray start --head`, or say where it is: ray:HOST:PORT"


def through_proxy() -> bool:
    """Whether this process is connected through Ray's own proxy, which carries less than Ray itself."""
    connection: bool = import_ray().util.client.ray.is_connected()
    return connection


def check_streams(generator: str) -> None:
    """Raises InvalidInput: nothing carries the values of this generator to this process."""
    if through_proxy():
        remedy = "Ray's proxy carries no generators: return a list, or run this program on Ray (ray job submit)"
        raise InvalidInput("generator", generator, remedy)


def asked_inside(question: Callable[..., T], *args: Any) -> T:
    """The answer to what only processes of Ray's own can ask; through the proxy one of them does."""
    if not through_proxy():
        return question(*args)
    ray = import_ray()
    answer: T = ray.get(ray.remote(num_cpus=0)(question).remote(*args))
    return answer


def works_on_ray() -> bool:
    """Whether this process has `process_variables`: whatever root its creator gave to the Ray, here it is AUTO."""
    return os.environ.get("FRAY_CLUSTER_SPEC") == AUTO and "RAY_ADDRESS" in os.environ


def _address(root: str) -> str:
    """What `ray.init` takes for a root."""
    if works_on_ray():
        return os.environ["RAY_ADDRESS"]
    if root.startswith("ray://"):
        return root
    named = root.removeprefix("ray").removeprefix(":")
    return named if named not in ("", "auto") else os.environ.get("RAY_ADDRESS") or "auto"


def process_variables(root: str, namespace: str) -> dict[str, str]:
    """The variables of a process that works for Fray on a Ray: what it launches and finds is there, too.

    Args:
        namespace: of the names of jobs and actors.
    """
    address: str = connected(root).get_runtime_context().gcs_address
    return {"FRAY_CLUSTER_SPEC": AUTO, "FRAY_NAMESPACE": namespace, "RAY_ADDRESS": address}


_KEPT = ("RAY_AUTH_", "RAY_TMPDIR", "RAY_USAGE_STATS_ENABLED", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")
"""Beginnings of Ray's own variables that hold for every process of a node; the others describe one worker."""


def task_variables(variables: Mapping[str, str], address: str, job_config: str) -> dict[str, str]:
    """The variables of a job's task: programs that it runs reach this Ray, as drivers of their own.

    Args:
        variables: of the task, with those that it has inherited from Ray's worker.
        address: of this Ray.
        job_config: JSON of Ray's configuration of what such a driver starts.
    """
    kept = {name: value for name, value in variables.items() if not name.startswith("RAY_") or name.startswith(_KEPT)}
    return {**kept, "RAY_ADDRESS": address, "RAY_JOB_CONFIG_JSON_ENV_VAR": job_config}
