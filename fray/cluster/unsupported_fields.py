"""Refuses specs with fields that a backend without storage does not support."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fray_layouts.errors import InvalidInput
from fray_layouts.spec import JobSpec

ONLY_IN_STORAGE = "only a cluster in storage supports it: use StorageClient(root), or leave it out"
"""The remedy for fields that neither Ray nor Iris has a counterpart for."""


def check_unsupported(
    spec: JobSpec, job: Mapping[str, str], resources: Mapping[str, str], environment: Mapping[str, str]
) -> None:
    """Check that a spec uses no field that its backend does not support.

    Args:
        job, resources, environment: the unsupported fields of the spec and of these parts of it, each with its remedy.

    Raises:
        InvalidInput: one of the fields does not have its default value; the error has the remedy.
    """
    defaults = JobSpec(name=spec.name, entrypoint=spec.entrypoint)
    for prefix, part, default, remedies in (
        ("resources.", spec.resources, defaults.resources, resources),
        ("environment.", spec.environment, defaults.environment, environment),
        ("", spec, defaults, job),
    ):
        _check(prefix, part, default, remedies)


def _check(prefix: str, part: Any, default: Any, remedies: Mapping[str, str]) -> None:
    for name, remedy in remedies.items():
        if (value := getattr(part, name)) != getattr(default, name):
            raise InvalidInput(f"{prefix}{name}", value, remedy)
