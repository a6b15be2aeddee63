"""Taking names and giving them up. Who may is decided in `protocol.naming`."""

from fray_coordinator.core import Core
from fray_coordinator.errors import NameTaken
from fray_coordinator.protocol.naming import NameHolder, freed, holder_of, taken_for
from fray_coordinator.store.records import record_of
from fray_layouts.object_keys import JobKeys, NameKeys
from fray_layouts.records import JobRecord, NameRecord


async def take_name(core: Core, namespace: str, kind: str, name: str, job: str, exist_ok: bool = False) -> NameRecord:
    """Take a name that nobody has: it was never taken, or given up, or held for a job that has ended.

    Calling again for the same job finds what the first call made, so a call that failed may be repeated. While the name
    is held for a job that is not there yet, this waits: a minute, if its submitter has died.

    Args:
        kind: "actor", "job" or "queue".
        job: id of the job that it is held for, which may be submitted after this, within a minute; "" for what needs
            no job and is held until it is given up.
        exist_ok: if somebody has the name, return his record: its `job` is not this one.

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
    """Give the name up, if this incarnation still has it."""
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
