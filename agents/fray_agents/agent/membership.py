"""An agent's membership of a cluster: its id, what it holds, its heartbeat, and until when it may rely on that.

The heartbeat is one object, written on condition of the version that was last seen.

Trust in all leases is dated from the first send of the beat that was found applied. A longer interval counts once the
beat that promises it was found applied. A shorter one counts from the send on, because others may see it before this
agent knows. No claim is sent before the record promises the interval of an agent with leases: a new agent's does, and
an idle one beats first. `fray_coordinator.protocol.heartbeat` decides what a beat says and what a rejected one means.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field

from msgspec.structs import replace

from fray_agents.agent.candidates import Asks
from fray_agents.agent.leases import Leases
from fray_agents.agent.problems import AgentProblems, is_set_within
from fray_coordinator.backoff import backoff
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord
from fray_coordinator.protocol import heartbeat
from fray_coordinator.protocol.heartbeat import HeartbeatInput
from fray_coordinator.protocol.scheduling import HostKind, kind_of_host
from fray_coordinator.store.interface import NAME_WRITE_INTERVAL
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import AgentRecord, Holding, JobRecord
from fray_layouts.spec import ends_with_trust
from fray_layouts.states import AgentState

RENEWALS_PER_BEAT, LONGEST_RENEWAL_PAUSE = 5, 1.0
"""Renewals of the tasks' deadlines in a beat interval, and the most seconds between two. While the agent trusts its
leases, deadlines are at least a beat interval ahead, so a busy agent may be late for some renewals."""


async def _nobody_runs_it() -> None:
    """Until the agent takes part in the pass."""


@dataclass(slots=True)
class Membership:
    """The state that all parts of an agent share; `Heartbeat` keeps it up to date.

    Attributes:
        core: the cluster.
        record: the agent's record as it is created.
        leases: everything that the agent holds.
        stored: the record as last written or read; None until it is known to exist.
        trusted_until: boot time until which the leases may be relied on.
        promised: the longest interval in seconds that its record may promise, whatever became of the beats that were
            sent since the last one that is known to be applied.
        promise_kept: set whenever a beat is known to be applied.
        fenced: set once this id must never act again. If an agent's record was overwritten with something else, the
            agent is fenced when its trust has run out and everything that it held has ended.
        leaving: it takes no more work, and its next beat without holdings is the last.
        beat_by: boot time by which a beat is requested, as far as the store's limits allow; infinite: none is.
        live_agents: number of live agents in the cluster, as the last pass saw it.
        pool_slots: one-core tasks that its pool can run at once, as the last pass saw it.
        is_quiet: the last pass left nothing to do, so it is run more rarely.
        end_quiet: makes passes frequent again.
        problems: what is wrong with the agent, as text for people.
        asks: the jobs that it keeps out for owners of placements.
    """

    core: Core
    record: AgentRecord
    leases: Leases
    stored: Stored[AgentRecord] | None = None
    trusted_until: float = 0.0
    promised: float = math.inf
    promise_kept: asyncio.Event = field(default_factory=asyncio.Event)
    fenced: asyncio.Event = field(default_factory=asyncio.Event)
    leaving: bool = False
    beat_by: float = math.inf
    live_agents: int = 1
    pool_slots: int = 1
    is_quiet: bool = False
    end_quiet: Callable[[], Awaitable[None]] = _nobody_runs_it
    problems: AgentProblems = field(init=False)
    asks: Asks = field(init=False)
    _failed_starts: int = 0

    def __post_init__(self) -> None:
        self.problems = AgentProblems(self.core)
        self.asks = Asks(self.leases)

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def host_kind(self) -> HostKind:
        """The properties of the host that jobs may require."""
        return kind_of_host(self.record)

    @property
    def beat(self) -> int:
        """The number of the last beat that is known to be applied."""
        return self.stored.record.beat if self.stored is not None else 0

    @property
    def draining(self) -> bool:
        """Whether somebody asked the agent to leave once its jobs have ended."""
        return self.stored is not None and self.stored.record.drain

    def trusts(self) -> bool:
        return not self.fenced.is_set() and self.core.clock.boottime() < self.trusted_until

    def vouches(self) -> bool:
        """Whether its gangs' replicas run, as far as it knows: it trusts its leases, stays, and saw no replica end.

        Other threads call this.
        """
        news = any(held.has_news for held in list(self.leases.placements.values()))
        return self.trusts() and not self.leaving and not news

    @property
    def unfit(self) -> bool:
        """Whether something is wrong with the agent, so that it must take no work."""
        leases = self.leases
        has_no_gpu = bool(leases.gpus_out) and len(leases.gpus_out) == leases.capacity.device_count
        return bool(self.problems.starts or self.problems.chips or self.problems.disk or has_no_gpu)

    def may_claim(self) -> bool:
        return self.trusts() and not self.leaving and not self.draining and not self.unfit

    def note_disk_problem(self, problem: str) -> None:
        """Record what is wrong with the tasks' disk, "" for nothing; while something is, the agent takes no work."""
        remedy = "the agent claims no jobs until somebody removes files there or starts it with TMPDIR on a larger disk"
        was, self.problems.disk = self.problems.disk, problem and f"{problem}; {remedy}"
        if bool(was) != bool(problem):
            self.request_beat()

    def task_deadline(self, job: JobRecord) -> float:
        """Boot time until which the job's task may run if the deadline is not moved again.

        An actor ends with the trust in its lease, unless it was created otherwise, so that callers never find two of
        it. So does a gang's replica, so that no two attempts run at once.
        """
        has_no_grace = ends_with_trust(job.spec) or self.fenced.is_set()
        now, settings = self.core.clock.boottime(), self.core.settings
        return heartbeat.task_deadline(now, self.trusted_until, settings, has_no_grace)

    @property
    def renewal_pause(self) -> float:
        """Seconds between two renewals of the tasks' deadlines."""
        return min(LONGEST_RENEWAL_PAUSE, self.core.settings.beat_interval / RENEWALS_PER_BEAT)

    def request_beat(self, within: float = 0.0) -> None:
        """Ask for a beat within so many seconds, as far as the store's limits allow."""
        self.beat_by = min(self.beat_by, self.core.clock.boottime() + within)
        self.leases.changed.set()

    async def promise_for_leases(self) -> None:
        """Beat until its record promises no longer an interval than that of an agent with leases; then end the quiet.

        Call it when the lease is listed and before its claim is sent. If this agent died with the claim, observers
        would go by what its record promises, and an idle agent's promise is long. And they would look rarely.
        """
        if not self._promises_too_long():
            return
        while self._promises_too_long():
            self.promise_kept.clear()
            self.request_beat()
            await self.promise_kept.wait()
        await self.end_quiet()  # only now, so that the pass which it wakes sees the new promise

    def _promises_too_long(self) -> bool:
        return self.promised > heartbeat.beat_interval(True, self.live_agents, self.core.settings)

    def count_start(self, worked: bool) -> None:
        """Record whether a task could be started; after too many failures in a row the host takes no more work."""
        self._failed_starts = 0 if worked else self._failed_starts + 1
        if self._failed_starts >= self.core.settings.start_failure_limit:
            self.problems.starts = (
                f"claims nothing: {self._failed_starts} tasks in a row could not be started; see their jobs"
            )
            self.request_beat()


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
        await member.core.store.confirm_root()
        if not await self._is_there(written.stored):
            member.fenced.set()
            return
        member.core.store.confirm_by(AgentKeys.key(member.id))  # from here on, to see this record confirms the root

    async def _is_there(self, written: Stored[AgentRecord] | None) -> bool:
        """Whether the record that was just created is there: not written in another cluster, nor overwritten."""
        try:
            return written is not None and await self.member.core.records.reread(written) is not None
        except BadRecord:
            return False

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
        core = self.member.core
        sent = core.clock.boottime()
        read = await core.records.reread(known)
        if read is known:
            core.store.root_confirmed(sent)
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
        if not written.wrote:  # if a copy of this record was found, the next beat would be a write to it
            member.core.store.suspect_root()
            member.request_beat()
            return
        self._on_applied(sent, interval)
        self._unchecked += 1
        if self._unchecked >= BEATS_PER_CHECK and await member.core.store.check_conditions(stored.version):
            self._unchecked = 0
        member.problems.told = frozenset(problems)
        member.core.store.root_confirmed(sent)
        self.on_listed(listed)
        if self._mail_taken:
            self._mail_taken = False
            self.on_mail()

    def _on_applied(self, first_send: float, interval: float) -> None:
        self._last_send = first_send
        self.member.trusted_until = heartbeat.trusted_until(first_send, interval)
        self.member.promised = interval
        self.member.promise_kept.set()
