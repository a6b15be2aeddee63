"""The names and the endpoints of actors: taken and given up, published, found and withdrawn.

`protocol.naming` decides who may take a name and who may publish. The server withdraws its endpoint. If it does not,
the agent removes the endpoint when the task has ended; if the agent does not, the repair (`reconcile.removal`) does, at
most two repair intervals later.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain

from msgspec.structs import replace

from fray_coordinator.concurrency import map_concurrently, map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, NameTaken, StaleAttempt, StoreUnavailable, is_outage
from fray_coordinator.protocol.naming import (
    HighWaterMark,
    NameHolder,
    announced,
    freed,
    holder_of,
    may_replace,
    taken_for,
)
from fray_coordinator.store.interface import Listed
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.object_keys import EndpointKey, JobKeys, NameKeys
from fray_layouts.records import EndpointRecord, JobRecord, NameRecord


async def take_name(core: Core, namespace: str, kind: str, name: str, job: str, exist_ok: bool = False) -> NameRecord:
    """Take a name that is free: it was never taken, was given up, or is held for a job that has ended.

    A call that failed may be repeated: for the same job it finds the name that the first call took. If the name is held
    for a job that is not submitted yet, this waits for the job; if its submitter has died, the wait lasts a minute.

    Args:
        kind: "actor", "job" or "queue".
        job: id of the job that the name is for, which may be submitted within a minute after this; "" if the name needs
            no job and is held until it is given up.
        exist_ok: if somebody else has the name, return the holder's record instead of raising; its `job` differs.

    Raises:
        NameTaken: somebody has the name, and `exist_ok` is false.
        StoreUnavailable: unresolved; call again.
    """
    key = NameKeys.key(namespace, kind, name)
    current = await core.records.read(key, NameRecord)
    while True:
        found = record_of(current)
        if found is not None and job and found.job == job:
            return found
        hold = holder_of(found, await _holder(core, found), core.now())
        if hold is NameHolder.COMING:
            await core.clock.sleep(core.jittered(core.settings.poll_interval))
            current = await core.records.read(key, NameRecord)
            continue
        if found is not None and hold is NameHolder.HELD:
            if exist_ok:
                return found
            raise NameTaken(
                f"the {kind} {name} in namespace {namespace} exists already{_holder_text(found)}; {_remedy(kind)}"
            )
        written = await core.records.write(key, NameRecord, taken_for(found, job, core.now()), current)
        current = written.stored
        if written.wrote and current is not None:
            return current.record


async def free_name(core: Core, namespace: str, kind: str, name: str, incarnation: int) -> None:
    """Give the name up, if it still belongs to this incarnation."""
    key = NameKeys.key(namespace, kind, name)
    await core.records.update(key, NameRecord, lambda found: freed(found, incarnation))


async def read_name(core: Core, namespace: str, kind: str, name: str) -> NameRecord | None:
    """The name's record, held or free; None if it was never taken."""
    return record_of(await core.records.read(NameKeys.key(namespace, kind, name), NameRecord))


async def read_held(core: Core, namespace: str, kind: str, name: str) -> NameRecord | None:
    """The name's record if somebody has it now."""
    found = await read_name(core, namespace, kind, name)
    return None if holder_of(found, await _holder(core, found), core.now()) is NameHolder.FREE else found


async def _holder(core: Core, found: NameRecord | None) -> JobRecord | None:
    return record_of(await core.records.read(JobKeys.key(found.job), JobRecord)) if found and found.job else None


def _remedy(kind: str) -> str:
    if kind == "queue":
        return (
            "choose another name, or remove what has it: `fray queue rm`, or `shutdown` of the pool that it belongs to"
        )
    if kind == "actor":
        return "find it with client.get_actor(name), choose another name, or end it first"
    return "choose another name, ask for the one that has it, or end that first"


def _holder_text(found: NameRecord) -> str:
    return f", held by job {found.job}" if found.job else ""


async def publish(core: Core, endpoint: EndpointRecord, singleton: bool) -> EndpointRecord:
    """Publish an actor's endpoint in place of those of its earlier attempts; returns the record as written.

    Args:
        singleton: the actor alone holds its name, which was taken for its job (`naming.take_name`) in the endpoint's
            incarnation. Members of a pool need no name: each publishes under its own actor id.

    Raises:
        StaleAttempt: a later attempt has published, or another holder has the name.
        StoreUnavailable: unresolved: it was published, or was not, or will be; call again.
    """
    key, wanted = _endpoint_key(endpoint), replace(endpoint, published_at=core.now())
    while True:
        name = await _read_name(core, endpoint) if singleton else None
        current = await core.records.read(key, EndpointRecord)
        if not may_replace(record_of(current), endpoint):
            raise _stale_attempt(endpoint)
        if singleton and not await _announce(core, name, endpoint):
            continue
        if (await core.records.write(key, EndpointRecord, wanted, current)).wrote:
            return wanted


async def withdraw(core: Core, endpoint: EndpointRecord) -> None:
    """Remove the endpoint that this server published, if it is still there."""
    await _remove_if(core, _endpoint_key(endpoint), lambda found: found.nonce == endpoint.nonce)


async def withdraw_all(core: Core, keys: Iterable[str], job: JobRecord) -> None:
    """Remove those of the endpoints that this attempt of the job, or an earlier one, published."""

    def ours(found: EndpointRecord) -> bool:
        return found.job == job.id and found.attempt <= job.attempt

    await map_noting_problems(
        [key for key in keys if EndpointKey.parse(key)], lambda key: _remove_if(core, key, ours), {}
    )


async def lookup(core: Core, namespace: str, name: str) -> list[EndpointRecord]:
    """The endpoints of the name's latest incarnation, by actor id. To poll the name, keep an `EndpointLookup`."""
    return await EndpointLookup(core, namespace, name).poll()


async def lookup_prefix(core: Core, namespace: str, prefix: str) -> list[EndpointRecord]:
    """`lookup` of each name in the namespace that begins with `prefix`, in order of names; costs a listing for each."""
    rows = await core.store.list(EndpointKey.namespace_folder(namespace))
    keys = [key for row in rows if (key := EndpointKey.parse(row.key)) is not None]
    names = sorted({key.name for key in keys if key.name.startswith(prefix)})
    return list(chain.from_iterable(await map_concurrently(names, lambda name: lookup(core, namespace, name))))


@dataclass(slots=True)
class EndpointLookup:
    """A caller's view of a name. It reads only what changed, and never returns an older incarnation or attempt."""

    core: Core
    namespace: str
    name: str
    seen: HighWaterMark = field(default_factory=HighWaterMark)
    _read: dict[str, Stored[EndpointRecord]] = field(default_factory=dict)

    async def poll(self) -> list[EndpointRecord]:
        """The readable endpoints, by actor id; costs a listing, and a read of each endpoint that changed."""
        prefix = EndpointKey.folder(self.namespace, self.name)
        rows = await self.core.store.list(prefix, versions=True)
        named = [row for row in rows if EndpointKey.parse(row.key)]
        found = await map_concurrently(named, self._read_row)
        self._read = {stored.key: stored for stored in found if stored is not None}
        for stored in self._read.values():
            self.seen.meet(stored.record)
        return [stored.record for stored in self._read.values() if self.seen.accepts(stored.record)]

    async def _read_row(self, row: Listed) -> Stored[EndpointRecord] | None:
        before = self._read.get(row.key)
        if before is not None and before.version == row.version:
            return before
        try:
            return await self.core.records.read(row.key, EndpointRecord, one_of_many=True)
        except (BadRecord, StoreUnavailable) as error:  # no server can be found through it; the repair reports it
            if is_outage(error):
                raise
            return None


async def all_endpoints(core: Core, problems: dict[str, str]) -> list[EndpointRecord]:
    """Every endpoint under the root, by namespace and name; those that cannot be read are noted in `problems`."""
    keys = [row.key for row in await core.store.list(EndpointKey.area) if EndpointKey.parse(row.key)]
    found = await map_noting_problems(keys, lambda key: core.records.read(key, EndpointRecord), problems)
    return [stored.record for stored in found if stored is not None]


async def _announce(core: Core, name: Stored[NameRecord] | None, endpoint: EndpointRecord) -> bool:
    """Raise the attempt in the name's record; False if somebody else wrote it meanwhile. Raises StaleAttempt."""
    wanted = announced(record_of(name), endpoint)
    if wanted is None or name is None:
        raise _stale_attempt(endpoint)
    return (await core.records.write(name.key, NameRecord, wanted, name)).wrote


async def _read_name(core: Core, endpoint: EndpointRecord) -> Stored[NameRecord] | None:
    return await core.records.read(NameKeys.key(endpoint.namespace, "actor", endpoint.name), NameRecord)


async def _remove_if(core: Core, key: str, wanted: Callable[[EndpointRecord], bool]) -> None:
    found = await core.records.read(key, EndpointRecord)
    if found is not None and wanted(found.record):
        await core.store.delete(key, found.version)


def _endpoint_key(endpoint: EndpointRecord) -> str:
    return EndpointKey(endpoint.namespace, endpoint.name, endpoint.actor_id).key()


def _stale_attempt(endpoint: EndpointRecord) -> StaleAttempt:
    return StaleAttempt(
        f"actor {endpoint.name} in namespace {endpoint.namespace}: attempt {endpoint.attempt} of incarnation "
        f"{endpoint.incarnation} is not the latest any more; this process should end"
    )
