"""Objects in storage that tasks of a pool share, named by their content."""

from __future__ import annotations

import functools
import pickle
from dataclasses import dataclass
from typing import Any

from fray.cluster.current import open_cluster
from fray.errors import Permanent

_CACHED_OBJECTS = 4
"""Objects whose bytes a process keeps, so that tasks one after the other do not fetch the same again."""


class ObjectGone(Permanent, LookupError):
    """The object is no longer in storage: the pool that it belonged to was shut down."""


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """An object under a root; whoever can read that root can fetch it."""

    root: str
    key: str


def fetch(value: Any) -> Any:
    """What a reference stands for, a copy of its own for each call; any other value as it is. Raises ObjectGone."""
    return pickle.loads(_read(value)) if isinstance(value, ObjectRef) else value


@functools.lru_cache(maxsize=_CACHED_OBJECTS)
def _read(ref: ObjectRef) -> bytes:
    found = open_cluster(ref.root).run(lambda core: core.store.get(ref.key))
    if found is None:
        raise ObjectGone(f"{ref.key}: {ObjectGone.__doc__}")
    return found.data
