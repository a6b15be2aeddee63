"""Objects that a pool's tasks share. Each is stored once, under a hash of its content."""

import functools
import pickle
from dataclasses import dataclass
from typing import Any

from fray.cluster.current import open_cluster, storage_cluster
from fray.errors import Permanent

_CACHED_OBJECTS = 4
"""Objects whose bytes a process keeps for its next tasks: enough for a few stages, without filling the memory."""


class ObjectGone(Permanent, LookupError):
    """The object is no longer in storage, because its pool was shut down: put it into another pool."""


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """A reference to an object in storage. Any process that can read the root can fetch the object."""

    root: str
    key: str


def fetch(value: Any) -> Any:
    """Return a new copy of a reference's object; any other value is returned unchanged. Raises ObjectGone."""
    return pickle.loads(_read(value)) if isinstance(value, ObjectRef) else value


@functools.lru_cache(maxsize=_CACHED_OBJECTS)
def _read(ref: ObjectRef) -> bytes:
    found = storage_cluster(open_cluster(ref.root)).run(lambda core: core.store.get(ref.key))
    if found is None:
        raise ObjectGone(f"{ref.key}: {ObjectGone.__doc__}")
    return found.data
