"""One process's part in a leader election: it reads the role's lease, and takes, renews and resigns it.

The decisions are in `protocol/role_lease.py`.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord
from fray_coordinator.protocol import role_lease
from fray_coordinator.store.records import Stored
from fray_layouts.records import ReconcilerRecord, ScalerRecord

T = TypeVar("T")
L = TypeVar("L", ReconcilerRecord, ScalerRecord)


@dataclass(slots=True)
class RoleElection(Generic[L]):
    """A process that may hold a role.

    Attributes:
        key: key of the role's record, whose type is `kind`.
        identity: of the process: agent id, or "<what>-<token>".
        interval: the seconds between two renewals that a holder promises in the record.
        lease: the record as last read or written; None if there is none. If the record cannot be read, a stand-in with
            an unknown holder, which ages and is then replaced.
        age: seconds for which the lease was seen not to change.
    """

    core: Core
    key: str
    kind: type[L]
    identity: str
    interval: Callable[[L], float]
    lease: Stored[L] | None = None
    age: float = 0.0
    _read_at: float | None = None

    @property
    def is_won(self) -> bool:
        return self.lease is not None and self.lease.record.holder == self.identity

    @property
    def record(self) -> L:
        """The role's record; a fresh one if there is none."""
        return self.lease.record if self.lease is not None else self.kind()

    def may_take(self) -> bool:
        """Whether the role is free, or its holder has done nothing for long enough."""
        return role_lease.may_take(self.record, self.age, self.interval(self.record))

    async def read(self) -> None:
        """Read the lease, and update its age."""
        clock, before, records = self.core.clock, self.lease, self.core.records
        sent = clock.boottime()
        gap = None if self._read_at is None else sent - self._read_at
        try:
            self.lease = await (records.reread(before) if before else records.read(self.key, self.kind))
        except BadRecord:
            self.lease = await self._unreadable()
        if self.is_won:
            self.core.store.root_confirmed(sent)
        self._read_at = clock.boottime()
        unchanged = bool(before and self.lease and role_lease.is_unchanged(before.record, self.lease.record))
        self.age = role_lease.lease_age(self.age, unchanged, gap, self.interval(self.record))

    async def take(self, wanted: L) -> bool:
        """Write `wanted` if the record is still as last read; returns whether that was so and the role is taken."""
        try:
            written = await self.core.records.write(self.key, self.kind, wanted, self.lease)
        except BadRecord:
            self._set(await self._unreadable())
            return False
        self._set(written.stored)
        if written.wrote:  # from here on, to read its own name confirms the root
            await self.core.store.confirm_root()
        return written.wrote

    async def renew(self, change: Callable[[L], L]) -> bool:
        """Write the holder's change of its record; returns whether this process is still the holder."""

        def renewed(now: L | None) -> L | None:
            return change(now) if now is not None and now.holder == self.identity else None

        await self.update(renewed)
        return self.is_won

    async def renew_during(self, work: Coroutine[Any, Any, T], change: Callable[[L], L]) -> T | None:
        """Run the role's work and renew the lease meanwhile; None: the role was lost, and the work was cancelled."""
        doing = asyncio.create_task(work)
        try:
            while not (await asyncio.wait([doing], timeout=self.core.settings.pass_interval))[0]:
                if not await self.renew(change):
                    return None
            return doing.result()
        finally:
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)  # wait until the work has closed its resources

    async def resign(self) -> None:
        """Give the role up, so that another need not wait for the lease to age."""
        if self.is_won:
            await self.renew(lambda now: replace(now, holder=""))

    async def update(self, decide: Callable[[L | None], L | None]) -> None:
        """Write the change that `decide` makes, whoever has the role."""
        try:
            update = await self.core.records.update(self.key, self.kind, decide, known=self.lease)
        except BadRecord:
            self._set(await self._unreadable())
        else:
            self._set(update.stored)

    async def _unreadable(self) -> Stored[L] | None:
        """Return a stand-in for a record that cannot be read."""
        present = await self.core.store.get(self.key)
        if present is None:
            return None
        unknown = self.kind(holder=role_lease.UNREADABLE_HOLDER)
        return Stored(self.key, unknown, {}, present.version, present.updated)

    def _set(self, lease: Stored[L] | None) -> None:
        """Set the lease as last written; the age of each new version starts at 0."""
        self.lease, self.age, self._read_at = lease, 0.0, self.core.clock.boottime()
