"""`fray init`: create a cluster with chosen settings, adopt a copy of one, or give one another address."""

import asyncio
from typing import Any

import click
import msgspec

from fray.cli import output
from fray.cli.app import App, as_command
from fray.cli.options import DurationType
from fray_layouts.errors import InvalidInput
from fray_layouts.records import ClusterSettings, Record

_HELP = {
    "beat_interval": "Between heartbeats of an agent with jobs.",
    "idle_beat_interval": "Between heartbeats of an idle agent.",
    "poll_interval": "Between checks for new jobs, and of a job that somebody waits for.",
    "pass_interval": "Between passes of the reconciler.",
    "repair_interval": "Between full listings, which find what lost hints and crashes left.",
    "quarantine": "During which a name is not deleted, because a late write could create it again.",
    "outage_grace": "For which tasks keep running while the storage does not answer.",
    "retention": "For which finished jobs are kept.",
    "inbox_patience": "For which an unreadable file in the inbox is left alone.",
    "requeue_backoff": "Before the second attempt; doubles with each further one.",
    "requeue_backoff_max": "At most between two attempts.",
    "host_killer_limit": "Agents that a job may kill in a row before that counts as a failure.",
    "start_failure_limit": "Failed starts in a row after which an agent takes no jobs.",
    "encrypt": "Encrypt calls of actors between hosts, not only authenticate them.",
}
_FIELDS_WITHOUT_OPTION = {field.name for field in msgspec.structs.fields(Record)} | {
    "layout",
    "cluster_id",
    "addresses",
    "created_at",
}
_OPTION_TYPES = {
    f.name: type(f.default) for f in msgspec.structs.fields(ClusterSettings) if f.name not in _FIELDS_WITHOUT_OPTION
}


def _options(function: Any) -> Any:
    for name, kind in reversed(_OPTION_TYPES.items()):
        option = f"--{name.replace('_', '-')}"
        if kind is bool:
            function = click.option(option, is_flag=True, default=None, help=_HELP[name])(function)
        else:
            function = click.option(option, type=kind if kind is int else DurationType(), help=_HELP[name])(function)
    return function


@as_command
@_options
@click.option("--group", metavar="NAME", help="On local files: let all users of this group use the cluster.")
@click.option("--adopt-copy", is_flag=True, help="Make the copy of a cluster at ROOT a cluster of its own.")
@click.option("--add-address", is_flag=True, help="The cluster at ROOT was moved there, or has that address as well.")
@click.argument("at", required=False, metavar="[ROOT]")
def command(app: App, at: str | None, group: str | None, adopt_copy: bool, add_address: bool, **chosen: Any) -> None:
    """Create the cluster under ROOT and print its settings, which cannot be changed later.

    You need not run this: the first agent or the first job creates the cluster too, with default settings. On local
    files only its owner can use the cluster, unless --group names a group.

    \b
    A cluster is at the addresses that its cluster.json names, and is used nowhere else:
    --adopt-copy   a copy gets a new id and a new key. Its agents, actors and machines are those of the original, and
                   are dropped from the copy; jobs that ran there run here once an agent joins. Nothing else happens
                   to the original.
    --add-address  the same cluster, moved or mounted elsewhere. Give it only if no copy is left at the old address.
    """
    if adopt_copy or add_address:
        others = [name for name, value in {**chosen, "group": group}.items() if value is not None]
        if others or (adopt_copy and add_address):
            raise click.UsageError("--adopt-copy and --add-address take no other option")
        _settle(App(at or app.given_root, app.json), adopt_copy)
        return
    wanted = {name: value for name, value in chosen.items() if value is not None}
    settings = asyncio.run(_create(App(at or app.given_root, app.json).root, wanted, group))
    _show(app, settings)


def _show(app: App, settings: ClusterSettings) -> None:
    data = {name: getattr(settings, name) for name in ("cluster_id", "addresses", "layout", *_OPTION_TYPES)}
    shown = data | {"addresses": ", ".join(settings.addresses)}
    app.show(data, lambda: output.print_pairs([(name, f"{value}") for name, value in shown.items()]))


def _settle(app: App, is_copy: bool) -> None:
    from fray_coordinator.adoption import add_address, adopt_copy
    from fray_coordinator.core import open_core

    async def settle() -> ClusterSettings:
        core = await open_core(app.root, create=False, anywhere=True)
        try:
            if not is_copy:
                return await add_address(core)
            settings, dropped = await adopt_copy(core)
            output.echo(f"fray: dropped {dropped} records of the original's agents, actors and machines", err=True)
            return settings
        finally:
            await core.store.close()

    _show(app, asyncio.run(settle()))


async def _create(root: str, wanted: dict[str, Any], group: str | None) -> ClusterSettings:
    from fray_coordinator.clock import SystemClock
    from fray_coordinator.core import LOCAL_SETTINGS, open_core
    from fray_coordinator.store.file_tree import give_to_group
    from fray_coordinator.store.local import LocalBackend
    from fray_coordinator.store.opening import open_backend

    backend = open_backend(root, SystemClock())
    settings = checked(msgspec.structs.replace(LOCAL_SETTINGS if backend.local else ClusterSettings(), **wanted))
    if group is not None:
        if not isinstance(backend, LocalBackend):
            raise InvalidInput("group", group, "leave --group out: the rights of the bucket decide who may use it")
        give_to_group(backend.folder, group)
    core = await open_core(root, settings)
    await core.store.close()
    for name, value in wanted.items():
        if value != (has := getattr(core.settings, name)):
            remedy = f"the cluster at {core.root} exists with {has}, and settings are fixed; create another root"
            raise InvalidInput(name, value, remedy)
    return core.settings


def checked(settings: ClusterSettings) -> ClusterSettings:
    """The same settings. Raises InvalidInput for the first value that cannot work."""
    for name, kind in _OPTION_TYPES.items():
        if kind is not bool and (value := getattr(settings, name)) <= 0:
            raise InvalidInput(name, value, "give a number above 0")
    if settings.pass_interval > 2 * settings.beat_interval:
        raise InvalidInput("pass_interval", settings.pass_interval, "give at most twice beat_interval")
    return settings
