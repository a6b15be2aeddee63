"""The interface of a queue's engine, which takes and leases encoded items, and the codec of items.

There are three engines: on files, in memory, HTTP.

An engine's coroutines run in the process's background loop; users call them through `Queue`. An engine never decodes an
item, so a server that passes items on unpickles nothing.
"""

import io
import pickle
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from fray_coordinator.queue.admin import Counts, Peeked
from fray_coordinator.queue.delivery import Delivery, EncodedItem, LeaseLost, UnknownLease
from fray_layouts.codec import plain_text
from fray_layouts.errors import InvalidInput, Permanent
from fray_runtime.pickling import by_value_pickler

__all__ = ["Counts", "Delivery", "EncodedItem", "LeaseLost", "Peeked", "QueueEngine", "UnknownLease", "Unreadable"]


class QueueEngine(Protocol):
    """Does the work of a `Queue`.

    Every method may raise StoreUnavailable or a ConnectionError, and can then be called again. A method that takes
    leases raises UnknownLease if a lease was done or released before, ran out, or never existed.
    """

    async def push(self, items: Sequence[EncodedItem], batch: int | None) -> None:
        """Put items at the end; returns when they are stored. batch: number of items that are stored together."""

    def push_now(self, item: EncodedItem) -> Coroutine[Any, Any, None] | None:
        """Push one item from any thread. Returns None if it is stored, or else a coroutine that does the rest."""

    async def take(self, count: int, timeout: float, wait: float, process: str = "") -> list[Delivery]:
        """Lease up to `count` items for `timeout` seconds each. Waits up to `wait` seconds for the first one.

        Args:
            process: a unique name of the process that they are for; "" is this process.
        """

    def take_now(self, timeout: float) -> Delivery | None:
        """Lease the next item from any thread, if that needs no wait. None: call `take`."""

    def done_now(self, lease: str) -> bool:
        """Note from any thread that an item is done; it is written soon. Returns False if `done` must be called."""

    async def done(self, leases: Sequence[str]) -> None:
        """Complete the items of these leases."""

    async def release(self, leases: Sequence[str], failed: bool) -> None:
        """Give back the items of these leases. failed: whether it counts towards the maximum of deliveries."""

    async def extend(self, lease: str, timeout: float) -> float:
        """Extend a lease to at least `timeout` seconds from now. Returns its new deadline."""

    async def give_up(self, lease: str, reason: str) -> None:
        """Make the item a dead letter."""

    async def counts(self) -> Counts:
        """The numbers of items by state."""

    async def peek(self, limit: int) -> list[Peeked]:
        """The oldest items that are not leased."""

    async def letters(self, limit: int) -> list[Peeked]:
        """The oldest dead letters."""

    async def redrive(self, limit: int | None) -> int:
        """Push dead letters again, and return their number."""

    async def purge(self) -> int:
        """Complete every item, and return their number."""

    async def close(self) -> None:
        """Give back the items that this process has leased."""


class Unreadable(Permanent, ValueError):
    """The item cannot be decoded here: import what it needs, or let `pop` make it a dead letter."""


ENCODINGS = ("pickle", "json")


def encode(items: Iterable[Any], encoding: str) -> list[EncodedItem]:
    """Encode the items. Raises InvalidInput, which names the first item that cannot be encoded."""
    return _as_json(items) if encoding == "json" else _pickled(items)


def decode(item: EncodedItem) -> Any:
    """Decode an item. Raises Unreadable if that fails, with the original error as its cause."""
    if item.encoding not in ENCODINGS:
        raise Unreadable(f"it cannot be read: its encoding is {item.encoding!r}, and Fray knows {', '.join(ENCODINGS)}")
    try:
        return msgspec.json.decode(item.body) if item.encoding == "json" else pickle.loads(item.body)
    except Exception as error:
        raise Unreadable(f"it cannot be read: {type(error).__name__}: {error}") from error


def decode_plain(item: EncodedItem) -> tuple[Any] | None:
    """Decode an item of plain data that JSON can show, without running the item's code.

    Returns (content,), or None if it is not such an item.
    """
    try:
        content = decode(item) if item.encoding == "json" else _PlainUnpickler(io.BytesIO(item.body)).load()
        msgspec.json.encode(content, enc_hook=plain_text)
    except Exception:  # a queue may have items of any kind; here they are only displayed
        return None
    return (content,)


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that loads no classes and functions, so that it cannot run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is more than plain data")


def _pickled(items: Iterable[Any]) -> list[EncodedItem]:
    encoded, buffer = [], io.BytesIO()
    pickler = by_value_pickler(buffer)
    for number, item in enumerate(items):
        try:
            pickler.dump(item)
        except Exception as error:  # pickling runs the users' own __reduce__, which may raise anything
            raise InvalidInput(f"items[{number}]", item, f"it cannot be pickled: {error}") from error
        encoded.append(EncodedItem(buffer.getvalue()))
        buffer.seek(0)
        buffer.truncate()
        pickler.clear_memo()
    return encoded


def _as_json(items: Iterable[Any]) -> list[EncodedItem]:
    encoded = []
    for number, item in enumerate(items):
        try:
            encoded.append(EncodedItem(msgspec.json.encode(item, enc_hook=plain_text), "json"))
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"items[{number}]", item, f"it cannot be written as JSON: {error}") from error
    return encoded
