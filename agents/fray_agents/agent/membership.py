"""An agent's membership of a cluster: its id, what it holds, and until when it may rely on that."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from fray_agents.agent.asks import Asks
from fray_agents.agent.leases import Leases
from fray_agents.agent.problems import AgentProblems
from fray_coordinator.core import Core
from fray_coordinator.protocol import heartbeat
from fray_coordinator.protocol.scheduling import HostKind, kind_of_host
from fray_coordinator.store.records import Stored
from fray_layouts.records import AgentRecord, JobRecord
from fray_layouts.spec import ends_with_trust

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
