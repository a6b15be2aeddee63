"""Names under which programs of other ages import what Fray offers: the one list of them.

`python -m fray.aliases` writes the modules of `MODULES`, which only import, and the list on the page docs/client.md.
The names of `NAMES` are in modules that have names of their own. A test compares all three with this table.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

MODULES: Mapping[str, Sequence[str]] = {
    "fray.cluster.base": ("fray.cluster",),
    "fray.cluster.device_flops": ("fray.device_flops",),
    "fray.cluster.local_cluster": ("fray.cluster.local:LocalCluster LocalClusterConfig",),
    "fray.queue.file": ("fray.queue:FileQueue",),
    "fray.v1": (),
    "fray.v1.cluster": ("fray.cluster", "fray.device_flops:FlopDtype"),
    "fray.v1.cluster.base": ("fray.cluster",),
    "fray.v1.cluster.device_flops": ("fray.device_flops",),
    "fray.v1.cluster.local_cluster": ("fray.cluster.local:LocalCluster LocalClusterConfig",),
    "fray.v1.job": ("fray.job",),
    "fray.v1.job.context": ("fray.job", "fray.job.context:_job_context"),
    "fray.v1.queue": ("fray.queue",),
    "fray.v1.queue.file": ("fray.queue:FileQueue",),
    "fray.v2": ("fray.actor", "fray.client", "fray.current_client", "fray.local_backend", "fray.types"),
    "fray.v2.actor": ("fray.actor",),
    "fray.v2.client": ("fray.client", "fray.current_client"),
    "fray.v2.device_flops": ("fray.device_flops",),
    "fray.v2.local": ("fray.local_backend",),
    "fray.v2.local_backend": ("fray.local_backend",),
    "fray.v2.types": ("fray.types", "fray.client:JobHandle"),
}
"""Modules that are others under a second name: all names of a home's `__all__`, or those behind the colon."""

NAMES: Mapping[str, str] = {
    "fray.actor.ActorContext": "fray.actor.CurrentActor",
    "fray.client.JobStatus": "fray.types.JobStatus",
    "fray.cluster.create_cluster": "fray.cluster.open_cluster",
    "fray.job.context.RayContext": "fray.job.RayContext",
    "fray.job.context.SyncContext": "fray.job.SyncContext",
    "fray.job.context.ThreadContext": "fray.job.ThreadContext",
    "fray.job.context.create_job_ctx": "fray.job.create_job_ctx",
    "fray.local_backend.LocalJobHandle": "fray.client.JobHandle",
}
"""Second names, and what they mean."""

_BEGIN, _END = "<!-- aliases: made by `make aliases` -->\n", "<!-- end of aliases -->\n"


def homes(module: str) -> dict[str, list[str]]:
    """What a module of `MODULES` imports: names by the module that they are taken from."""
    taken: set[str] = set()
    found: dict[str, list[str]] = {}
    for entry in MODULES[module]:
        home, _, chosen = entry.partition(":")
        names = chosen.split() or importlib.import_module(home).__all__
        found[home] = sorted(set(names) - taken, key=_as_isort)
        taken.update(names)
    return found


def source(module: str) -> str:
    """The text of a module of `MODULES`."""
    about = (
        "What `fray` offers, under a second name" if len(homes(module)) != 1 else f"See `{next(iter(homes(module)))}`"
    )
    lines = [f'"""{about}; made by `make aliases`."""', ""]
    for home, names in sorted(homes(module).items()):
        lines += [f"from {home} import (", *(f"    {name}," for name in names), ")"]
    public = sorted((name for names in homes(module).values() for name in names), key=_as_isort)
    if public:
        lines += ["", "__all__ = [", *(f'    "{name}",' for name in public), "]"]
    return "\n".join(lines).rstrip() + "\n"


def path(module: str) -> Path:
    """Where a module of `MODULES` lies, from the directory that `fray` is in."""
    place = Path(*module.split("."))
    is_package = any(other.startswith(f"{module}.") for other in MODULES)
    return place / "__init__.py" if is_package else place.with_suffix(".py")


def page(text: str) -> str:
    """The page with its list of these names as the table has them."""
    begin, end = text.index(_BEGIN) + len(_BEGIN), text.index(_END)
    return text[:begin] + "\n" + "\n".join(_rows()) + "\n\n" + text[end:]


def _rows() -> Iterator[str]:
    yield "| second name | is |"
    yield "| --- | --- |"
    for module, entries in MODULES.items():
        said = [" of ".join(f"`{part}`" for part in reversed(entry.split(":"))) for entry in entries]
        yield f"| `{module}` | {', '.join(said) or 'the package of the next ones'} |"
    for name, home in NAMES.items():
        yield f"| `{name}` | `{home}` |"


def _as_isort(name: str) -> tuple[int, str]:
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def main() -> None:
    """Write the modules and the page's list, in the directory of the sources."""
    top = Path(__file__).parents[1]
    for module in MODULES:
        (top / path(module)).parent.mkdir(parents=True, exist_ok=True)
        (top / path(module)).write_text(source(module))
    client = top / "docs" / "client.md"
    client.write_text(page(client.read_text()))


if __name__ == "__main__":
    main()
