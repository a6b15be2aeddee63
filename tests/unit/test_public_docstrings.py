"""Every public name, and every public method of it, has a docstring that editors and `help` find."""

from __future__ import annotations

import importlib
import inspect
import pydoc
from collections.abc import Iterator

import pytest

from fray import Client, Cluster, JobHandle, LocalClient, LocalCluster, StorageClient, StorageCluster

PACKAGES = [
    *("fray", "fray.actor", "fray.client", "fray.cluster", "fray.job", "fray.pool", "fray.queue", "fray.rpc"),
    *("fray.current_client", "fray.device_flops", "fray.errors", "fray.local_backend", "fray.types"),
]


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_and_their_methods_have_docstrings(package: str) -> None:
    found = importlib.import_module(package)
    public = {name: getattr(found, name) for name in found.__all__}
    assert [dotted for name, value in public.items() for dotted in undocumented(name, value)] == []


@pytest.mark.parametrize("kind", [StorageCluster, LocalCluster, StorageClient, LocalClient, JobHandle])
def test_help_on_a_method_names_every_argument(kind: type) -> None:
    """The interfaces that programs hold; `help` shows the methods that they inherit."""
    promised = {name for interface in (Cluster, Client, JobHandle) for name in vars(interface)}
    for name in sorted(vars(kind).keys() | promised):
        method = getattr(kind, name, None)
        if name.startswith("_") or name not in promised or not inspect.isfunction(method):
            continue
        shown = pydoc.plain(pydoc.render_doc(method))
        told = shown.partition("\n\n")[2].partition("\n")[2]  # without the title and the signature
        missing = [one for one in inspect.signature(method).parameters if one != "self" and one not in told]
        assert set(missing) <= {"args", "kwargs"}, f"help({kind.__name__}.{name}) says nothing of {missing}"


def undocumented(name: str, value: object) -> Iterator[str]:
    if not (inspect.isclass(value) or inspect.isfunction(value)) or not value.__module__.startswith("fray"):
        return
    if not inspect.getdoc(value):
        yield name
    for member, found in vars(value).items():
        is_method = isinstance(found, property | classmethod | staticmethod) or inspect.isfunction(found)
        if is_method and not member.startswith("_") and not inspect.getdoc(getattr(value, member)):
            yield f"{name}.{member}"
