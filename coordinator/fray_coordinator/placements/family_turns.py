"""Lets families go before the owners that wait for one of their jobs to end, and ends their turns.

`protocol.placements.families` decides. Before a family is let in, the records are read of the job that asks and of its
parent: a job that may not start in any case must not delay an owner.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord
from fray_coordinator.jobs.stopping import child_verdict
from fray_coordinator.placements.tables import OwnerTable, as_gang
from fray_coordinator.protocol.placements.assignment import Assignment, assign
from fray_coordinator.protocol.placements.families import (
    FamilyChange,
    KeptOut,
    Turn,
    asks_by_owner,
    change_of_families,
    kept_out_by_asks,
    waits_without_members,
)
from fray_coordinator.protocol.placements.hosts import HostView
from fray_coordinator.protocol.placements.owners import Owner
from fray_coordinator.protocol.placements.rounds import OwnerRecord, members_without_room, owner_of, placed
from fray_coordinator.protocol.stopping import ChildVerdict
from fray_coordinator.protocol.transitions import Status
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.object_keys import JobKeys, PoolKeys
from fray_layouts.records import AgentPoolRecord, AgentRecord, JobRecord, Placement

log = logging.getLogger("fray")

Sight = tuple[Mapping[str, AgentRecord], list[HostView], Mapping[str, Owner], Mapping[str, Assignment]]
"""What the scheduler sees in a step: the agents by id, the hosts, the owners as they were assigned hosts, by id, and
what they were assigned."""


@dataclass(slots=True)
class FamilyTurns:
    """The families that go before the owners of a cluster.

    Attributes:
        owners: the owners that have not ended.
    """

    core: Core
    owners: OwnerTable
    _not_before: dict[str, float] = field(default_factory=dict)
    _limits: dict[str, tuple[float, float]] = field(default_factory=dict)

    async def write(self, sight: Sight, except_for: set[str]) -> list[Stored[OwnerRecord]]:
        """Write the changes of the families before all owners; returns the records that changed.

        except_for: ids of owners whose records changed in this step.
        """
        agents, hosts, divided, found = sight
        records: list[Stored[OwnerRecord]] = [
            *self.owners.forming(),
            *cast("list[Stored[OwnerRecord]]", self.owners.held()),
        ]
        records.sort(key=lambda stored: owner_of(stored.record).order)
        owners = [_in_its_pool(owner_of(stored.record), divided) for stored in records]
        asks = asks_by_owner(agents.values())
        unplaced = [o for o in owners if o.forming and o.id in found and not found[o.id].members]
        if not (asks or unplaced or any(owner.placement.first for owner in owners)):
            return []
        by_agent = {(host.pool, host.agent): host for host in hosts}
        without_room: dict[str, AgentRecord] = {}
        changed: list[Stored[OwnerRecord]] = []
        for stored, owner in zip(records, owners, strict=True):
            without_room |= {agent.id: agent for agent in members_without_room(owner, by_agent, agents)}
            if owner.id in except_for or not owner.placement.members:
                continue
            behind = (o for o in unplaced if o.pool == owner.pool and o.id != owner.id)
            kept_out = [*kept_out_by_asks(owner, asks.get(owner.id, ())), *map(waits_without_members, behind)]
            limit = await self._hold_limit(owner.placement, agents) if kept_out else float("inf")
            try:
                wanted = await self._confirmed(owner.placement, kept_out, list(without_room.values()), limit, sight)
                written = await self._written(stored, wanted) if wanted is not None else None
            except BadRecord as error:
                self.owners.problems[stored.key] = str(error)
                continue
            changed += [written] if written is not None else []
        return changed

    async def _confirmed(
        self,
        placement: Placement,
        kept_out: list[KeptOut],
        without_room: list[AgentRecord],
        hold_limit: float,
        sight: Sight,
    ) -> FamilyChange | None:
        """The change of an owner's families, if all for whose sake one is let in could start."""
        now, settings = self.core.clock.boottime(), self.core.settings
        self._not_before = {who: at for who, at in self._not_before.items() if at > now}
        while True:
            wishes = [wish for wish in kept_out if wish.who not in self._not_before]
            wanted = change_of_families(placement, wishes, without_room, self.core.now(), settings, hold_limit)
            turns = wanted.turns if wanted is not None else ()
            futile = [turn.kept_out.who for turn in turns if not await self._may_start(turn, sight)]
            if not futile:
                return wanted
            self._not_before |= dict.fromkeys(futile, now + settings.repair_interval)

    async def _may_start(self, turn: Turn, sight: Sight) -> bool:
        """Whether it could start if there were room. If that cannot be read, it could not, as far as anybody knows."""
        entry = turn.kept_out.entry
        try:
            if entry is None:
                _, hosts, divided, _ = sight
                return await self._owner_may_start(divided[turn.kept_out.who], hosts)
            job = await self.core.records.read(JobKeys.key(entry.job), JobRecord, one_of_many=True)
            if job is None or job.record.status != Status.PENDING or job.record.attempt != entry.attempt:
                return False
            return await child_verdict(self.core, job) is ChildVerdict.KEEP
        except BadRecord:
            return False

    async def _owner_may_start(self, owner: Owner, hosts: list[HostView]) -> bool:
        gang = as_gang(self.owners.known[owner.key])
        if gang is not None and await child_verdict(self.core, gang) is not ChildVerdict.KEEP:
            return False
        alone = replace(owner, placement=Placement(refused=owner.placement.refused))
        return bool(assign(hosts, [alone])[owner.id].members)

    async def _hold_limit(self, placement: Placement, agents: Mapping[str, AgentRecord]) -> float:
        """The `hold_limit` of the members' pool, read again on the repair interval; the default if it is unreadable."""
        pool = next((agents[m.agent].pool for m in placement.members if m.agent in agents), "")
        limit, read_at = self._limits.get(pool, (0.0, float("-inf")))
        now = self.core.clock.boottime()
        if now - read_at >= self.core.settings.repair_interval:
            try:
                record = (
                    record_of(await self.core.records.read(PoolKeys.record(pool), AgentPoolRecord)) if pool else None
                )
            except BadRecord:  # the scaler and fsck report it
                record = None
            limit = (record or AgentPoolRecord()).hold_limit
            self._limits[pool] = limit, now
        return limit

    async def _written(self, stored: Stored[OwnerRecord], wanted: FamilyChange) -> Stored[OwnerRecord] | None:
        """The record with the change; None if another write came first."""
        body = placed(stored.record, wanted.placement)
        written = await self.core.records.write(stored.key, type(stored.record), body, stored, one_of_many=True)
        self.owners.keep(stored.key, written.stored)
        if not written.wrote:
            return None
        owner = owner_of(stored.record).id
        for turn in wanted.turns:
            why = f", because {turn.for_job} runs on {turn.agent}" if turn.for_job else ""
            log.info("%s: the family of %s goes first%s", owner, turn.kept_out.who, why)
        if wanted.over:
            log.info("%s: %d families no longer go first", owner, len(wanted.over))
        return written.stored


def _in_its_pool(owner: Owner, divided: Mapping[str, Owner]) -> Owner:
    """The owner in the pool in which it is given room."""
    return replace(owner, pool=divided[owner.id].pool) if owner.id in divided else owner
