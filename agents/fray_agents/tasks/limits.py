"""The limits of a job's task, from its resource request."""

from fray_agents.runner.limits import Limits
from fray_layouts.spec import ResourceSpec

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
