"""The limits of a job's task, by what the job asked for."""

from fray_agents.runner.limits import Limits
from fray_layouts.spec import ResourceSpec

_PROCESSES, _PROCESSES_PER_CORE = 8_192, 256
"""Processes and threads that a task may have: a training job with its loaders has some thousands, and one that forks
without end stops before the 32,768 that smaller hosts have room for."""


def limits_of(resources: ResourceSpec) -> Limits:
    """The limits of one task. Memory and disk have one only if somebody asked for so much."""
    cpu = round(resources.cpu * 1000)
    return Limits(
        memory=resources.memory_limit,
        disk=resources.disk_limit,
        processes=_PROCESSES + _PROCESSES_PER_CORE * cpu // 1000,
        cpu=cpu,
        hard_cpu=resources.hard_cpu,
    )
