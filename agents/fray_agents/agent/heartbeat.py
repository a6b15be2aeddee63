"""The agent's heartbeat: one object, written on condition of what was last seen of it.

Trust in all leases is dated from the first send of the beat that was found applied. A longer interval counts once the
beat that promises it was found applied, a shorter one from the send on: others may see it before this agent knows.
What a beat says and what a rejected one means is decided in `fray_coordinator.protocol.heartbeat`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from msgspec.structs import replace

from fray_agents.agent.leases import Leases
from fray_agents.agent.problems import AgentProblems
from fray_coordinator.backoff import backoff
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord
from fray_coordinator.protocol import heartbeat
from fray_coordinator.protocol.heartbeat import HeartbeatInput
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import AgentRecord, Holding
from fray_layouts.states import AgentState

MAIL_CHECKS_PER_SECOND = 1000.0
"""What a fleet with work asks of the store at most to hear of its mail, all agents together."""

MIN_BEAT_SPACING = 1.0
"""Seconds between two beats at least, where the store limits writes to one name."""

LONGEST_PAUSE = 8.0
"""Seconds until a beat that failed is tried again: they grow to this."""


@dataclass(slots=True)
class Heartbeat:
    """Beats for one agent id until it is fenced or has left.

    Attributes:
        on_listed: called with the holdings of each applied beat.
        on_mail: called after the beat was applied that cleared the mail.
        fleet: live agents, as the last pass saw them.
        fenced: set once this id must do nothing more for ever. One whose record was overwritten with something odd ends
            so when its trust has run out and what it held has ended.
        troubles: what is wrong with the agent, for people.
        leaving: the next beat without holdings is the last.
    """

    core: Core
    ledger: Leases
    record: AgentRecord
    on_listed: Callable[[dict[str, Holding]], None]
    on_mail: Callable[[], None]
    troubles: AgentProblems
    fleet: int = 1
    leaving: bool = False
    fenced: asyncio.Event = field(default_factory=asyncio.Event)
    trusted_until: float = 0.0
    _stored: Stored[AgentRecord] | None = None
    _last_send: float = 0.0
    _early: bool = False
    _mail_taken: bool = False

    @property
    def beat(self) -> int:
        """The counter as last applied."""
        return self._stored.record.beat if self._stored else 0

    @property
    def joined(self) -> bool:
        """Whether the agent's record is known to exist, so that it may hold something."""
        return self._stored is not None

    @property
    def drained(self) -> bool:
        """Whether someone asked the agent to leave when it has nothing left to do."""
        return self._stored is not None and self._stored.record.drain

    @property
    def has_left(self) -> bool:
        return self._stored is not None and self._stored.record.state == AgentState.LEFT

    def trusts(self) -> bool:
        """Whether leases may be relied on now."""
        return not self.fenced.is_set() and self.core.clock.boottime() < self.trusted_until

    def beat_soon(self) -> None:
        """Beat as soon as the store's limits allow."""
        self._early = True
        self.ledger.changed.set()

    async def register(self) -> None:
        """Create the agent's record; before that it may claim nothing. Raises StoreError: ask again."""
        sent = self.core.clock.boottime()
        record = replace(self.record, problem=self.troubles.told())
        try:
            written = await self.core.records.write(AgentKeys.key(record.id), AgentRecord, record, None)
        except BadRecord:  # somebody wrote over it before this agent knew that it was there
            self.fenced.set()
            return
        self._stored = written.stored
        if written.wrote:
            self._applied(sent, record.interval)
        elif heartbeat.is_fenced(record_of(written.stored)):
            self.fenced.set()

    async def run(self) -> None:
        """Beat until fenced or gone; while that fails, for whatever reason, trust runs out as in an outage."""
        pauses = backoff(MIN_BEAT_SPACING, LONGEST_PAUSE)
        while not self.fenced.is_set() and not self.has_left:
            await self._until_due()
            if self.leaving and self.ledger.held and self.ledger.nothing_to_do():
                return  # what it could not end stays listed: observers declare this agent dead and put it back
            with self.troubles.survived("beat"):
                await self._beat()
                pauses = backoff(MIN_BEAT_SPACING, LONGEST_PAUSE)
                continue
            self._early = True
            await self.core.clock.sleep(self.core.jittered(next(pauses)))

    async def listen(self) -> None:
        """Look for mail between beats, while there is anything that mail could be about."""
        while not self.fenced.is_set() and not self.has_left:
            await self.core.clock.sleep(self.core.jittered(self._mail_pace()))
            if self._stored is not None and (self.ledger.held or self.core.store.local):
                with self.troubles.survived("look for mail"):
                    await self._look_for_mail(self._stored)

    async def _look_for_mail(self, known: Stored[AgentRecord]) -> None:
        found = record_of(await self.core.records.reread(known))
        if found is None or heartbeat.is_fenced(found) or found.mail or found.drain != self.drained:
            self.beat_soon()

    def _mail_pace(self) -> float:
        poll = self.core.settings.poll_interval
        return poll if self.core.store.local else heartbeat.paced_interval(poll, self.fleet, MAIL_CHECKS_PER_SECOND)

    def _interval(self) -> float:
        return heartbeat.beat_interval(bool(self.ledger.held), self.fleet, self.core.settings)

    async def _until_due(self) -> None:
        clock = self.core.clock
        while True:
            self.ledger.changed.clear()
            promised = self._stored.record.interval if self._stored else 0.0
            wait = self._last_send + min(promised, self._interval()) - clock.boottime()
            spacing = 0.0 if self.core.store.local else self._last_send + MIN_BEAT_SPACING - clock.boottime()
            if self._early or (self.leaving and self.ledger.nothing_to_do()):
                wait = spacing
            wait = max(wait, spacing)
            if wait <= 0:
                return
            try:
                async with asyncio.timeout(wait):  # wait_for may swallow a cancellation that comes with the change
                    await self.ledger.changed.wait()
            except TimeoutError:
                return

    async def _beat(self) -> None:
        assert self._stored is not None, "the agent registers before it beats"
        self._early = False
        self._mail_taken |= self._stored.record.mail
        listed, interval = self.ledger.holdings(), self._interval()
        problem, usage = self.troubles.told(), asdict(self.core.store.usage)
        pulse = HeartbeatInput(listed, interval, self.ledger.free(), problem, self.leaving, usage)
        wanted = heartbeat.next_beat(self._stored.record, pulse)
        sent = self._last_send = self.core.clock.boottime()
        self.trusted_until = min(self.trusted_until, heartbeat.trusted_until(sent, interval))
        try:
            written = await self.core.records.write(self._stored.key, AgentRecord, wanted, self._stored)
        except BadRecord:  # somebody wrote over it: nobody knows this id any more
            if not (self.trusts() or self.ledger.at_work()):
                self.fenced.set()
            raise
        if heartbeat.is_fenced(record_of(written.stored)) and not written.wrote:
            self.fenced.set()
            return
        self._stored = written.stored
        if not written.wrote:
            self._early = True
            return
        self._applied(sent, interval)
        self.on_listed(listed)
        if self._mail_taken:
            self._mail_taken = False
            self.on_mail()

    def _applied(self, first_send: float, interval: float) -> None:
        self._last_send = first_send
        self.trusted_until = heartbeat.trusted_until(first_send, interval)
