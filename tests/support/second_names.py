"""The second names under which older programs import Fray's names."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence

MODULES: Mapping[str, Sequence[str]] = {
    "fray.cluster.base": ("fray.cluster",),
    "fray.cluster.device_flops": ("fray.device_flops",),
    "fray.cluster.ray.tpu": ("fray.tpu",),
    "fray.job.context": ("fray.job", "fray.job.contexts:_job_context"),
    "fray.queue.file": ("fray.queue:FileQueue",),
    "fray.v1.cluster": ("fray.cluster", "fray.device_flops:FlopDtype"),
    "fray.v1.cluster.base": ("fray.cluster",),
    "fray.v1.cluster.device_flops": ("fray.device_flops",),
    "fray.v1.cluster.local_cluster": ("fray.cluster.local_cluster:LocalCluster LocalClusterConfig",),
    "fray.v1.job": ("fray.job",),
    "fray.v1.job.context": ("fray.job", "fray.job.context:_job_context"),
    "fray.v1.queue": ("fray.queue",),
    "fray.v1.queue.file": ("fray.queue:FileQueue",),
    "fray.v2": ("fray.actor", "fray.client", "fray.current_client", "fray.local_backend", "fray.types"),
    "fray.v2.actor": ("fray.actor",),
    "fray.v2.client": ("fray.client", "fray.current_client"),
    "fray.v2.device_flops": ("fray.device_flops",),
    "fray.v2.iris_backend": ("fray.backends.iris",),
    "fray.v2.local": ("fray.local_backend",),
    "fray.v2.local_backend": ("fray.local_backend",),
    "fray.v2.ray.backend": ("fray.backends.ray",),
    "fray.v2.types": ("fray.types", "fray.client:JobHandle"),
}
"""Modules that only import: all names of a module's `__all__`, or those behind the colon."""

NAMES: Mapping[str, str] = {
    "fray.actor.ActorContext": "fray.actor.CurrentActor",
    "fray.client.JobStatus": "fray.types.JobStatus",
    "fray.cluster.create_cluster": "fray.cluster.open_cluster",
    "fray.local_backend.LocalJobHandle": "fray.client.JobHandle",
}
"""Second names in modules of their own, and the names that they stand for."""


def pairs() -> Iterator[tuple[str, str]]:
    """Every second name with the name that it stands for, both dotted."""
    for module, homes in MODULES.items():
        for entry in homes:
            home, _, chosen = entry.partition(":")
            for name in chosen.split() or importlib.import_module(home).__all__:
                yield f"{module}.{name}", f"{home}.{name}"
    yield from NAMES.items()


def table() -> Iterator[str]:
    """The rows of the list in docs/jobs.md."""
    for module, homes in MODULES.items():
        said = [" of ".join(f"`{part}`" for part in reversed(entry.split(":"))) for entry in homes]
        yield f"| `{module}` | {', '.join(said)} |"
    for name, home in NAMES.items():
        yield f"| `{name}` | `{home}` |"
