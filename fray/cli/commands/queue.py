"""`fray queue`: inspect queues; push, pop, redrive, purge and remove."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fray.cli import output
from fray.cli.app import App, Subcommands, subcommand
from fray.cli.options import DurationType
from fray_layouts.errors import InvalidInput
from fray_layouts.units import format_duration

if TYPE_CHECKING:
    from fray.queue.engine import Counts, EncodedItem, Peeked
    from fray.queue.file_queue import FileEngine
    from fray_coordinator.core import Core

T = TypeVar("T")


@click.group(cls=Subcommands, name="queue", invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """Inspect and change queues; without a subcommand, list them.

    QUEUE is the name of a queue in the cluster. With a slash in it, it is the root of a queue that has its own root:
    gs://bucket/prefix, s3://bucket/prefix, or a path. Items are shown as JSON. Pickled items are never unpickled: a
    pickle that is not plain data is shown by its size.
    """
    if context.invoked_subcommand is None:
        with ls.make_context("queue", [], parent=context) as listing:
            ls.invoke(listing)


_subcommand = partial(subcommand, command)


_POP_LEASE = 60.0
"""Seconds after which items come back if `fray queue pop` is killed before it completes them."""

_AT_LEAST_ONE = click.IntRange(min=1)
_queue = click.argument("queue", metavar="QUEUE")
_namespace = click.option("--namespace", help='Namespace of the name (default: FRAY_NAMESPACE, else "default").')


def _with_queue(
    app: App, queue: str, namespace: str | None, work: Callable[[FileEngine], Awaitable[T]], create: bool = False
) -> T:
    """Run `work` on the open queue and return its result."""
    from fray.queue.file_queue import FileEngine, QueueAddress
    from fray_layouts.queue_records import QueueRecord

    most = QueueRecord().max_deliveries
    own = "/" in queue
    address = QueueAddress.checked(queue if own else app.root, None if own else queue, namespace, most)

    async def run() -> T:
        engine = await FileEngine.open(address, create)
        try:
            return await work(engine)
        finally:
            await engine.close()

    return asyncio.run(run())


@_subcommand("ls")
def ls(app: App) -> None:
    """List the queues of the cluster."""
    found = app.run(_names)
    as_json = [{"namespace": namespace, "name": name} for namespace, name in found]
    app.show(as_json, lambda: output.print_table(("NAMESPACE", "QUEUE"), found, "there is no queue"))


async def _names(core: Core) -> list[tuple[str, str]]:
    from fray_coordinator.queue.admin import list_queues

    return await list_queues(core)


@_subcommand("stat")
@_queue
@_namespace
def stat(app: App, queue: str, namespace: str | None) -> None:
    """Count a queue's items and dead letters."""

    async def read(engine: FileEngine) -> tuple[Counts, Counts]:
        return await engine.counts(), await engine.dead_counts()

    counts, dead = _with_queue(app, queue, namespace, read)
    age = None if counts.oldest is None else max(0.0, time.time() - counts.oldest)
    data = {
        "available": counts.available,
        "pending": counts.pending,
        "dead_letters": dead.available + dead.pending,
        "oldest_seconds": age,
        "segments": counts.segments,
        "problems": counts.problems,
    }
    texts = {**data, "oldest_seconds": "" if age is None else format_duration(age)}
    pairs = [(name.removesuffix("_seconds").replace("_", " "), str(value)) for name, value in texts.items()]
    app.show(data, lambda: output.print_pairs(pairs))


@_subcommand("peek")
@_queue
@_namespace
@click.option("-n", "count", type=_AT_LEAST_ONE, default=10, show_default=True, help="How many at most, oldest first.")
@click.option("--dead", is_flag=True, help="Show dead letters instead, with their reasons.")
def peek(app: App, queue: str, namespace: str | None, count: int, dead: bool) -> None:
    """Show the next items without taking them."""
    found = _with_queue(app, queue, namespace, lambda engine: engine.letters(count) if dead else engine.peek(count))
    for peeked in found:
        output.print_json(_described(peeked) if dead else shown(peeked.item), one_line=True)


@_subcommand("push")
@_queue
@_namespace
@click.argument("items", nargs=-1, metavar="[ITEM]...")
def push(app: App, queue: str, namespace: str | None, items: tuple[str, ...]) -> None:
    """Push JSON texts; without arguments, each line of standard input."""
    from fray.queue.engine import encode

    texts = list(items) or [line for line in sys.stdin.read().splitlines() if line.strip()]
    encoded = encode([_parsed(text) for text in texts], "json")
    if encoded:
        _with_queue(app, queue, namespace, lambda engine: engine.push(encoded, None), create=True)


@_subcommand("pop")
@_queue
@_namespace
@click.option("-n", "count", type=_AT_LEAST_ONE, default=1, show_default=True, help="How many at most.")
@click.option("--wait", type=DurationType(), default=0.0, help="Time to wait for the first item: seconds, or 10m.")
def pop(app: App, queue: str, namespace: str | None, count: int, wait: float) -> None:
    """Take items, print them, and complete them. Exit code 1 if there is none."""

    async def take(engine: FileEngine) -> bool:
        taken = await engine.take(count, _POP_LEASE, wait)
        for one in taken:
            output.print_json(shown(one.item), one_line=True)
        await engine.done([one.id for one in taken])
        return bool(taken)

    sys.exit(0 if _with_queue(app, queue, namespace, take) else 1)


@_subcommand("redrive")
@_queue
@_namespace
@click.option("-n", "count", type=_AT_LEAST_ONE, help="How many at most, oldest first; all by default.")
def redrive(app: App, queue: str, namespace: str | None, count: int | None) -> None:
    """Push dead letters again."""
    moved = _with_queue(app, queue, namespace, lambda engine: engine.redrive(count))
    app.show({"moved": moved}, lambda: output.echo(f"{moved} items pushed again"))


@_subcommand("purge")
@_queue
@_namespace
@click.confirmation_option(prompt="Every item of the queue will count as done. Go on?")
def purge(app: App, queue: str, namespace: str | None) -> None:
    """Complete every item, also those that consumers have taken."""
    purged = _with_queue(app, queue, namespace, lambda engine: engine.purge())
    app.show({"purged": purged}, lambda: output.echo(f"{purged} items purged"))


@_subcommand("rm")
@_queue
@_namespace
@click.confirmation_option(prompt="Items that open producers still push to this queue will be lost too. Go on?")
def rm(app: App, queue: str, namespace: str | None) -> None:
    """Remove a queue with all its items, and free its name."""
    from fray.queue.file_queue import QueueAddress

    if "/" in queue:
        raise InvalidInput("queue", queue, "a queue with its own root is removed by removing that root")
    address = QueueAddress.checked(app.root, queue, namespace, 0)
    app.run(lambda core: _remove(core, address.namespace, address.name))


async def _remove(core: Core, namespace: str, name: str) -> None:
    from fray_coordinator import worker_pools
    from fray_coordinator.actors import naming
    from fray_coordinator.queue.delivery import QueueNotFound

    if await worker_pools.find(core, namespace, name) is not None:
        raise InvalidInput(
            "queue", name, "it belongs to a worker pool; `WorkerPool.attach(name).shutdown()` removes both"
        )
    found = await naming.read_held(core, namespace, worker_pools.NAME_KIND, name)
    if found is None:
        raise QueueNotFound()
    await worker_pools.remove(core, namespace, name, found.incarnation)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise InvalidInput("item", text, "write JSON; a string needs double quotes inside the shell's quotes") from None


def shown(item: EncodedItem) -> Any:
    """An item as it can be shown without unpickling it."""
    from fray.queue.engine import decode_plain

    plain = decode_plain(item)
    return f"<{item.encoding}, {len(item.body)} bytes>" if plain is None else plain[0]


def _described(peeked: Peeked) -> dict[str, Any]:
    letter = peeked.origin
    return {
        "item": shown(peeked.item),
        "reason": letter.reason if letter else "",
        "deliveries": letter.deliveries if letter else 0,
    }
