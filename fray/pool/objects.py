"""Shared objects of a pool's tasks: stored once, named by their content."""

import functools
import pickle
from dataclasses import dataclass
from typing import Any

from fray.cluster.current import open_cluster, storage_cluster
from fray.errors import Permanent

_CACHED_OBJECTS = 4
"""Objects whose bytes a process keeps, for the next tasks: those of a few stages, and not all of a long job."""


class ObjectGone(Permanent, LookupError):
    """The object is no longer in storage: its pool was shut down; put the object into another one."""


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """A reference to an object in storage; whoever can read the root can fetch it."""

    root: str
    key: str


def fetch(value: Any) -> Any:
    """The object of a reference, a new copy for each call; any other value as it is. Raises ObjectGone."""
    return pickle.loads(_read(value)) if isinstance(value, ObjectRef) else value


@functools.lru_cache(maxsize=_CACHED_OBJECTS)
def _read(ref: ObjectRef) -> bytes:
    found = storage_cluster(open_cluster(ref.root)).run(lambda core: core.store.get(ref.key))
    if found is None:
        raise ObjectGone(f"{ref.key}: {ObjectGone.__doc__}")
    return found.data
