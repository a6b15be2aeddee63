"""The store that all other code uses: retries with a time limit, and resolves every lost reply by reading back.

A conditional write has three outcomes: applied, rejected, or unknown because the reply was lost. This layer never
guesses. A record has the id of the write that made it (`op`), of a few earlier writes (`recent_ops`) and of its
creation (`created_op`); an immutable object is compared byte by byte. So the object under the key shows the outcome. If
the expectation still holds, the same bytes are sent again with the same precondition, so that an earlier attempt that
arrives late changes nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import islice
from operator import lt
from typing import Any, TypeVar

from fray_coordinator.backoff import exponential_wait
from fray_coordinator.clock import Clock, RandomSource
from fray_coordinator.errors import REMOVE_HINT, BadRecord, StoreError, StoreRefused, StoreUnavailable
from fray_coordinator.store.interface import (
    ABSENT,
    ANY,
    MAX_RECORD_BYTES,
    Applied,
    AttemptFailed,
    BadObject,
    Batches,
    Expect,
    Expectation,
    Listed,
    NameAbsent,
    NotApplied,
    NotModified,
    Object,
    Outcome,
    PreconditionFailed,
    Refused,
    Rejected,
    StoreBackend,
    Superseded,
    Unknown,
    Version,
    check_key,
    check_written,
    max_bytes,
)
from fray_coordinator.store.metering import READ_VERBS, FailureTracker, MeteredBackend, RepeatedRequest, RequestCounts
from fray_coordinator.store.root_watch import RootWatch
from fray_layouts.errors import Malformed
from fray_layouts.object_keys import CLUSTER_KEY, DoctorKeys
from fray_layouts.parsing import parse_json
from fray_layouts.records import ClusterSettings

T = TypeVar("T")

FIRST_RETRY_WAIT, MAX_RETRY_WAIT = 0.1, 8.0
"""Seconds before the first retry: a few round trips to a bucket; and at most: a thousand agents that wait then send 125
requests a second."""
REFUSED_PATIENCE = 5.0
"""Seconds for which a refusal is retried that may pass by itself, such as expired credentials."""
SINGLE_OBJECT_PATIENCE = 3.0
"""Seconds for which one object of many may delay a read of all of them: less than the time between two passes."""
LATE_SECONDS = 3.0
"""Seconds after which a call without success is reported as failing; an answer normally takes a tenth of one."""


class Store:
    """An open root.

    Attributes:
        usage: numbers of requests so far.
        failing: the kinds of requests that fail at present.

    Args:
        backend: the storage.
        clock: measures patience and waits; its wall time plus the learnt offset is `now()`.
        rng: gives the jitter of retries.
        patience: seconds for which one call may retry before it raises `StoreUnavailable`.

    Every method raises `StoreUnavailable` if the storage does not answer within `patience`, `StoreRefused` if it
    refuses for good, `BadRecord` if only this key cannot be read or written, and `InvalidInput` for a key or a size
    that no store can hold.
    """

    def __init__(self, backend: StoreBackend, clock: Clock, rng: RandomSource, patience: float = 60.0) -> None:
        self.usage = RequestCounts()
        self.failing = FailureTracker(clock, backend.root)
        self.patience = patience
        self._backend = MeteredBackend(backend, self.usage)
        self._clock = clock
        self._rng = rng
        self._watch: RootWatch | None = None
        self._answered = {True: float("-inf"), False: float("-inf")}  # when a read, or a write, was last answered

    @property
    def root(self) -> str:
        return self._backend.root

    @property
    def address(self) -> str:
        """The root's one canonical form, however it was spelled; known once the storage has answered a request."""
        return self._backend.address

    @property
    def local(self) -> bool:
        """Whether requests are free and fast, so that frequent polling costs nothing."""
        return self._backend.local

    @property
    def renames(self) -> bool:
        """Whether `withdraw` renames an object instead of deleting it."""
        return self._backend.scheme == "file"

    def watch_root(self, settings: ClusterSettings, version: Version) -> None:
        """From now on answer nothing while the root holds another cluster than this one, or none; see `RootWatch`."""
        self._watch = RootWatch(self._clock, self.root, settings, version)

    def root_confirmed(self, sent: float) -> None:
        """Note that the root held the cluster: a record of this process, under an id used once, was there.

        sent: when the request was sent that showed it, by the clock's `boottime`.
        """
        if self._watch is not None:
            self._watch.confirmed(sent)

    def confirm_by(self, own: str) -> None:
        """From now on every write of this process's record, which was seen in the confirmed root, confirms the root.

        own: its key, whose id is used once. Only writes on a version of it may follow.
        """
        if self._watch is not None:
            self._watch.own = own

    def suspect_root(self) -> None:
        """Note that the root may hold another cluster: the next request confirms it first."""
        if self._watch is not None:
            self._watch.suspect()

    async def confirm_root(self) -> None:
        """Make sure that the root still holds the cluster, for example before an absent object counts as removed."""
        self.suspect_root()

        async def nothing() -> None:
            return

        await self._persist("get", CLUSTER_KEY, nothing)

    async def check_conditions(self, never: Version) -> bool:
        """Whether the storage rejects a write on a version that the object never had; if not, it answers nothing more.

        never: a version of another object. Costs one write, which is not repeated: False also if nobody can tell.
        """
        if self._watch is None or self.local:
            return True
        try:
            await self._watch.check_conditions(self._backend, never)
        except AttemptFailed:
            return False
        return True

    async def get(self, key: str, one_of_many: bool = False) -> Object | None:
        """Read the object; None if it is absent.

        one_of_many: a caller with more objects waits for this one: give up soon if the store answers other requests.
        """
        check_key(key)

        async def read() -> Object | None:
            return await self._backend.get(key)

        return await self._persist("get", key, read, one_of_many=one_of_many)

    async def get_if_changed(
        self, key: str, version: Version | None, patience: float | None = None, one_of_many: bool = False
    ) -> Object | NotModified | None:
        """Read the object, or return `NOT_MODIFIED` if it still has `version`: the cheap way to poll.

        Args:
            version: None if nothing is known of the object, which is then always read.
            patience: seconds to retry, instead of the store's; 0: one attempt.
            one_of_many: as in `get`.
        """
        check_key(key)

        async def read() -> Object | NotModified | None:
            answer = await self._backend.get_if_changed(key, version)
            if answer is None and version is not None:
                await self._confirm_root()
            return answer

        return await self._persist("get", key, read, patience, one_of_many)

    async def put(
        self,
        key: str,
        data: bytes,
        expect: Expectation,
        op: str | None = None,
        patience: float | None = None,
        one_of_many: bool = False,
    ) -> Outcome:
        """Write `data` if the object meets `expect`.

        Args:
            data: with `op`, a JSON record that has `op`, `recent_ops` and `created_op`; without `op`, any bytes.
            expect: a version, `ABSENT`, or `ANY`. A version needs `op`, because only a record shows whose write it is.
            op: the id of this write, never used before.
            patience: seconds to retry, instead of the store's; 0: one attempt.
            one_of_many: as in `get`.

        Returns:
            `Applied` only if the object's present state is this write. After `StoreUnavailable` the write is
            unresolved; after `StoreRefused` it was not applied.
        """
        check_key(key)
        check_written(key, len(data))
        if op is None and not isinstance(expect, Expect):
            raise ValueError("a write on a version needs an op: without it a lost reply cannot be resolved")
        recognizable = expect is not ANY or op is not None
        in_doubt = False

        async def settled() -> Outcome | None:
            outcome = await self._read_back(key, data, expect, op)
            if isinstance(outcome, Rejected) and outcome.current is None:
                await self._confirm_root()
            return outcome

        async def attempt() -> Outcome:
            nonlocal in_doubt
            if in_doubt and recognizable:
                if outcome := await settled():
                    return outcome
                await self._confirm_root_for("put", key)
            try:
                return await self._backend.put(key, data, expect)
            except Unknown:
                in_doubt = True
                raise
            except PreconditionFailed:
                in_doubt = True
                if outcome := await settled():
                    return outcome
                raise NotApplied("the precondition failed and now holds again: the name changed meanwhile") from None

        async def write() -> Outcome:
            nonlocal in_doubt
            try:
                outcome = await attempt()
                if isinstance(outcome, Applied) and outcome.version == expect:
                    in_doubt = True  # others may have overwritten it, or it may have overwritten theirs
                    raise Unknown("the object was changed and its version was not, so no write on a version is safe")
                return outcome
            except Refused as error:
                if in_doubt:  # the refusal says nothing about earlier attempts
                    raise Unknown(str(error)) from error
                raise

        return await self._persist("put", key, write, patience, one_of_many)

    async def delete(self, key: str, expect: Expectation = ANY) -> NameAbsent | Rejected:
        """Delete the object if it meets `expect`; retries until the storage says that it is absent."""
        check_key(key)

        async def remove() -> None:
            await self._backend.delete(key, expect)

        return await self._remove("delete", key, expect, remove)

    async def withdraw(self, key: str, expect: Version, aside: str) -> NameAbsent | Rejected:
        """Delete an object that people write with plain tools; local files move it to `aside`. Works as one of many."""
        check_key(key)
        check_key(aside)

        async def remove() -> None:
            await self._backend.withdraw(key, expect, aside)

        return await self._remove("withdraw", key, expect, remove, one_of_many=True)

    async def list(
        self, prefix: str, after: str | None = None, limit: int | None = None, versions: bool = False
    ) -> list[Listed]:
        """List the keys that start with `prefix`, in order of their UTF-8 bytes.

        Args:
            after: only keys strictly after this one.
            limit: largest number of rows.
            versions: fill in `version` and `updated` (on local files this reads every object).
        """

        async def read() -> list[Listed]:
            rows = await self._backend.list(prefix, after, limit, versions)
            if not (self.local or is_in_order([row.key for row in rows])):
                raise Unknown("the listing is not in the order of the names, so it may lack some")
            return rows

        return await self._persist("list", prefix, read)

    # --- batches of small objects in the caller's thread; keys that are not certain are left to the verbs above

    def create_batch(self, keys: Sequence[str], data: bytes) -> dict[str, Applied]:
        """Create objects that all hold `data`; returns those certainly created, by key; none on remote stores.

        keys: as `fray_layouts` makes them; for others, `put` reports what is wrong.
        """
        created = batches.create(keys, data) if (batches := self._batches(True)) is not None else {}
        self.usage.writes += len(created)
        return created

    def read_batch(self, keys: Sequence[str]) -> dict[str, Object]:
        """Read objects; returns those that certainly exist, by key; none on remote stores."""
        found = batches.read(keys) if (batches := self._batches(False)) is not None else {}
        self.usage.reads += len(found)
        return found

    def delete_batch(self, keys: Sequence[str]) -> set[str]:
        """Delete objects whose content does not matter; returns the keys that are certainly absent now."""
        absent = batches.delete(keys) if (batches := self._batches(True)) is not None else set()
        self.usage.deletes += len(absent)
        return absent

    def _batches(self, writes: bool) -> Batches | None:
        """The verbs on batches; None if there are none, or if the root must be confirmed first, as other verbs do."""
        watch = self._watch
        return None if watch is not None and watch.must_confirm(writes) else self._backend.batches

    def now(self) -> float:
        """The storage's clock, seconds since the epoch. Raises `RuntimeError` before `learn_clock()`."""
        offset = self._backend.server_offset()
        if offset is None:
            raise RuntimeError("the storage's clock is not known yet: await learn_clock() first")
        return self._clock.wall() + offset

    async def learn_clock(self) -> None:
        """Make sure that `now()` works; costs one read if no answer has carried the time yet."""
        if self._backend.server_offset() is None:
            await self.get(DoctorKeys.clock)

    async def close(self) -> None:
        await self._backend.close()

    async def _confirm_root(self) -> None:
        if self._watch is not None:
            await self._watch.confirm(self._backend)

    async def _confirm_root_for(self, verb: str, key: str) -> None:
        """Confirm the root if a request must not be sent without it. Raises NotApplied, also if that took too long."""
        if self._watch is not None and self._watch.must_confirm(verb not in READ_VERBS, key):
            await self._watch.confirm(self._backend)
            if self._watch.must_confirm(verb not in READ_VERBS, key):
                raise NotApplied("the answer that the root still holds the cluster came too late to count")

    async def _read_back(self, key: str, data: bytes, expect: Expectation, op: str | None) -> Outcome | None:
        return outcome_of_write(await self._backend.get(key), data, expect, op)

    async def _remove(
        self, verb: str, key: str, expect: Expectation, remove: Callable[[], Awaitable[None]], one_of_many: bool = False
    ) -> NameAbsent | Rejected:
        async def attempt() -> NameAbsent | Rejected:
            try:
                await remove()
            except PreconditionFailed:
                current = await self._backend.get(key)
                if current is None:
                    return NameAbsent()
                if current.version != expect:
                    return Rejected(current)
                raise NotApplied("the precondition failed and now holds again: the name changed meanwhile") from None
            return NameAbsent()

        return await self._persist(verb, key, attempt, one_of_many=one_of_many)

    async def _persist(
        self,
        verb: str,
        key: str,
        attempt: Callable[[], Awaitable[T]],
        patience: float | None = None,
        one_of_many: bool = False,
    ) -> T:
        """Call `attempt` until it returns, or until patience is over; after `LATE_SECONDS` the log says so."""
        request = RepeatedRequest(verb, key, self.patience if patience is None else patience, self._clock.boottime())
        if self.local:  # it answers faster than a timer can be made
            return await self._repeated(request, attempt, one_of_many)
        late = asyncio.get_running_loop().call_later(LATE_SECONDS, self._warn, request)
        try:
            return await self._repeated(request, attempt, one_of_many)
        finally:
            late.cancel()

    async def _repeated(self, request: RepeatedRequest, attempt: Callable[[], Awaitable[T]], one_of_many: bool) -> T:
        verb, key, started = request.verb, request.key, request.started
        failures = 0
        while True:
            try:
                await self._confirm_root_for(verb, key)
                answer = await attempt()
                self.failing.worked(verb, key)
                self._answered[verb in READ_VERBS] = self._clock.boottime()
                return answer
            except BadObject as error:
                raise BadRecord(f"{error}{REMOVE_HINT}") from error
            except (NotApplied, Unknown, Refused) as error:
                failures, request.last = failures + 1, str(error)
                wait = self._wait(failures, error)
                limit = request.patience
                if isinstance(error, Refused):
                    limit = min(limit, REFUSED_PATIENCE) if error.may_pass else 0.0
                lasted = self._clock.boottime() + wait - started
                is_alone = one_of_many and lasted > SINGLE_OBJECT_PATIENCE and await self._answers_others(verb, started)
                if lasted > LATE_SECONDS and not isinstance(error, Refused):
                    what = f"{verb} {self.root}/{key}"
                    self.failing.failed(verb, key, f"{what}: no success so far, the last answer was: {error}")
                if lasted > limit or is_alone:
                    within = request.patience if lasted > limit else SINGLE_OBJECT_PATIENCE
                    raise await self._given_up(verb, key, error, within, started) from error
                if self._clock.boottime() - started >= LATE_SECONDS:
                    self._warn(request)
            await self._clock.sleep(wait)

    def _warn(self, request: RepeatedRequest) -> None:
        """Say in the log that the storage does not answer, unless it has answered others since the request began."""
        is_long = request.verb == "list" or max_bytes(request.key) > MAX_RECORD_BYTES  # its answer may take as long
        if (request.last or not is_long) and self._answered[request.verb in READ_VERBS] <= request.started:
            self.failing.unanswered(request)

    async def _given_up(self, verb: str, key: str, error: AttemptFailed, patience: float, started: float) -> StoreError:
        what = f"{verb} {self.root}/{key}"
        if isinstance(error, Refused):
            failed: StoreError = StoreRefused(f"{what}: {error}")
        else:
            failed = StoreUnavailable(f"{what}: no success within {patience:g} s, the last answer was: {error}")
            failed.others_answered = patience > 0 and await self._answers_others(verb, started)
        if patience or not isinstance(error, NotApplied):  # a call without patience expects occasional failures
            self.failing.failed(verb, key, str(failed))
        return failed

    async def _answers_others(self, verb: str, since: float) -> bool:
        """Whether the storage has answered another such request since then, or answers one now.

        Only a write of data shows that writes work: even on a full disk, deletes and rejections work as usual.
        """
        reads = verb in READ_VERBS
        if self._watch is not None and self._watch.must_confirm(not reads):
            return False
        if self._answered[reads] <= since:
            with suppress(AttemptFailed):
                if reads:
                    await self._backend.get(DoctorKeys.clock)
                else:
                    await self._backend.put(DoctorKeys.written, b"written", ANY)
                self._answered[reads] = self._clock.boottime()
                if not reads:
                    await self._backend.delete(DoctorKeys.written, ANY)
        return self._answered[reads] > since

    def _wait(self, failures: int, error: AttemptFailed) -> float:
        longest = exponential_wait(failures, FIRST_RETRY_WAIT, MAX_RETRY_WAIT)
        asked = error.after if isinstance(error, NotApplied) and error.after else 0.0
        return asked + longest * self._rng.uniform(0.5, 1.0)


def outcome_of_write(current: Object | None, data: bytes, expect: Expectation, op: str | None) -> Outcome | None:
    """The outcome of a write in doubt, from the present object; None: not applied so far, so send it again."""
    if current is not None:
        record = _record_in(current.data) if op is not None else {}
        if current.data == data or (op is not None and record.get("op") == op):
            return Applied(current.version, current.updated)
        if op is not None and (op in _list_or_empty(record.get("recent_ops")) or record.get("created_op") == op):
            return Superseded(current)
    if expect is ANY or expect == (ABSENT if current is None else current.version):
        return None
    return Rejected(current)


def is_in_order(keys: Sequence[str]) -> bool:
    """Whether keys are in the order of their UTF-8 bytes (that of texts), or folder by folder, as file systems list."""
    return _ascends(keys) or _ascends([key.split("/") for key in keys])


def _ascends(keys: Sequence[Any]) -> bool:
    return all(map(lt, keys, islice(keys, 1, None)))


def _record_in(data: bytes) -> dict[str, Any]:
    """The record in `data`; empty if it is not a record, because anybody may write anything under any key."""
    try:
        record = parse_json(data)
    except Malformed:
        return {}
    return record if isinstance(record, dict) else {}


def _list_or_empty(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
