"""Takes names and gives them up. `protocol.naming` decides who may."""

from fray_coordinator.core import Core
from fray_coordinator.errors import NameTaken
from fray_coordinator.protocol.naming import NameHolder, freed, holder_of, taken_for
from fray_coordinator.store.records import record_of
from fray_layouts.object_keys import JobKeys, NameKeys
from fray_layouts.records import JobRecord, NameRecord


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
