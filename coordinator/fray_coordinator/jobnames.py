"""Jobs by name: the one that runs under a name, or the id that the next one must have."""

from __future__ import annotations

from fray_coordinator.core import Core
from fray_coordinator.protocol.jobname import successor
from fray_coordinator.records import record_of
from fray_layouts.names import JobId, Jobs, Names
from fray_layouts.records import JobRecord, NameRecord
from fray_layouts.spec import check_name

KIND = "job"


async def job_named(core: Core, namespace: str, name: str) -> tuple[str, bool]:
    """The id that whoever submits `name` must use, and whether there is a job under it that goes on.

    Raises:
        InvalidInput: the name or the namespace cannot be part of a key.
    """
    check_name("namespace", namespace)
    check_name("name", name)
    key = Names.key(namespace, KIND, name)
    known = await core.records.read(key, NameRecord)
    fresh = JobId.fresh(name, core.now(), core.chance.token())
    while True:
        job = record_of(await core.records.read(Jobs.key(known.record.job), JobRecord)) if known else None
        wanted = successor(record_of(known), job, fresh, core.now(), core.settings.quarantine)
        if wanted is None and known is not None:
            return known.record.job, job is not None
        assert wanted is not None, "a name that nobody has is taken"
        written = await core.records.write(key, NameRecord, wanted, known)
        if written.wrote:
            return fresh, False
        known = written.stored
