"""The interface of object stores: the verbs, their outcomes, and the duties of a backend.

There are two layers. A `StoreBackend` makes one attempt per call at one kind of storage, and reports honestly what it
knows (`AttemptFailed` and its subclasses). `Store` (store.py), which all other code uses, retries, resolves ambiguity
by reading back, meters, and learns the storage's clock.

The rules for keys, and the largest object under each key, are the same on every backend. So a root can be copied from
one backend to another, and nobody reads objects that nobody could have written.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from fray_layouts.bounds import MAX_KEY_BYTES
from fray_layouts.errors import InvalidInput
from fray_layouts.index_keys import ChildKey, PendingKey
from fray_layouts.key_encoding import MAX_KEY_PART_BYTES
from fray_layouts.object_keys import PoolKeys
from fray_layouts.work_keys import InboxKeys

Version = str
"""An opaque version, only to be compared. GCS: generation. S3: ETag. Memory and local files: digest of the content."""

ROWS_PER_REQUEST = 1000
"""Most rows in one answer to a list request, on GCS and on S3; each answer is one billed request."""

NAME_WRITE_INTERVAL = 1.0
"""Least seconds between two writes of one name: GCS accepts one in a second, and answers 429 to others."""


class Expect(enum.Enum):
    """An expectation about an object other than a `Version`."""

    ABSENT = "absent"
    ANY = "any"


ABSENT = Expect.ABSENT
ANY = Expect.ANY
Expectation = Version | Expect


class NotModified(enum.Enum):
    """Answer of `get_if_changed` if the object still has the given version."""

    NOT_MODIFIED = "not modified"


NOT_MODIFIED = NotModified.NOT_MODIFIED


class Object(msgspec.Struct, frozen=True, gc=False):
    """An object as read.

    Attributes:
        data: the whole body.
        version: of exactly this body.
        updated: when the storage wrote it, seconds since the epoch on the *storage's* clock (whole seconds on buckets).
    """

    data: bytes
    version: Version
    updated: float


class Listed(msgspec.Struct, frozen=True, gc=False):
    """A row of a listing. `version` and `updated` are None unless the listing was made with versions."""

    key: str
    version: Version | None = None
    updated: float | None = None


class Applied(msgspec.Struct, frozen=True, gc=False):
    """The write is the object's current state. `updated`: the storage's time, if the answer has it."""

    version: Version
    updated: float | None = None


@dataclass(frozen=True, slots=True)
class Superseded:
    """The write was applied, and somebody has written since: decide again from `current` (None: deleted since)."""

    current: Object | None


@dataclass(frozen=True, slots=True)
class Rejected:
    """The write is not in the object and cannot get into it: decide again from `current` (None: the object is absent).

    There are two limits that no client can see past. A create that is still under way is applied after all if somebody
    deletes the object first, so never reuse keys. And an absent object may have held our write before it was deleted.
    """

    current: Object | None


@dataclass(frozen=True, slots=True)
class NameAbsent:
    """The object is absent; it is not known whose delete removed it."""


Outcome = Applied | Superseded | Rejected


class AttemptFailed(Exception):
    """One attempt at a store failed. Backends raise the subclasses; only `Store` sees them."""


class PreconditionFailed(AttemptFailed):
    """The storage reports that the expectation does not hold (HTTP 412, or 404 on a conditional write)."""


class NotApplied(AttemptFailed):
    """Certainly not applied, and worth repeating (409 conflict, 429, refused connection). `after`: seconds to wait."""

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


class Unknown(AttemptFailed):
    """Applied, not applied, or still under way (5xx, time-out, dropped connection)."""


class Refused(AttemptFailed):
    """The storage refuses now, and the request was not applied (401, 403, 400, no such bucket, read-only disk).

    `may_pass`: the reason may vanish by itself, like an expired token, so the request is worth repeating soon.
    """

    def __init__(self, message: str, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass


class NoBucket(Refused):
    """The root's bucket does not exist."""


class BadObject(AttemptFailed):
    """This key holds no usable object: not a regular file, too large, or unreadable for this user.

    Other keys are not affected.
    """


class Batches(Protocol):
    """Verbs on many small objects, with one attempt each in the caller's thread (see `file_batches`).

    They raise nothing: each returns what certainly succeeded, and leaves the other keys to the backend's own verbs.
    """

    def create(self, keys: Sequence[str], data: bytes) -> dict[str, Applied]: ...

    def read(self, keys: Iterable[str]) -> dict[str, Object]: ...

    def delete(self, keys: Iterable[str]) -> set[str]: ...


class StoreBackend(Protocol):
    """A kind of storage: one attempt per call, no retries inside, failures as exceptions.

    Every method may raise any `AttemptFailed`. A backend whose calls block anyway may also have `batches`.
    """

    root: str
    """The URL that `open_store` accepts, for messages."""
    scheme: str
    local: bool
    """Whether requests are free and fast (files, memory), so that callers may poll often."""

    @property
    def address(self) -> str:
        """See `Store.address`."""

    async def get(self, key: str) -> Object | None: ...

    async def get_if_changed(self, key: str, version: Version | None) -> Object | NotModified | None:
        """The object unless it still has `version`; without a version it is always read."""

    async def put(self, key: str, data: bytes, expect: Expectation) -> Applied: ...

    async def delete(self, key: str, expect: Expectation) -> None:
        """Delete the object if it meets `expect` (never `ABSENT`); an absent object counts as success."""

    async def withdraw(self, key: str, expect: Version, aside: str) -> None:
        """Delete an object that people write with plain tools, which take no lock (the inbox).

        Object stores delete on condition of the version. Local files rename to `aside`, because a `cp` may still be
        writing into the file; the caller checks `aside` once it no longer changes.
        """

    async def list(self, prefix: str, after: str | None, limit: int | None, versions: bool) -> list[Listed]:
        """Keys that start with `prefix`, in order of their UTF-8 bytes, strictly after `after`, at most `limit`."""

    def server_offset(self) -> float | None:
        """Seconds to add to this host's wall clock to get the storage's clock; None if not known yet."""

    async def close(self) -> None: ...


MAX_FOLDERS = 16
"""Most folders in a key: twice as many as any key of Fray has, and the depth of a local listing."""
PRIVATE_FOLDER = ".fray"
"""The folder where local files keep locks and temporary files; never listed."""


def check_key(key: str) -> None:
    """Raise `InvalidInput` unless every backend can hold an object under `key`."""
    try:
        encoded = key.encode()
    except UnicodeEncodeError:
        raise InvalidInput("key", key, "use text that UTF-8 can encode") from None
    segments = encoded.split(b"/")
    if any(segment in (b"", b".", b"..") for segment in segments):
        raise InvalidInput("key", key, "no segment between slashes may be empty, '.' or '..'")
    if b"\0" in encoded or b"\n" in encoded or b"\r" in encoded:
        raise InvalidInput("key", key, "leave out NUL, carriage return and line feed")
    if len(encoded) > MAX_KEY_BYTES or max(map(len, segments)) > MAX_KEY_PART_BYTES:
        raise InvalidInput(
            "key", key, f"use at most {MAX_KEY_PART_BYTES} bytes between two slashes and {MAX_KEY_BYTES} in all"
        )
    if len(segments) > MAX_FOLDERS + 1:
        raise InvalidInput("key", key, f"use at most {MAX_FOLDERS} slashes")
    if segments[0] == PRIVATE_FOLDER.encode():
        raise InvalidInput("key", key, f"the folder {PRIVATE_FOLDER} belongs to the store itself")


MAX_SPEC_BYTES = 4 * 1024**2
"""Bytes of a file in the inbox; a callable of `MAX_INLINE_BYTES` with an environment needs a tenth of it."""
MAX_RECORD_BYTES = 16 * 1024**2
"""Bytes of a record, an index entry or a lease: objects that the reconciler and every agent read again and again."""
MAX_DATA_BYTES = 1024**3
"""Bytes of a result, a callable, a log chunk, a checkpoint or a segment: objects that are read once, on request."""

_RECORD_PREFIXES = (PendingKey.area, ChildKey.area, PoolKeys.area)


def max_bytes(key: str) -> int:
    """The largest size of an object under `key`, in bytes."""
    if key.startswith(InboxKeys.area):
        return MAX_SPEC_BYTES
    return MAX_RECORD_BYTES if key.endswith((".json", "~lease")) or key.startswith(_RECORD_PREFIXES) else MAX_DATA_BYTES


def check_length(length: int, limit: int, name: str = "it") -> None:
    """Raise `BadObject`, before the object is read, if it has more than the `limit` bytes that its key allows."""
    if length > limit:
        raise too_large(limit, name)


def too_large(limit: int, name: str = "it") -> BadObject:
    """The error for an object that has more than the `limit` bytes that its key allows."""
    return BadObject(f"{name} has more than the {limit} bytes that an object with this key may have")


def check_written(key: str, size: int) -> None:
    """Raise `InvalidInput` if the data is too large for its key."""
    if size > (limit := max_bytes(key)):
        raise InvalidInput(key, f"{size} bytes", f"an object with this key may have at most {limit} bytes; divide it")
