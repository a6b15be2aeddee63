"""Invariants of machines, checked at every write and every call, every few seconds, and at the end."""

from __future__ import annotations

from typing import Any

from fray_agents.provisioning.provider import MachineRequest
from fray_coordinator.errors import StoreError
from fray_coordinator.protocol.role_lease import LEASE_INTERVALS
from fray_coordinator.protocol.scaling.machines import BOOT_SECONDS, CALL_SECONDS
from fray_coordinator.protocol.scaling.shares import cost_so_far
from fray_coordinator.protocol.transitions import TERMINAL, Status
from fray_coordinator.store.interface import ANY, NotApplied, Object
from fray_layouts import codec
from fray_layouts.errors import FrayError
from fray_layouts.object_keys import JobKeys, MachineKeys
from fray_layouts.records import ClusterSettings, JobRecord, MachineRecord, ProvisioningSpec
from fray_layouts.states import MachineState
from tests.simulation.clocks import EPOCH
from tests.simulation.invariants import Broken
from tests.simulation.loop import Participant
from tests.simulation.machine_provider import SimulatedMachine, SimulatedProvider
from tests.simulation.network import at_once
from tests.simulation.stage import Stage

STEP = 10.0
"""Virtual seconds between two checks of what must hold at any time."""

UNRECORDED = 400.0
"""Most virtual seconds for which a machine may exist without a record while the storage can be read: two scalers
are killed or frozen in a row, a lease has to age, and lists are not answered."""

DEMAND = 4000.0
"""Virtual seconds of calm in which a further job has ended: each machine that never boots is replaced after 600 s."""

RELEASED = 2 * BOOT_SECONDS + 600.0
"""Virtual seconds in which unneeded machines are gone and the least exists; again because of machines that never
boot."""

LAG = 2 * ClusterSettings().pass_interval
"""Seconds by which a machine's record may differ from its bill, on average: a run of the scaler at both of its ends."""

TAKEOVER = (LEASE_INTERVALS + 1) * ClusterSettings().pass_interval
"""Seconds by which the record of a machine may end later if the scaler that deleted it ran on a machine that ended with
it: another process runs once the lease has aged."""

LAG_IN_STORM = 90.0
"""The same while lists are stale and scalers are killed and frozen. Outages of the storage between a begin or an end
and its record count besides, as nobody can write in them."""

STORED = 3.0
"""Virtual seconds of calm in which a record says that its machine was made; a list would say it one run later."""


class MachineWatch(Stage):
    """A world that knows the existing machines and their records.

    Attributes:
        providers, specs: by pool.
        records: the stored records of machines, by name.
        statuses: of all jobs. jobs: those whose submission was acknowledged. regretted: those that users may stop.
        outages: the begin and the end of each outage of the storage.
        deleters: who wrote that a machine is to be deleted, by the machine's name.
        given_up: names of machines that a record has told to be deleted, or gone.
        harmed: names of machines whose records strangers changed. odd: those among them with malformed records.
        damaged: by key, the body that is restored later.
    """

    providers: dict[str, SimulatedProvider]
    specs: dict[str, ProvisioningSpec]

    def __init__(self, seed: int) -> None:
        super().__init__(seed, "machine ")
        self.records: dict[str, MachineRecord] = {}
        self.statuses: dict[str, str] = {}
        self.jobs: list[str] = []
        self.regretted: set[str] = set()
        self.outages: list[tuple[float, float]] = []
        self.deleters: dict[str, str] = {}
        self.given_up: set[str] = set()
        self.harmed: set[str] = set()
        self.odd: set[str] = set()
        self.damaged: dict[str, bytes | None] = {}
        self._to_overwrite: dict[str, bytes | None] = {}
        self.calm_since = 0.0
        self._unrecorded: dict[str, float] = {}
        self._strangers = Participant("stranger")

    def advance(self, until: float) -> None:
        """Let time pass, and check the invariants now and then."""
        while self.loop.now < until:
            self.loop.advance(min(self.loop.now + STEP, until))
            self._check_unrecorded()
            self._check_replies()

    # --- strangers

    def harm(self, key: str, odd: bool = False) -> None:
        """Note that a stranger is about to change this record, or to make it malformed."""
        if (found := MachineKeys.parse(key)) is not None:
            self.harmed.add(found[1])
            self.odd |= {found[1]} if odd else set()

    def overwrite(self, key: str, body: bytes | None) -> None:
        """Let a stranger overwrite or remove an object, once it is there; the last word on an object counts."""
        self._to_overwrite[key] = body
        self._overwrite(key)

    def _overwrite(self, key: str) -> None:
        if key not in self._to_overwrite:
            return
        if self.storage.strange is not None:
            self.later(5.0, self._overwrite, key)
            return
        body = self._to_overwrite.pop(key)
        backend = self.storage.backend
        act = backend.delete(key, ANY) if body is None else backend.put(key, body, ANY)
        self.note("stranger", "overwrites" if body is not None else "removes", key)
        self.storage.faults["touched record of a machine"] += 1
        before = self.storage.contents.objects.get(key)
        try:
            at_once(act)
        except NotApplied:  # the name was written a moment ago
            self._to_overwrite[key] = body
            self.later(2.0, self._overwrite, key)
            return
        self._on_write(key, before, self.storage.contents.objects.get(key), self._strangers)

    def _loop_error(self, context: dict[str, Any]) -> None:
        if isinstance(error := context.get("exception"), Exception) and not isinstance(error, StoreError):
            self.is_broken(Broken("nobody ends by an unexpected error", f"{context.get('message')}: {error!r}"))

    # --- at every write and call

    def _on_write(self, key: str, before: Object | None, after: Object | None, sender: Participant) -> None:
        if (job := JobKeys.parse(key)) is not None and after is not None:
            found = codec.decode(after.data, JobRecord).record
            self.statuses[job] = found.status
            self.note(sender.name, "writes", f"{job} {found.status} {found.lease}")
        if (parsed := MachineKeys.parse(key)) is None:
            return
        name, known = parsed[1], self.records.pop(parsed[1], None)
        if after is None:
            return
        try:
            self.records[name] = record = codec.decode(after.data, MachineRecord).record
        except (ValueError, RecursionError, FrayError):
            return
        self.note(sender.name, "writes", f"{name} {record.state} {record.reason}")
        if record.state in (MachineState.DELETING, MachineState.GONE):
            self.given_up.add(name)
        if record.state == MachineState.DELETING:
            self.deleters.setdefault(name, sender.name)
        if record.state == MachineState.GONE and (known is None or known.state != MachineState.GONE):
            self._check_gone(name, record)

    def _check_gone(self, name: str, record: MachineRecord) -> None:
        there = self.providers[record.pool].machines.get(name)
        if there is not None and there.listed.zone == record.zone and not there.again and name not in self.harmed:
            self.is_broken(Broken("what is there is not given up", f"{name} is gone by its record, and there", name))

    def asks_for(self, provider: SimulatedProvider, request: MachineRequest) -> None:
        """Check a create when it is sent."""
        for name in request.names:
            record = self.records.get(name)
            if name not in self.harmed and (record is None or record.asked_at is None):
                self.is_broken(Broken("nothing is asked for without a record", f"{name}: {record}", name))

    def asks_to_delete(self, provider: SimulatedProvider, name: str) -> None:
        """Check a delete when it is sent."""
        record, there = self.records.get(name), provider.machines.get(name)
        lost = record is None or record.state == MachineState.STRAY
        if lost and there is not None and name not in self.given_up | self.odd:
            self.is_broken(Broken("no machine goes because its record is missing", f"{name} is deleted", name))
        wanted = record is not None and record.state not in (MachineState.DELETING, MachineState.GONE)
        if wanted and there is not None and name not in self.harmed:
            self.is_broken(Broken("what is wanted is not deleted", f"{name} is deleted", name))

    def made(self, provider: SimulatedProvider, machine: SimulatedMachine) -> None:
        """Check a machine when it is made."""
        name = machine.listed.name
        record, spec = self.records.get(name), self.specs[provider.pool]
        alone = provider.asked[name] == 1 and not machine.again and name not in self.harmed
        if alone and record is not None and record.state == MachineState.GONE:
            message = f"{name} was given up {CALL_SECONDS:g} s before its call must have ended"
            self.is_broken(Broken("what may still come is waited for", message, name))
        paid = [
            record
            for other in provider.machines
            if other not in self.harmed
            and (record := self.records.get(other)) is not None
            and record.state not in (MachineState.GONE, MachineState.STRAY)
        ]
        cost = sum(record.hourly_cost or 0.0 for record in paid)
        if len(paid) > spec.max or (spec.max_hourly_cost is not None and cost > spec.max_hourly_cost + 1e-9):
            names = [record.name for record in paid]
            self.is_broken(Broken("never more than the pool may have", f"{len(paid)} for ${cost:g}: {names}", *names))

    # --- now and then

    def _check_unrecorded(self) -> None:
        if self.storage.down_until > self.loop.now or self.storage.strange is not None or self.damaged:
            return
        for pool, provider in self.providers.items():
            for name in provider.machines:
                record = self.records.get(name)
                if record is not None and record.state != MachineState.GONE:
                    self._unrecorded.pop(name, None)
                    continue
                self._unrecorded[name] = self._unrecorded.get(name, 0.0) + STEP
                if self._unrecorded[name] > UNRECORDED:
                    self.is_broken(Broken("no machine is without a record for long", f"{name} of {pool}", name))

    def _check_replies(self) -> None:
        for provider in self.providers.values():
            if self.stormy:
                provider.replies.clear()
            for name, (at, operation) in list(provider.replies.items()):
                if self.loop.now - at > STEP:
                    del provider.replies[name]
                    record = self.records.get(name)
                    late = record is not None and (record.created_at is None or record.created_at - EPOCH > at + STORED)
                    if late and name not in self.harmed:
                        message = f"{name} by {operation} at {at:.1f}: {record}"
                        self.is_broken(Broken("the reply of a create is stored", message, name))

    # --- the calm

    def settle(self) -> None:
        """Wait until all jobs have ended."""
        since, before = self.loop.now, 0
        while left := [job for job in self.jobs if self.statuses.get(job) not in TERMINAL]:
            if len(left) != before:
                since, before = self.loop.now, len(left)
            if self.loop.now - since > DEMAND:
                message = f"{len(left)} jobs have not ended, such as {left[0]}"
                raise Broken("demand is met", message, *left[:3], *self.records)
            self.advance(self.loop.now + 5 * STEP)
        for job in self.jobs:
            if self.statuses[job] != Status.SUCCEEDED and job not in self.regretted:
                raise Broken("demand is met", f"{job} has {self.statuses[job]}", job)

    def settle_machines(self) -> None:
        """Wait until the pools have their least number of machines, and no others."""
        begin = self.loop.now
        while True:
            try:
                for pool in self.providers:
                    self._check_rest(pool)
                return
            except Broken:
                if self.loop.now - begin > RELEASED:
                    raise
            self.advance(self.loop.now + 5 * STEP)

    def _check_rest(self, pool: str) -> None:
        """Check the machines of a pool without work."""
        there, least = self.providers[pool].machines, self.specs[pool].min
        mine = {n: m for n, m in self.records.items() if m.pool == pool and m.state != MachineState.GONE}
        told = {name: str(m.state) for name, m in mine.items()}
        message = f"{pool}: there are {sorted(there)}, by the records {told}"
        if len(there) > least or len(mine) > least:
            raise Broken("what nobody needs is gone", message, *there, *mine)
        if sum(m.state == MachineState.UP and name in there for name, m in mine.items()) < least:
            raise Broken("no pool stays below its least", message, *there, *mine)

    def check_bill(self) -> None:
        """Check that the costs in the records are the provider's bill."""
        self._check_bill(0.0, LAG_IN_STORM)
        self._check_bill(self.calm_since, LAG)

    def _check_bill(self, since: float, lag: float) -> None:
        """The same for the machines that were made since `since`, with a tolerance in seconds for each."""
        billed = told = allowed = 0.0
        for name, record in self.records.items():
            provider = self.providers[record.pool]
            noticed = name not in self.harmed | provider.unnoticed and record.wanted_at - EPOCH >= since
            if noticed and record.hourly_cost is not None:
                spans = provider.bill(self.loop.now, name)
                billed += sum(end - begin for begin, end in spans) / 3600.0 * record.hourly_cost
                told += cost_so_far(record, EPOCH + self.loop.now) or 0.0
                allowed += self._delay(record, spans, lag) / 3600.0 * record.hourly_cost if spans else 0.0
        if abs(billed - told) > 0.01 * billed + allowed:
            message = f"${billed:.3f} is billed since {since:.0f}, ${told:.3f} told"
            raise Broken("the records cost what is billed", message, *self.records)

    def _delay(self, record: MachineRecord, spans: list[tuple[float, float]], lag: float) -> float:
        """Seconds by which a record may differ from these billed spans of its machine."""
        now = EPOCH + self.loop.now
        begins = spans[0][0], (record.billed_at or now) - EPOCH
        ends = spans[-1][1], (record.ended_at or now) - EPOCH
        outages = self._outage_seconds(*begins) + self._outage_seconds(*ends)
        return lag + outages + (TAKEOVER if self._ended_with_its_deleter(record) else 0.0)

    def _outage_seconds(self, since: float, until: float) -> float:
        """Seconds between two times in which the storage was down."""
        overlaps = (min(end, until) - max(begin, since) for begin, end in self.outages)
        return sum(max(seconds, 0.0) for seconds in overlaps)

    def _ended_with_its_deleter(self, record: MachineRecord) -> bool:
        """Whether the scaler that deleted a machine ran on another one that ended at the same time."""
        host = self.records.get(self.deleters.get(record.name, "").partition(".")[0])
        if host is None or host.ended_at is None or record.ended_at is None:
            return False
        return abs(host.ended_at - record.ended_at) <= TAKEOVER
