"""Jobs that have ended are submitted again, except those that only their program can create again."""

from __future__ import annotations

import pytest

from fray_coordinator.actors import naming
from fray_coordinator.core import Core
from fray_coordinator.errors import NameTaken
from fray_coordinator.jobs import stopping
from fray_coordinator.jobs.submission import retry, retry_obstacles
from fray_layouts.errors import InvalidInput
from fray_layouts.records import JobRecord
from tests.support.scripted_agents import job_now, launch


async def ended(core: Core, **fields: object) -> JobRecord:
    job = await launch(core, **fields)  # type: ignore[arg-type]
    await stopping.stop(core, job.id, "enough")
    return await job_now(core, job.id)


async def named_actor(core: Core) -> JobRecord:
    job = await ended(core, name="counter-0", actor=True)
    await naming.take_name(core, job.spec.namespace, "actor", "counter", job.id)
    return job


async def test_an_actor_that_owns_its_name_gets_it_again_in_a_new_incarnation(core: Core) -> None:
    old = await named_actor(core)
    (new,) = await retry(core, [old])
    found = await naming.read_name(core, old.spec.namespace, "actor", "counter")
    assert found is not None
    assert (found.job, found.incarnation) == (new.id, 2)
    assert (new.retry_of, new.parent) == (old.id, None)


async def test_an_actor_whose_name_another_has_is_not_created_again(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await named_actor(core)
    await retry(core, [old])
    with pytest.raises(InvalidInput, match="run that program again"):
        await retry(core, [old])  # the name is the new job's
    other = await ended(core, name="other-0", actor=True)
    await naming.take_name(core, other.spec.namespace, "actor", "other", other.id)
    living = await launch(core, name="other-0", actor=True)
    real = naming.read_name
    raced: list[object] = []

    async def read(*args: str) -> object:
        found = await real(core, *args[1:])
        if not raced:  # somebody takes the name right after it was read
            raced.append(await naming.take_name(core, other.spec.namespace, "actor", "other", living.id))
        return found

    monkeypatch.setattr(naming, "read_name", read)
    with pytest.raises(NameTaken):
        await retry(core, [other])


async def test_actors_and_workers_of_a_program_are_not_left_without_an_owner(core: Core) -> None:
    worker, child = await ended(core, name="worker-0", actor=True), await ended(core, name="step")
    owned = await named_actor(core)
    owned.spec.parent = "driver-1"
    found = await retry_obstacles(core, [worker, child, owned])
    assert found.keys() == {worker.id, owned.id}
    assert all("run that program again" in why for why in found.values())
    with pytest.raises(InvalidInput, match="run that program again"):
        await retry(core, [child, worker])
