"""The current cluster of a thread or coroutine, and the function that opens a cluster by its root."""

import logging
import os
import threading
from collections.abc import Mapping
from contextvars import ContextVar
from functools import cache
from urllib.parse import parse_qsl

from fray.cluster.api import Cluster
from fray.cluster.backends import backend_of, is_private_root, surrounding_root
from fray.cluster.storage import StorageCluster, local_clusters
from fray.types import EnvironmentConfig
from fray_layouts.errors import InvalidInput
from fray_runtime.current_task import task_environ
from fray_runtime.variables import read_variable

log = logging.getLogger("fray")

_lock = threading.Lock()
_clusters: dict[str, Cluster] = {}

_chosen: ContextVar[Cluster | None] = ContextVar("fray_cluster", default=None)


def set_current_cluster(cluster: Cluster | None) -> None:
    """Make `cluster` the current one of this thread or coroutine from now on.

    Args:
        cluster: the cluster that `current_cluster` returns; None resets it to the environment's.
    """
    _chosen.set(cluster)


def current_cluster(environment: EnvironmentConfig | None = None) -> Cluster:
    """The cluster that `set_current_cluster` chose, else the one that FRAY_CLUSTER_SPEC names.

    In a job, FRAY_CLUSTER_SPEC names the cluster that runs the job, and jobs that are launched there become its
    children. Without that variable it is the Iris that runs this process, the Ray that this process is connected to, or
    the Ray whose job this process belongs to. Without any of these, or with "local", it is a `LocalCluster` that the
    whole process shares and that ends with the process; without any of these, a line that says so is logged.

    Args:
        environment: from now on, the environment of all jobs, actors and workers that are launched through this
            cluster and name none of their own.

    Raises:
        InvalidInput: `open_cluster` cannot open the value of FRAY_CLUSTER_SPEC; or `environment` is given for a cluster
            that is not in storage.
    """
    cluster = _chosen.get() or environment_cluster()
    if environment is not None:
        storage_cluster(cluster).environment = environment
    return cluster


def environment_cluster() -> Cluster:
    """The cluster that `environment_root` names, or the process's `LocalCluster` if it names none.

    In a job that is a thread of this process it is a cluster whose jobs are threads too.
    """
    root = environment_root()
    cluster = default_cluster() if root is None else open_cluster(root)
    in_thread = task_environ() is not os.environ
    return cluster.threads if isinstance(cluster, StorageCluster) and in_thread else cluster


def default_cluster() -> Cluster:
    """The `LocalCluster` of a program for which nothing names a cluster. The first call logs that, once."""
    _say_why_private()
    return open_cluster("local")


@cache
def _say_why_private() -> None:
    log.warning("%s", why_private(os.environ))


def why_private(environ: Mapping[str, str]) -> str:
    """Why jobs run on this machine, for people; it names a variable that looks like a misspelling."""
    import difflib  # costs some milliseconds

    others = {name.upper(): name for name in environ if name != "FRAY_CLUSTER_SPEC"}
    near = difflib.get_close_matches("FRAY_CLUSTER_SPEC", others, n=1, cutoff=0.7)
    hint = f" ({others[near[0]]} is set, which Fray does not read)" if near else ""
    return (
        f"FRAY_CLUSTER_SPEC is not set{hint}: jobs run on a private cluster on this machine and end with this program"
    )


def environment_root() -> str | None:
    """The root that the environment names: FRAY_CLUSTER_SPEC, else the Iris or Ray that runs this process.

    None if there is none of these.
    """
    if named := read_variable("FRAY_CLUSTER_SPEC", task_environ()):
        return named
    return surrounding_root()


def open_cluster(root: str) -> Cluster:
    """Open the cluster under a root. The same text always gives the same object. Also named `create_cluster`.

    Nothing is read or written until the cluster is used.

    Args:
        root: `gs://bucket/prefix`, `s3://bucket/prefix`, `file:///path`, a path, or `memory://name`.
            "local" is a private cluster whose jobs are processes of this machine; with
            "local?use_isolated_env=False" they are threads of this process. With "local?simulate=True" it runs jobs
            without what they ask for and this machine lacks; "&" joins options.
            "ray:auto" is the Ray that this process runs in, is connected to, or finds on this machine or at
            RAY_ADDRESS; "ray:host:6379" and "ray://host:10001" are the Ray at that address; "ray:http://host:8265" is
            reached through Ray's job submission API.
            "iris://host:port" is the Iris with that controller; "iris:auto" is the Iris that runs this process.

    Raises:
        InvalidInput: the root is a "local" or "ray:" one with an unknown option.
    """
    if (local := local_clusters.get(root)) is not None:
        return local
    with _lock:
        if root not in _clusters:
            _clusters[root] = _opened(root)
        return _clusters[root]


create_cluster = open_cluster


def storage_cluster(given: object = None) -> StorageCluster:
    """Return the given cluster, by default the current one, if it keeps its records in storage.

    Raises:
        InvalidInput: it is not a cluster in storage; or as `current_cluster`.
    """
    cluster = current_cluster() if given is None else given
    if isinstance(cluster, StorageCluster):
        return cluster
    remedy = "this works through storage, which there is not on Ray or Iris; use LocalCluster() or StorageCluster(root)"
    raise InvalidInput("cluster", getattr(cluster, "root", cluster), remedy)


def opened_clusters() -> list[StorageCluster]:
    """The current cluster and all others that this process has opened, as far as they are in storage.

    If the current one is the process's private cluster and is not created yet, it is left out: it can have no actors.
    """
    spec = environment_root() or "local"
    is_private = _chosen.get() is None and is_private_root(spec)
    with _lock:
        known: list[Cluster] = [*_clusters.values(), *local_clusters.values()]
    opened = dict.fromkeys(known if is_private else [current_cluster(), *known])
    return [cluster for cluster in opened if isinstance(cluster, StorageCluster)]


def _opened(root: str) -> Cluster:
    if is_private_root(root):
        return _open_local(root)
    backend = backend_of(root)
    return StorageCluster(root) if backend is None else backend.open_cluster(root)


def _open_local(root: str) -> StorageCluster:
    from fray.cluster.local_cluster import LocalCluster  # imported late: few processes need an agent's code

    options = private_options(root)
    return LocalCluster(use_processes=options["use_isolated_env"], simulate=options["simulate"])


def private_options(root: str) -> dict[str, bool]:
    """The options in the root of a private cluster. Raises InvalidInput: one is unknown."""
    options = {"use_isolated_env": True, "simulate": False}
    for name, value in parse_qsl(root.partition("?")[2], keep_blank_values=True):
        if name not in options or value not in ("True", "False"):
            remedy = "say 'local', 'local?use_isolated_env=False' for threads, or 'local?simulate=True'"
            raise InvalidInput("root", root, remedy)
        options[name] = value == "True"
    return options
