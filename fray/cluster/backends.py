"""The backends without storage, each known by the kind of its roots. Other modules reach them only through here.

`open_cluster`, `current_client` and `create_job_ctx` ask here first. A backend is a package in `fray.backends`; its
module `entry` is a `BackendEntry`, and is imported only when a root names it or a program asks where it runs. Besides,
packages offer users some names of backends (`__init__.pyi`), and `create_job_ctx("ray")` names Ray.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol, cast

from fray.cluster.api import Cluster
from fray.resources import ResourceConfig

_ENTRIES = {"iris": "fray.backends.iris.entry", "ray": "fray.backends.ray.entry"}
"""The entry of each backend by the kind of its roots, the part before the colon.

A process may run in a Ray inside of an Iris; then the first one counts.
"""


class BackendEntry(Protocol):
    """A scheduler that runs jobs and actors without a bucket. A module with these functions is one."""

    def root_of_this_process(self) -> str | None:
        """The root of the scheduler that runs this process, None if it does not; nothing large is imported for that."""

    def open_cluster(self, root: str) -> Cluster:
        """Open the cluster under a root of this kind. Raises InvalidInput: the root, or an option of it, is unknown."""

    def open_client(self, cluster: Cluster) -> Any:
        """The `fray.client.api.Client` of a cluster that `open_cluster` opened."""

    def job_context(
        self, root: str, max_workers: int, resources: Callable[[], ResourceConfig], options: dict[str, Any]
    ) -> Any:
        """The `fray.job.job_context.JobContext` for a program under a root of this kind.

        Args:
            max_workers: the number of tasks that run at once, if the scheduler does not decide that.
            resources: returns what each task reserves.
            options: further ones that the caller of `create_job_ctx` gave.
        """


def backend_of(root: str) -> BackendEntry | None:
    """The backend that a cluster's root names; None if it names a folder, a bucket or a private cluster."""
    entry = _ENTRIES.get(root.partition("?")[0].partition(":")[0])
    return None if entry is None else _loaded(entry)


def is_private_root(root: str) -> bool:
    """Whether the root names a private cluster: "local", perhaps with options."""
    return root.partition("?")[0] == "local"


def surrounding_root() -> str | None:
    """The root of the scheduler in which this process runs; None if there is none."""
    roots = (_loaded(entry).root_of_this_process() for entry in _ENTRIES.values())
    return next((root for root in roots if root is not None), None)


def _loaded(entry: str) -> BackendEntry:
    return cast(BackendEntry, import_module(entry))
