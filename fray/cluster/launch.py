"""Submitting jobs as what they are: the children of the job that this code runs in, if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from fray.cluster.here import Here, here
from fray_agents.environment import CHILDREN_MARK
from fray_coordinator.core import Core
from fray_coordinator.submit import Submitted, submit
from fray_layouts.spec import JobSpec


def launcher(root: str) -> Here | None:
    """The job that this code runs in, if it runs on the cluster under `root`."""
    mine = here()
    return mine if mine is not None and mine.cluster == root else None


def prepare(specs: Sequence[JobSpec], mine: Here | None, namespace: str) -> list[JobSpec]:
    """The specs as children of `mine`, in `namespace` where they name none; tells the agent that there are children."""
    prepared = [
        replace(spec, namespace=spec.namespace or namespace, parent=spec.parent or (mine.job_id if mine else ""))
        for spec in specs
    ]
    if mine is not None and any(spec.parent == mine.job_id for spec in prepared):
        Path(mine.task_dir, CHILDREN_MARK).touch()
    return prepared


async def launch(core: Core, specs: Sequence[JobSpec], mine: Here | None) -> list[Submitted]:
    """Submit prepared specs, in order; those of `mine` under the attempt that runs this code."""
    own = [mine is not None and spec.parent == mine.job_id for spec in specs]
    done: dict[int, Submitted] = {}
    for is_own, attempt in ((True, mine.attempt if mine else None), (False, None)):
        chosen = [number for number, kind in enumerate(own) if kind is is_own]
        submitted = await submit(core, [specs[number] for number in chosen], attempt)
        done.update(zip(chosen, submitted, strict=True))
    return [done[number] for number in range(len(specs))]
