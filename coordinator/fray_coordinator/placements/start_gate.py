"""Starts owners with a single write, which requires the votes of all members.

A gang that waits for its parent to adopt it is set aside, and so is an owner whose start depends on a record that
cannot be read, damaged or refused (its parent's, or that of one of its jobs). It gets no members until that is over.
Otherwise its bundles would take the room for which its parent, or another owner, waits.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, StoreError, is_outage
from fray_coordinator.jobs import stopping
from fray_coordinator.placements.reservations import HeldReservations
from fray_coordinator.placements.tables import AgentTable, OwnerTable, as_gang, as_reservation
from fray_coordinator.protocol.claiming import expired, is_pending_too_long
from fray_coordinator.protocol.placements.owners import owner_of_job
from fray_coordinator.protocol.placements.rounds import (
    OwnerRecord,
    lingering,
    missing_votes,
    owner_of,
    started,
    waits_for_lingering,
)
from fray_coordinator.protocol.stopping import ChildVerdict
from fray_coordinator.store.records import Stored
from fray_layouts.records import JobRecord


class SetAside(NamedTuple):
    """Until when, in seconds of `Clock.boottime`, an owner is not judged again, and the error for which it waits."""

    until: float
    problem: str


@dataclass(slots=True)
class StartGate:
    """Starts owners whose members have all voted, and stops gangs that must no longer start.

    Attributes:
        set_aside: by id, the owners that get no members for now. A gang that waits for its parent is judged again in
            each step; an owner with an unreadable record only on the repair interval, since a group reads all its jobs.
    """

    core: Core
    owners: OwnerTable
    agents: AgentTable
    held: HeldReservations
    set_aside: dict[str, SetAside] = field(default_factory=dict)
    _lingering: dict[tuple[str, int], set[str]] = field(default_factory=dict)

    async def try_start(self, stored: Stored[OwnerRecord], just_read: Collection[str]) -> bool:
        """Start an owner if all of its members, read after its record, have voted; returns whether it has started.

        Args:
            stored: its record, read in this step.
            just_read: the agents that were read after the record.
        """
        owner = owner_of(stored.record)
        if (waits := self.set_aside.get(owner.id)) is not None:
            await self._judge_again(stored, waits)
            return False
        members = {member.agent for member in owner.placement.members}
        if not members or missing_votes(owner, self.agents.records(), self.agents.silent()):
            return False
        await self.agents.read(members.difference(just_read))
        if missing_votes(owner, self.agents.records(), self.agents.silent()):
            return False
        if await self._judge(stored) is not ChildVerdict.KEEP:
            return False
        gang = as_gang(stored)
        if gang is not None and await self._lingers(gang.record):
            return False
        wanted = started(stored.record, self.agents.records(), self.core.now())
        written = await self.core.records.write(stored.key, type(stored.record), wanted, stored, one_of_many=True)
        self.owners.keep(stored.key, written.stored)
        return written.wrote

    def forget_all_but(self, owners: Collection[str]) -> None:
        """Keep only these owners set aside."""
        self.set_aside = {owner: waits for owner, waits in self.set_aside.items() if owner in owners}

    async def end_overdue(self) -> None:
        """Stop the gangs that have waited longer than their `pending_timeout`."""
        now = self.core.now()

        async def end(stored: Stored[OwnerRecord]) -> None:
            gang = as_gang(stored)
            if gang is not None and is_pending_too_long(gang.record, now):
                await stopping.stop_if(self.core, gang.key, lambda job: expired(job, self.core.now()), gang)
                self.owners.keep(gang.key, None)

        await self.owners.each_forming(end)

    async def _judge(self, stored: Stored[OwnerRecord]) -> ChildVerdict:
        """Whether the owner may start now; if it is STOP, the owner was ended. Sets it aside while it has to wait."""
        owner, now = owner_of(stored.record).id, self.core.clock.boottime()
        try:
            verdict = await self._verdict(stored)
        except (BadRecord, StoreError) as error:
            if is_outage(error):
                raise
            self.owners.problems[stored.key] = str(error)
            self.set_aside[owner] = SetAside(now + self.core.settings.repair_interval, str(error))
            return ChildVerdict.WAIT
        if verdict is ChildVerdict.WAIT:
            self.set_aside[owner] = SetAside(now, "")
        else:
            self.set_aside.pop(owner, None)
        return verdict

    async def _judge_again(self, stored: Stored[OwnerRecord], waits: SetAside) -> None:
        if self.core.clock.boottime() < waits.until:
            self.owners.problems[stored.key] = waits.problem
            return
        await self.owners.read([stored.key])  # its parent may have adopted it
        if (now := self.owners.known.get(stored.key)) is not None:
            await self._judge(now)

    async def _verdict(self, stored: Stored[OwnerRecord]) -> ChildVerdict:
        gang, reservation = as_gang(stored), as_reservation(stored)
        if reservation is not None:
            return ChildVerdict.STOP if await self.held.end_if_due(reservation) else ChildVerdict.KEEP
        assert gang is not None
        verdict = await stopping.child_verdict(self.core, gang)
        if verdict is ChildVerdict.STOP:
            await stopping.stop_orphan(self.core, gang)
            self.owners.keep(gang.key, None)
        return verdict

    async def _lingers(self, job: JobRecord) -> bool:
        """Whether some agent, read after the record, may still run an earlier attempt.

        All agents are read once for each attempt, which is enough: no agent starts an earlier attempt after that.
        """
        owner = owner_of_job(job)
        attempt = owner.id, owner.attempt
        if not waits_for_lingering(job, self.core.now(), self.core.settings):
            self._lingering.pop(attempt, None)
            return False
        if attempt not in self._lingering:
            owners = (owner_of(stored.record) for stored in self.owners.forming())
            forming = {(other.id, other.attempt) for other in owners}
            self._lingering = {known: agents for known, agents in self._lingering.items() if known in forming}
            await self.agents.read_changed()
        else:
            await self.agents.read(self._lingering[attempt])
        self._lingering[attempt] = set(lingering(owner, self.agents.records()))
        return bool(self._lingering[attempt])
