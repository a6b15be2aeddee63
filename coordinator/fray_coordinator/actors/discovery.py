"""Discovery of actors: publishes, withdraws and finds their endpoints.

`protocol.naming` decides who may publish. The server withdraws its endpoint. If it does not, the agent removes the
endpoint when the task has ended; if the agent does not, the repair (`reconcile.removal`) does, at most two repair
intervals later.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain

from msgspec.structs import replace

from fray_coordinator.concurrency import map_concurrently, map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, StaleAttempt, StoreUnavailable, is_outage
from fray_coordinator.protocol.naming import HighWaterMark, announced, may_replace
from fray_coordinator.store.interface import Listed
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.object_keys import EndpointKey, NameKeys
from fray_layouts.records import EndpointRecord, JobRecord, NameRecord


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
