"""The coordinator's pass: one function that does what no single job's holder does.

It watches the agents, admits the inbox, and now and then repairs. Any agent runs it under `coordinator/pass.json`;
`fray coordinate --once` runs it without the lease. Two at once do no harm: every write is conditional by itself. The
repair of very many jobs takes longer than a pass may: it goes on beside the next ones, so that agents are watched on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from fray_coordinator.admission import Admission
from fray_coordinator.core import Core, each_sound
from fray_coordinator.errors import BadRecord, StoreUnavailable
from fray_coordinator.protocol import passlease
from fray_coordinator.protocol.death import MAX_GAP_INTERVALS
from fray_coordinator.protocol.heartbeat import paced
from fray_coordinator.records import Stored, record_of
from fray_coordinator.repair import Repair
from fray_coordinator.watch import Watch
from fray_layouts.names import Agents, Coordinator, Inbox
from fray_layouts.records import AgentRecord, PassRecord, Suspect

LISTED_A_SECOND = 2000.0
"""So many jobs' names the repairs list on average at most: a million kept jobs are a thousand paid requests."""


@dataclass(slots=True)
class Pass:
    """One participant's share in the coordinator's pass.

    Attributes:
        identity: agent id, or "once-..." for a run without an agent.
        own_beat: the agent's current beat, noted in the lease for its successor.
    """

    core: Core
    identity: str
    own_beat: Callable[[], int] = lambda: 0
    watch: Watch = field(init=False)
    admission: Admission = field(init=False)
    repair: Repair = field(init=False)
    lease: Stored[PassRecord] | None = None
    _age: float = 0.0
    _looked_at: float | None = None
    _odd_drops: dict[str, str] = field(default_factory=dict)
    _repairing: asyncio.Task[None] | None = None
    _orphans: bool = False

    def __post_init__(self) -> None:
        self.watch = Watch(self.core)
        self.admission = Admission(self.core)
        self.repair = Repair(self.core, self.admission)

    @property
    def holds_lease(self) -> bool:
        """Whether the last look found the lease to be ours."""
        return self.lease is not None and self.lease.record.holder == self.identity

    def pool_slots(self, pool: str) -> int:
        """Free slots of a pool as the last pass saw them; a hint."""
        view = self.lease.record.pools.get(pool) if self.lease else None
        return view.slots if view else 1

    def fleet(self) -> int:
        """Live agents of all pools, as the last pass saw them; at least one, a hint."""
        views = self.lease.record.pools.values() if self.lease else ()
        return max(sum(view.agents for view in views), 1)

    async def turn(self) -> bool:
        """Look at the lease, take it if it is free or stale, and run a pass if it is ours; whether it ran."""
        await self._look_at_lease()
        if not self.holds_lease and not await self._take():
            self.stop()
            return False
        assert self.lease is not None, "it was just taken or seen"
        await self._run(self.lease.record.suspects)
        return True

    def stop(self) -> None:
        """Leave a repair that goes on beside the passes to whoever comes next."""
        if self._repairing is not None:
            self._repairing.cancel()
            self._repairing = None

    async def once(self) -> None:
        """Run without the lease: two looks, so that silence can be told, then leave the suspects for later runs."""
        self.lease = await self.core.records.read(Coordinator.lease, PassRecord)
        suspects = dict(self.lease.record.suspects) if self.lease else {}
        suspects = await self.watch.look(suspects)
        await self._admit()
        if suspects or self.admission.waiting:
            wait = max(MAX_GAP_INTERVALS * self.core.settings.beat_interval * 0.9, self.core.settings.inbox_patience)
            await self.core.clock.sleep(wait)
            suspects = await self.watch.look(suspects)
            await self._admit()
        await self.repair.run(self.watch.live())
        alive = set(self.watch.live())
        await self.core.records.update(
            Coordinator.lease,
            PassRecord,
            lambda now: passlease.after_visit(now or PassRecord(), suspects, alive),
        )

    async def resign(self) -> None:
        """Give the lease up, so that another need not wait for it to age."""
        if self.holds_lease:
            await self.core.records.update(
                Coordinator.lease,
                PassRecord,
                lambda now: replace(now, holder="") if now and now.holder == self.identity else None,
                known=self.lease,
            )

    async def _look_at_lease(self) -> None:
        clock, before = self.core.clock, self.lease
        gap = None if self._looked_at is None else clock.boottime() - self._looked_at
        if before is None:
            self.lease = await self.core.records.read(Coordinator.lease, PassRecord)
        else:
            self.lease = await self.core.records.reread(before)
        self._looked_at = clock.boottime()
        unchanged = before is not None and self.lease is not None and before.version == self.lease.version
        self._age = passlease.lease_age(self._age, unchanged, gap, self.core.settings)

    async def _take(self) -> bool:
        found = self.lease.record if self.lease else None
        if not passlease.may_take(found, self._age, self.core.settings):
            return False
        suspects: dict[str, Suspect] = {}
        if found is not None:
            suspects = passlease.inherit(found, self._age, await self._old_holder(found.holder))
        wanted = replace(found or PassRecord(), holder=self.identity, suspects=suspects, holder_beat=self.own_beat())
        written = await self.core.records.write(Coordinator.lease, PassRecord, wanted, self.lease)
        self._begin_anew(written.stored)
        return written.wrote

    async def _old_holder(self, name: str) -> AgentRecord | None:
        """None if it is absent or cannot be read: nothing is known of its silence."""
        try:
            return record_of(await self.core.records.read(Agents.key(name), AgentRecord)) if name else None
        except BadRecord:
            return None

    def _begin_anew(self, lease: Stored[PassRecord] | None) -> None:
        """Age is that of one version of the lease: what was counted before it was met is not its own."""
        self.lease, self._age, self._looked_at = lease, 0.0, self.core.clock.boottime()

    async def _run(self, suspects: dict[str, Suspect]) -> None:
        await self.watch.look(suspects)
        self._orphans |= self.watch.someone_died
        await self._admit()
        assert self.lease is not None, "a pass runs under the lease"
        await self._renew(self.watch.silent(), await self._repaired_at(self.lease.record.repaired_at))

    async def _repaired_at(self, last: float) -> float:
        """Go on with the repair, or begin one that is due, but not for long; when the last one ended.

        A death makes it due at once: what the dead agent claimed after its last beat no burial can see.
        """
        interval = 0.0 if self._orphans else self.core.settings.repair_interval
        if self._repairing is None and self.core.now() - last < paced(interval, self.repair.size, LISTED_A_SECOND):
            return last
        if self._repairing is None:
            self._orphans = False
            self._repairing = asyncio.create_task(self.repair.run(self.watch.live()))
        done, _ = await asyncio.wait([self._repairing], timeout=self.core.settings.poll_interval)
        if not done:
            return last
        ended, self._repairing = self._repairing, None
        try:
            ended.result()
        except StoreUnavailable:
            return last  # it is still due
        return self.core.now()

    async def _renew(self, suspects: dict[str, Suspect], repaired_at: float) -> None:
        def renewed(now: PassRecord | None) -> PassRecord | None:
            if now is None or now.holder != self.identity:
                return None
            beat, pools = self.own_beat(), self.watch.pools()
            problems = self.watch.problems | self._odd_drops | self.repair.problems
            return passlease.after_pass(now, self.identity, beat, suspects, pools, problems, repaired_at)

        update = await self.core.records.update(Coordinator.lease, PassRecord, renewed, known=self.lease)
        self._begin_anew(update.stored)

    async def _admit(self) -> None:
        keys = [row.key for row in await self.core.store.list(Inbox.prefix)]
        self.admission.forget_all_but(keys)
        self._odd_drops = {}
        await each_sound(keys, self.admission.look, self._odd_drops)
