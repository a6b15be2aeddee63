"""The agent's heartbeat: one object, written on condition of the version that was last seen.

Trust in all leases is dated from the first send of the beat that was found applied. A longer interval counts once the
beat that promises it was found applied. A shorter one counts from the send on, because others may see it before this
agent knows. No claim is sent before the record promises the interval of an agent with leases: a new agent's does, and
an idle one beats first. `fray_coordinator.protocol.heartbeat` decides what a beat says and what a rejected one means.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

from msgspec.structs import replace

from fray_agents.agent.loops import is_set_within
from fray_agents.agent.membership import Membership
from fray_coordinator.backoff import backoff
from fray_coordinator.errors import BadRecord
from fray_coordinator.protocol import heartbeat
from fray_coordinator.protocol.heartbeat import HeartbeatInput
from fray_coordinator.store.interface import NAME_WRITE_INTERVAL
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import AgentRecord, Holding
from fray_layouts.states import AgentState

MAIL_CHECKS_PER_SECOND = 1000.0
"""Upper bound on mail checks of all agents together: a fifth of the reads that a bucket serves at first."""

LONGEST_PAUSE = 8.0
"""Longest pause in seconds before a beat that failed is tried again; the pauses grow to this from the shortest time in
which a bucket accepts another write of the record."""

BEATS_PER_CHECK = 40
"""Beats after which the agent tries whether the storage still keeps conditions, for example behind a new proxy. A busy
agent tries every three minutes, an idle one, which claims nothing meanwhile, every 40; each write more is one in 40."""


@dataclass(slots=True)
class Heartbeat:
    """Beats for one agent id until it is fenced or has left, and keeps its membership up to date.

    Attributes:
        on_listed: called with the holdings of each applied beat.
        on_mail: called once the beat that cleared the mail is applied.
    """

    member: Membership
    on_listed: Callable[[dict[str, Holding]], None]
    on_mail: Callable[[], None]
    _last_send: float = 0.0
    _mail_taken: bool = False
    _unchecked: int = 0

    async def register(self) -> None:
        """Create the agent's record; before that it may claim nothing. Raises StoreError: call again."""
        member = self.member
        sent = member.core.clock.boottime()
        problem = member.problems.summary(member.problems.now())
        record = replace(member.record, problem=problem, unfit=member.unfit)
        try:
            written = await member.core.records.write(AgentKeys.key(record.id), AgentRecord, record, None)
        except BadRecord:  # somebody overwrote the record before this agent knew that it was there
            member.fenced.set()
            return
        member.stored = written.stored
        if written.wrote:
            self._on_applied(sent, record.interval)
        elif heartbeat.is_fenced(record_of(written.stored)):
            member.fenced.set()
            return
        await member.core.store.confirm_root()  # from here on, to see this record confirms it
        member.core.store.confirm_by(AgentKeys.key(member.id))

    async def run(self) -> None:
        """Beat until fenced or gone; while beats fail, for whatever reason, trust runs out as in an outage."""
        pauses = backoff(NAME_WRITE_INTERVAL, LONGEST_PAUSE)
        while not self._is_over():
            await self._wait_until_due()
            if self.member.leaving and self.member.leases.lists_any() and self.member.leases.nothing_to_do():
                return  # jobs that it could not end stay listed: observers declare this agent dead and requeue them
            with self.member.problems.tolerated("beat"):
                await self._beat()
                pauses = backoff(NAME_WRITE_INTERVAL, LONGEST_PAUSE)
                continue
            self.member.request_beat()
            await self.member.core.clock.sleep(self.member.core.jittered(next(pauses)))

    async def watch_mail(self) -> None:
        """Look for mail between beats, while the agent holds anything that mail could concern."""
        member, core = self.member, self.member.core
        while not self._is_over():
            await core.clock.sleep(core.jittered(self._mail_interval()))
            if member.stored is not None and (member.leases.lists_any() or core.store.local):
                with member.problems.tolerated("look for mail"):
                    await self._look_for_mail(member.stored)

    async def _look_for_mail(self, known: Stored[AgentRecord]) -> None:
        read = await self.member.core.records.reread(known)
        if read is known:
            self.member.core.store.root_confirmed()
        found = record_of(read)
        if found is None or heartbeat.is_fenced(found) or found.mail or found.drain != self.member.draining:
            self.member.request_beat()

    def _is_over(self) -> bool:
        stored = self.member.stored
        return self.member.fenced.is_set() or (stored is not None and stored.record.state == AgentState.LEFT)

    def _mail_interval(self) -> float:
        core, live = self.member.core, self.member.live_agents
        interval = core.settings.poll_interval
        return interval if core.store.local else heartbeat.paced_interval(interval, live, MAIL_CHECKS_PER_SECOND)

    def _interval(self) -> float:
        member = self.member
        return heartbeat.beat_interval(member.leases.lists_any(), member.live_agents, member.core.settings)

    async def _wait_until_due(self) -> None:
        member, clock = self.member, self.member.core.clock
        while True:
            member.leases.changed.clear()
            promised = member.stored.record.interval if member.stored else 0.0
            due = min(member.beat_by, self._last_send + min(promised, self._interval()))
            spacing = 0.0 if member.core.store.local else self._last_send + NAME_WRITE_INTERVAL - clock.boottime()
            at_once = member.leaving and member.leases.nothing_to_do()
            wait = spacing if at_once else max(due - clock.boottime(), spacing)
            if wait <= 0:
                return
            if not await is_set_within(member.leases.changed, wait):
                return

    async def _beat(self) -> None:
        member, stored = self.member, self.member.stored
        assert stored is not None, "the agent registers before it beats"
        member.beat_by = math.inf
        self._mail_taken |= stored.record.mail
        listed, interval = member.leases.holdings(), self._interval()
        problems, requests = member.problems.now(), asdict(member.core.store.usage)
        problem = member.problems.summary(problems)
        beat_input = HeartbeatInput(
            listed,
            interval,
            member.leases.free(),
            problem,
            member.unfit,
            member.leaving,
            requests,
            member.asks.due(member.core.now(), member.core.settings.repair_interval, member.core.rng),
            member.leases.kept(),
        )
        wanted = heartbeat.next_beat(stored.record, beat_input)
        sent = self._last_send = member.core.clock.boottime()
        member.trusted_until = min(member.trusted_until, heartbeat.trusted_until(sent, interval))
        member.promised = max(member.promised, interval)
        try:
            written = await member.core.records.write(stored.key, AgentRecord, wanted, stored)
        except BadRecord:  # somebody overwrote the record: no observer knows this id any more
            if not (member.trusts() or member.leases.any_at_work()):
                member.fenced.set()
            raise
        if heartbeat.is_fenced(record_of(written.stored)) and not written.wrote:
            member.fenced.set()
            return
        member.stored = written.stored
        if not written.wrote:
            member.request_beat()
            return
        self._on_applied(sent, interval)
        self._unchecked += 1
        if self._unchecked >= BEATS_PER_CHECK and await member.core.store.check_conditions(stored.version):
            self._unchecked = 0
        member.problems.told = frozenset(problems)
        member.core.store.root_confirmed()
        self.on_listed(listed)
        if self._mail_taken:
            self._mail_taken = False
            self.on_mail()

    def _on_applied(self, first_send: float, interval: float) -> None:
        self._last_send = first_send
        self.member.trusted_until = heartbeat.trusted_until(first_send, interval)
        self.member.promised = interval
        self.member.promise_kept.set()
