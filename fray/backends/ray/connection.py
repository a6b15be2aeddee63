"""Connects this process to the Ray that a root names.

A process is connected to one Ray at a time. "ray:auto" is the one that it is connected to or runs in, else the one that
RAY_ADDRESS names or that runs on this machine. "ray:host:6379" is the Ray whose head has that address.
"ray://host:10001" is a Ray that is reached through its own proxy, from outside of its network.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from fray_layouts.errors import InvalidInput
from fray_runtime.pickling import modules_pickled_by_value
from fray_runtime.variables import read_variable

T = TypeVar("T")

AUTO = "ray:auto"
"""The root of the Ray that a process is connected to or runs in."""

NAMESPACE = "fray"
"""The Ray namespace of Fray's own actors. Ray finds named actors only within a namespace."""

_PROXY_ATTEMPTS = 5
"""Tries to get a server for this process from Ray's proxy. The proxy forks it, and gRPC may make it die at once."""

_LISTENS_WITHIN = 10.0
"""Seconds within which Ray's port has to accept a connection; enough for a busy host."""

_NOT_INSTALLED = "Ray is not installed here; install Fray with its extra, in a clone: pip install '.[ray]'"


def import_ray(root: str = AUTO) -> Any:
    """Import Ray's package. Raises InvalidInput, which names `root`, if Ray is not installed."""
    try:
        import ray
    except ImportError as error:
        raise InvalidInput("root", root, _NOT_INSTALLED) from error
    return ray


def connected(root: str = AUTO) -> Any:
    """Connect this process to the Ray that `root` names, and return Ray's package. An existing connection is kept.

    Raises:
        InvalidInput: Ray is not installed, or there is no Ray at that address.
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
    """Raise InvalidInput if nothing listens at an address HOST:PORT. Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), _LISTENS_WITHIN).close()
        except OSError as error:
            raise InvalidInput("root", root, _remedy(error)) from error


def _remedy(refusal: Exception | None) -> str:
    if "InvalidAuthToken" in str(refusal.__cause__ if refusal is not None else ""):
        return "this Ray requires a token; set RAY_AUTH_TOKEN to that of its nodes, or RAY_AUTH_TOKEN_PATH to its file"
    return f"there is no Ray ({refusal}); start one with `ray start --head`, or give its address: ray:HOST:PORT"


def through_proxy() -> bool:
    """Whether this process is connected through Ray's own proxy, which does not support all of Ray."""
    connection: bool = import_ray().util.client.ray.is_connected()
    return connection


def check_streams(generator: str) -> None:
    """Raise InvalidInput if this process cannot receive the values of a generator."""
    if through_proxy():
        remedy = "Ray's proxy does not support generators: return a list, or run this program on Ray (ray job submit)"
        raise InvalidInput("generator", generator, remedy)


def asked_inside(question: Callable[..., T], *args: Any) -> T:
    """Call a function that works only in Ray's own processes. Behind the proxy it runs there as a Ray task."""
    if not through_proxy():
        return question(*args)
    ray = import_ray()
    answer: T = ray.get(ray.remote(num_cpus=0)(question).remote(*args))
    return answer


def works_on_ray() -> bool:
    """Whether this process has `process_variables`. Then its root is AUTO, whatever root its creator used."""
    return read_variable("FRAY_CLUSTER_SPEC") == AUTO and bool(read_variable("RAY_ADDRESS"))


def _address(root: str) -> str:
    """The address for `ray.init` that a root stands for."""
    address = read_variable("RAY_ADDRESS")
    if address and works_on_ray():
        return address
    if root.startswith("ray://"):
        return root
    named = root.removeprefix("ray").removeprefix(":")
    return named if named not in ("", "auto") else address or "auto"


def process_variables(root: str, namespace: str) -> dict[str, str]:
    """The variables for a process on a Ray, so that it launches jobs and finds actors there too.

    Args:
        namespace: the namespace of its jobs and actors.
    """
    address: str = connected(root).get_runtime_context().gcs_address
    return {"FRAY_CLUSTER_SPEC": AUTO, "FRAY_NAMESPACE": namespace, "RAY_ADDRESS": address}


_KEPT = ("RAY_AUTH_", "RAY_TMPDIR", "RAY_USAGE_STATS_ENABLED", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")
"""Prefixes of Ray's variables that hold for every process of a node. Ray's other variables describe one worker."""


def task_variables(variables: Mapping[str, str], address: str, job_config: str) -> dict[str, str]:
    """The variables of a job's task. With them, programs that the task runs reach this Ray as separate drivers.

    Args:
        variables: the task's variables, including those that it inherits from Ray's worker.
        address: the address of this Ray.
        job_config: JSON of Ray's job configuration for such a driver.
    """
    kept = {name: value for name, value in variables.items() if not name.startswith("RAY_") or name.startswith(_KEPT)}
    return {**kept, "RAY_ADDRESS": address, "RAY_JOB_CONFIG_JSON_ENV_VAR": job_config}


def pickle_registered_by_value() -> None:
    """Make Ray pickle by value the modules that are registered so (`cloudpickle.register_pickle_by_value`)."""
    if wanted := modules_pickled_by_value():
        from ray import cloudpickle

        for name in wanted - cloudpickle.list_registry_pickle_by_value():
            cloudpickle.register_pickle_by_value(sys.modules[name])
