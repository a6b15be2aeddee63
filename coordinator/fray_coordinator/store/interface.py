"""The interface of object stores: the verbs, their outcomes, and the duties of a backend.

Two layers share these names. A `StoreBackend` makes one attempt per call against one kind of storage and says honestly
what it knows (`Attempt...` exceptions). `Store` (store.py) is what everything else uses: it retries, resolves
ambiguity by reading back, meters, and learns the storage's clock.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

Version = str
"""Opaque, equal only to itself. GCS: generation. S3: ETag. Memory and local files: digest of the content."""


class Expect(enum.Enum):
    """An expectation of the name other than a `Version`."""

    ABSENT = "absent"
    ANY = "any"


ABSENT = Expect.ABSENT
ANY = Expect.ANY
Expectation = Version | Expect


class NotModified(enum.Enum):
    """Answer of `get_if_changed` when the object still has the version that was given."""

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
    """A row of a listing. `version` and `updated` are None unless the listing was asked for versions."""

    key: str
    version: Version | None = None
    updated: float | None = None


class Applied(msgspec.Struct, frozen=True, gc=False):
    """The write is the object's current state; `updated` is the storage's time where its answer carries it."""

    version: Version
    updated: float | None = None


@dataclass(frozen=True, slots=True)
class Superseded:
    """The write was applied and someone has written since: decide again from `current` (None: deleted since)."""

    current: Object | None


@dataclass(frozen=True, slots=True)
class Rejected:
    """The write is not in the object, and cannot get into it: decide again from `current` (None: the name is absent).

    Two limits that no client can see past: a create that is still on its way lands when the name is deleted first
    (never reuse names), and a name that is absent may have held our write before somebody deleted it.
    """

    current: Object | None


@dataclass(frozen=True, slots=True)
class NameAbsent:
    """The name is absent; whose delete it was is not known."""


Outcome = Applied | Superseded | Rejected


class AttemptFailed(Exception):
    """One attempt at a store failed. Backends raise the subclasses; only `Store` sees them."""


class PreconditionFailed(AttemptFailed):
    """The storage says that the expectation does not hold (HTTP 412, or 404 on a conditional write)."""


class NotApplied(AttemptFailed):
    """Certainly not applied, worth repeating (409 conflict, 429, refused connection). `after`: seconds to wait."""

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


class Unknown(AttemptFailed):
    """Applied, not applied, or still on its way (5xx, time-out, dropped connection)."""


class Refused(AttemptFailed):
    """The storage will not do this now, and it was not applied (401, 403, 400, no such bucket, read-only disk).

    `may_pass`: it is about something that is renewed by itself, such as a token, and is worth asking again soon.
    """

    def __init__(self, message: str, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass


class NoBucket(Refused):
    """There is no bucket of the root's name."""


class BadObject(AttemptFailed):
    """This one name holds no usable object: no regular file, too large, or closed to this user alone.

    Nothing follows from it for other names.
    """


class Batches(Protocol):
    """Verbs on many small objects, one attempt each in the caller's thread (see `file_batches`).

    None raises: each returns what it is sure of, and leaves the other names to the backend's own verbs.
    """

    def create(self, keys: Sequence[str], data: bytes) -> dict[str, Applied]: ...

    def read(self, keys: Iterable[str]) -> dict[str, Object]: ...

    def delete(self, keys: Iterable[str]) -> set[str]: ...


class StoreBackend(Protocol):
    """A kind of storage: one attempt per call, no retries inside, outcomes by exception.

    Every method may raise any `AttemptFailed`. A backend whose calls block anyway may also have `batches`.
    """

    root: str
    """The URL that `open_store` accepts, for messages."""
    scheme: str
    local: bool
    """Requests are free and fast (files, memory): callers may poll often."""

    async def get(self, key: str) -> Object | None: ...

    async def get_if_changed(self, key: str, version: Version | None) -> Object | NotModified | None:
        """The object unless it still has `version`; without one it is read plainly."""

    async def put(self, key: str, data: bytes, expect: Expectation) -> Applied: ...

    async def delete(self, key: str, expect: Expectation) -> None:
        """Delete the name if it meets `expect` (`ABSENT` makes no sense here); an absent name is success."""

    async def withdraw(self, key: str, expect: Version, aside: str) -> None:
        """Delete an object that people write with plain tools which take no lock (the inbox).

        Object stores delete on condition of the version. Local files rename to `aside`, because a `cp` may be
        writing into the very file; the caller looks at `aside` once it is stable.
        """

    async def list(self, prefix: str, after: str | None, limit: int | None, versions: bool) -> list[Listed]:
        """Keys that start with `prefix`, in order of their UTF-8 bytes, strictly after `after`, at most `limit`."""

    def server_offset(self) -> float | None:
        """Seconds to add to this host's wall clock to get the storage's clock; None while not known."""

    async def close(self) -> None: ...
