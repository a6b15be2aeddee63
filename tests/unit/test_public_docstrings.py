"""Every public name, and every public method of it, has documentation where editors and `help` look for it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator

import pytest

PACKAGES = [
    *("fray", "fray.actor", "fray.client", "fray.cluster", "fray.job", "fray.pool", "fray.queue", "fray.rpc"),
    *("fray.current_client", "fray.device_flops", "fray.errors", "fray.local_backend", "fray.types"),
]


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_and_their_methods_have_docstrings(package: str) -> None:
    found = importlib.import_module(package)
    public = {name: getattr(found, name) for name in found.__all__}
    assert [dotted for name, value in public.items() for dotted in undocumented(name, value)] == []


def undocumented(name: str, value: object) -> Iterator[str]:
    if not (inspect.isclass(value) or inspect.isfunction(value)) or not value.__module__.startswith("fray"):
        return
    if not inspect.getdoc(value):
        yield name
    for member, found in vars(value).items():
        is_method = isinstance(found, property | classmethod | staticmethod) or inspect.isfunction(found)
        if is_method and not member.startswith("_") and not inspect.getdoc(getattr(value, member)):
            yield f"{name}.{member}"
