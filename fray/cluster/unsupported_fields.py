"""The fields of a spec that a backend without storage cannot honour."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fray_layouts.errors import InvalidInput
from fray_layouts.spec import JobSpec


def check_unsupported(
    spec: JobSpec, job: Mapping[str, str], resources: Mapping[str, str], environment: Mapping[str, str]
) -> None:
    """Refuse a spec that asks for what its backend cannot do.

    Args:
        job, resources, environment: fields of the spec and of these parts of it, and what to do instead.

    Raises:
        InvalidInput: one of the fields is not what it is when nobody asks for it; the error has the remedy.
    """
    least = JobSpec(name=spec.name, entrypoint=spec.entrypoint)
    for prefix, part, default, remedies in (
        ("resources.", spec.resources, least.resources, resources),
        ("environment.", spec.environment, least.environment, environment),
        ("", spec, least, job),
    ):
        _check(prefix, part, default, remedies)


def _check(prefix: str, part: Any, default: Any, remedies: Mapping[str, str]) -> None:
    for name, remedy in remedies.items():
        if (value := getattr(part, name)) != getattr(default, name):
            raise InvalidInput(f"{prefix}{name}", value, remedy)
