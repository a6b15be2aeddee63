"""Finds entries of the pending index that fit an agent, wherever in the index they are.

**Invariant.** An agent finds each entry that fits it, however many entries that do not fit come before it, and wherever
in the index it is.

**Unsafe sequence.** Each poll begins at the head and ends after a fixed number of pages: no agent finds the entries
after that. Or each poll begins where the last one ended: no agent finds an entry that is added before that position, or
that fits once more is free.

**Why this cannot happen.** A poll begins with the page at the head, for urgent entries, and goes on at the cursor. When
more resources become free, the entries that were passed for lack of them are searched again. Each sweep ends after a
time that grows with the number of entries that it passed.

The index is listed when the pool's doorbell has rung, when all listed entries are used up and there are more, and on
the repair interval. After entries that do not fit, each listing goes on where the last one ended.
"""

from dataclasses import dataclass, field

from fray_agents.agent.candidates import STALE, Candidates
from fray_agents.agent.leases import Leases
from fray_agents.agent.membership import Membership
from fray_agents.agent.overcommit import make_room_for_parents
from fray_agents.agent.pool_notices import PoolBell
from fray_coordinator.core import Core
from fray_coordinator.protocol.heartbeat import paced_interval
from fray_coordinator.protocol.role_lease import QUIET_INTERVALS
from fray_coordinator.protocol.scheduling import listing_start
from fray_coordinator.store.interface import ROWS_PER_REQUEST
from fray_layouts.index_keys import PendingKey
from fray_layouts.records import Resources

ENTRIES_PER_INTERVAL = 2000
"""Passed entries that lengthen a sweep by one repair interval. It is half of what the polls of idle agents pass in that
time, so no sweep ends before it has reached the end of the index."""


@dataclass(slots=True)
class IndexCursor:
    """One agent's position in the index; keys are those of the index, "" is its head."""

    _never: str = ""
    _unfit: str = ""
    _room: Resources | None = None
    _began: float = 0.0
    _passed: int = 0

    @property
    def waits_for_room(self) -> bool:
        """Whether it has passed entries that would fit if more were free."""
        return self._room is not None

    def begin_sweep(self, now: float, interval: float) -> None:
        """Begin a sweep at the head, if the last one has lasted long enough.

        Args:
            now: boot time in seconds.
            interval: seconds between repairs.
        """
        if now - self._began >= interval * (1 + self._passed / ENTRIES_PER_INTERVAL):
            self._never, self._unfit, self._room, self._began, self._passed = "", "", None, now, 0

    def behind(self, free: Resources) -> str:
        """The key after which to search for entries that fit `free`."""
        if self._room is not None and _exceeds(free, self._room):
            self._unfit, self._room = self._never, None
        return self._unfit

    def advance(self, key: str, count: int, free: Resources, for_ever: bool) -> None:
        """Pass `count` entries from `behind(free)` up to `key`: none fits `free` or, with `for_ever`, this host."""
        if for_ever and self._never == self._unfit:
            self._never = key
        else:
            self._room = free
        self._unfit = key
        self._passed += count


def _exceeds(free: Resources, room: Resources) -> bool:
    if max(free.device_shares, default=0) > max(room.device_shares, default=0):
        return True
    return any(getattr(free, what) > getattr(room, what) for what in ("cpu", "memory", "disk", "device_count"))


PAGES_PER_POLL = 4
"""Most pages, of `ROWS_PER_REQUEST` entries each, that one poll lists to find an entry that fits."""

PAGES_PER_SECOND = 200.0
"""Upper bound on listings of all agents together without a ring, when no entry fits any of their hosts."""

STALE_LIMIT = 12
"""Stale entries in a row after which the index is listed again, to see what is left: that many reads cost as much as a
listing (12.5 reads). After twice as many the poll ends."""

STALE_TRIES_PER_SECOND = 1000.0
"""Upper bound on claims of all agents together after polls that found mostly stale entries. The queue runs dry then;
entries of claimed jobs stay listed until their holders' next beats. A ring is still answered at once."""

LISTINGS_PER_SECOND = 50.0
"""Upper bound on listings of all agents together that make up for rings that were not heard."""

FULL_POLLS = 10.0
"""Poll intervals between two listings by an agent without a free core, which looks for jobs that need none, such as
actors. Without this bound each ring would cost each full agent a listing while many jobs are submitted."""

BACKFILL_TRIES = 8
"""Entries that one poll reads to see whether they end before their room is needed: the index does not say that."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entry to try. ends_before: as in `try_claim`."""

    entry: PendingKey
    ends_before: float | None = None


@dataclass(slots=True)
class IndexSearch:
    """One agent's search through the index; a poll is a sequence of `begin`, `next`... and `end`.

    bell: the doorbell of the agent's pool.
    """

    member: Membership
    bell: PoolBell
    _candidates: Candidates = field(init=False)
    _cursor: IndexCursor = field(default_factory=IndexCursor)
    _last: str | None = None
    _pages: int = 0
    _at_head: bool = False
    _stale: int = 0
    _backfills: int = 0
    _listed_at: float | None = None
    _rests_until: float = 0.0

    def __post_init__(self) -> None:
        self._candidates = Candidates(self.member.host_kind, self.member.leases.capacity)

    @property
    def _core(self) -> Core:
        return self.member.core

    @property
    def _leases(self) -> Leases:
        return self.member.leases

    async def begin(self) -> bool:
        """Begin a poll, with a listing if one is due; whether there may be anything to claim."""
        let_in = self.member.asks.let_in()
        for entry in let_in:
            self._candidates.put_off(entry, self._core.now())
        if due := self._repair_is_due():
            self._candidates.forget_put_off()
        if due or self._answers_bell():
            await self._list()
        elif self._core.clock.boottime() < self._rests_until and not let_in:
            return False
        elif not self._candidates.untried:
            self._pages = 0
        self._stale = self._backfills = 0
        return True

    async def next(self) -> Candidate | None:
        """The entry to try now; None if none fits what is free, or too many were stale."""
        if self._stale >= 2 * STALE_LIMIT:
            return None
        if self._stale == STALE_LIMIT and self._candidates.untried and self._at_head:
            await self._leave_head()
        while (candidate := self._fitting()) is None and self._last is not None and self._may_list_more():
            self._pages += 1
            await self._list_more(self._last)
        return candidate

    def end(self) -> None:
        """End a poll; after one that found nothing, the next waits for its share of the rate or for a ring."""
        if self._stale >= 2 * STALE_LIMIT:
            self._pass_stale()
        if self._stale >= STALE_LIMIT:
            self._rest(self._stale, STALE_TRIES_PER_SECOND)
        elif self._pages == PAGES_PER_POLL and not self._candidates.untried:
            self._rest(PAGES_PER_POLL, PAGES_PER_SECOND)

    def claimed(self) -> None:
        """Note that an entry was claimed, so the search has not run dry."""
        self._stale = 0

    def not_claimed(self, entry: PendingKey, until: float | None) -> None:
        """Note that an entry could not be claimed: try it again at that storage time; None: it is stale."""
        self._stale += until is None
        self._candidates.put_off(entry, STALE if until is None else until)

    def _rest(self, requests: int, per_second: float) -> None:
        """Make no poll without a ring until all agents, with that many requests each, stay within the rate."""
        self._rests_until = self._core.clock.boottime() + paced_interval(
            0.0, requests * self.member.live_agents, per_second
        )

    def _answers_bell(self) -> bool:
        if self._listed_at is None or self._leases.free().cpu > 0:
            return self.bell.rang_for_jobs
        rested = self._core.clock.boottime() - self._listed_at >= FULL_POLLS * self._core.settings.poll_interval
        return self.bell.rang_for_jobs and rested

    def _repair_is_due(self) -> bool:
        return self._listed_at is None or self._core.clock.boottime() - self._listed_at >= self._listing_interval()

    def _listing_interval(self) -> float:
        """Seconds between two listings without a ring; more in a quiet cluster, where the pass lists the index."""
        interval = self._core.settings.repair_interval * (QUIET_INTERVALS if self.member.is_quiet else 1)
        return paced_interval(interval, self.member.live_agents, LISTINGS_PER_SECOND)

    async def _list(self) -> None:
        """List the index from its head, or from a random place within the pool's slots after the head."""
        begun, self._pages = self._core.clock.boottime(), 1
        self._cursor.begin_sweep(begun, self._listing_interval())
        keys = await self._page(None)
        if self._last is not None and not self._cursor.behind(self._leases.free()):
            begin = listing_start(keys[0], keys[-1], len(keys), self.member.pool_slots, self._core.rng.random())
            if begin and (within := await self._page(begin)):
                keys, self._last = within, ""  # if none of these fits, the search goes on from the head
        self._candidates.replace(keys)
        self._at_head = True
        self._listed_at, self.bell.rang_for_jobs = begun, False  # only now: a listing that failed is still due

    async def _page(self, after: str | None) -> list[str]:
        """One listing; sets `_last` to the key after which the next one goes on, None at the end of the index."""
        rows = await self._core.store.list(PendingKey.prefix(self.member.record.pool), after, ROWS_PER_REQUEST)
        self._last = rows[-1].key if len(rows) == ROWS_PER_REQUEST else None
        keys = [row.key for row in rows]
        self.member.asks.note(keys, self.member.host_kind, self._core.now())
        await make_room_for_parents(self.member, keys)
        return keys

    async def _list_more(self, last: str) -> None:
        """List one page more, after `last` and after the entries that this agent has passed."""
        free, self._at_head = self._leases.free(), False
        keys = await self._page(max(last, self._cursor.behind(free)) or None)
        fits_ever = self._candidates.extend(keys, free if self._cursor.waits_for_room else None)
        if keys and not self._candidates.fits(free):
            self._cursor.advance(keys[-1], len(keys), free, not fits_ever)

    async def _leave_head(self) -> None:
        """Leave a head full of stale entries: go on after the passed entries, or list again to see what is left."""
        if self._last and self._last <= self._cursor.behind(self._leases.free()):
            self._candidates.clear()
        else:
            await self._list()

    def _pass_stale(self) -> None:
        """Begin the next poll after these stale entries: other agents have come this far, or nobody deletes them."""
        free = self._leases.free()
        if self._last and self._last > self._cursor.behind(free):
            self._cursor.advance(self._last, ROWS_PER_REQUEST, free, True)
            self._candidates.clear()

    def _may_list_more(self) -> bool:
        return self._pages < PAGES_PER_POLL

    def _fitting(self) -> Candidate | None:
        """A candidate that fits and is not held by this agent."""
        while True:
            candidate, now = self._draw(), self._core.now()
            lease = self._leases.held.get(candidate.entry.job) if candidate else None
            if candidate is None or lease is None:
                return candidate
            if lease.attempt < candidate.entry.attempt:  # the next attempt, whose requeue is not finished here
                self._candidates.put_off(candidate.entry, now + self._core.settings.poll_interval)

    def _draw(self) -> Candidate | None:
        """The candidate to try now, without the resources that are kept for waiting owners.

        The more stale entries in a row it has found, the further ahead it searches, as other agents have come this far.
        """
        free, now, width = self._leases.free(), self._core.now(), max(self.member.pool_slots, 2**self._stale)
        waiting = self._leases.waiting_placements()
        if waiting:  # in order, because only entries that come before the waiting owners go first
            entry = self._candidates.next(free, now, 1, 0.0, self._share)
        else:
            entry = self._candidates.next(free, now, width, self._core.rng.random())
        if entry is not None or not waiting:
            return Candidate(entry) if entry is not None else None
        until = min(held.owner.placement.until or 0.0 for held in waiting)
        if until <= now or self._backfills >= BACKFILL_TRIES:
            return None
        self._backfills += 1
        entry = self._candidates.next(free, now, width, self._core.rng.random())
        return Candidate(entry, until) if entry is not None else None

    def _share(self, key: str) -> Resources:
        """The free resources that the entry may use, beside owners of placements that come before it."""
        return self._leases.unreserved(entry=PendingKey.parse(key))
