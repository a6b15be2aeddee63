"""The codec of items: pickle or JSON bytes, and back."""

import io
import pickle
from collections.abc import Iterable
from typing import Any

import msgspec

from fray.queue.engine import EncodedItem, Unreadable
from fray_agents.pickling import by_value_pickler
from fray_layouts.codec import plain_text
from fray_layouts.errors import InvalidInput

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
