"""Actors' checkpoints through the store, with requests that fail and land late."""

from __future__ import annotations

import asyncio

import pytest

from fray_coordinator.actors.checkpoints import open_log
from fray_coordinator.errors import Fenced, StoreUnavailable
from fray_coordinator.jobs.stopping import stop
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.store.interface import ABSENT
from fray_layouts.object_keys import CLUSTER_KEY
from fray_layouts.work_keys import CheckpointKey
from tests.support.scripted_agents import launch
from tests.support.virtual import Cluster


async def test_an_attempt_goes_on_from_the_last_checkpoint_and_shuts_the_earlier_one_out(cluster: Cluster) -> None:
    core, other = await cluster.core(), await cluster.core()
    state, first = await open_log(core, "a-1", "a", 1)
    assert state is None
    await first.write(b"one")
    await first.write(b"two")
    state, second = await open_log(other, "a-1", "a", 2)
    assert state == b"two"
    with pytest.raises(Fenced):
        await first.write(b"three")
    with pytest.raises(Fenced):
        await open_log(core, "a-1", "a", 1)
    await second.write(b"drei")
    assert (await open_log(core, "a-1", "a", 3))[0] == b"drei"


async def test_an_empty_state_is_a_state(cluster: Cluster) -> None:
    core = await cluster.core()
    _, log = await open_log(core, "a-1", "a", 1)
    await log.write(b"")
    assert (await open_log(core, "a-1", "a", 2))[0] == b""
    assert (await open_log(core, "a-1", "b", 1))[0] is None, "another actor of the job"


async def test_a_checkpoint_that_lands_behind_a_fence_acknowledges_nothing(cluster: Cluster) -> None:
    """The number below a fence is free again after garbage collection. Only the listing shows that it was used."""

    core, other = await cluster.core(), await cluster.core()
    _, old = await open_log(core, "a-1", "a", 1)

    async def meanwhile() -> None:
        _, new = await open_log(other, "a-1", "a", 2)
        await new.write(b"new")
        await new.write(b"newer")

    cluster.connections[0].before["put", CheckpointKey.prefix("a-1", "a")] = meanwhile
    with pytest.raises(Fenced):
        await old.write(b"old")
    assert (await open_log(other, "a-1", "a", 3))[0] == b"newer"


async def test_a_fence_that_lands_below_later_numbers_shuts_nobody_out(cluster: Cluster) -> None:
    core, other = await cluster.core(), await cluster.core()

    async def meanwhile() -> None:
        _, new = await open_log(other, "a-1", "a", 2)
        await new.write(b"new")
        await new.write(b"newer")

    cluster.connections[0].before["put", CheckpointKey.prefix("a-1", "a")] = meanwhile
    with pytest.raises(Fenced):
        await open_log(core, "a-1", "a", 1)
    assert (await open_log(other, "a-1", "a", 3))[0] == b"newer"


async def test_a_new_attempt_finds_the_checkpoint_while_the_old_one_collects_garbage(cluster: Cluster) -> None:
    core, other = await cluster.core(), await cluster.core()
    _, old = await open_log(core, "a-1", "a", 1)
    await old.write(b"one")

    async def meanwhile() -> None:
        await old.write(b"two")

    cluster.connections[1].before["get", CheckpointKey.prefix("a-1", "a")] = meanwhile
    assert (await open_log(other, "a-1", "a", 2))[0] == b"two"


async def test_a_checkpoint_without_an_answer_is_written_again_or_found(cluster: Cluster) -> None:
    core = await cluster.core()
    _, log = await open_log(core, "a-1", "a", 1)
    connection = cluster.connections[0]

    async def lost() -> None:
        """The write is applied, and its reply is lost."""
        body = b'{"attempt":1,"writer":"' + log.last.writer.encode() + b'"}\none'
        await connection._backend.put(CheckpointKey("a-1", "a", log.last.number + 1).key(), body, ABSENT)
        connection.cut = True

    connection.before["put", CheckpointKey.prefix("a-1", "a")] = lost
    with pytest.raises(StoreUnavailable):
        await log.write(b"one")
    connection.cut = False
    await log.write(b"one and two")
    assert (await open_log(core, "a-1", "a", 2))[0] == b"one and two"


async def test_old_checkpoints_are_collected_and_the_rest_goes_with_the_job(cluster: Cluster) -> None:
    core = await cluster.core()
    job = await launch(core, name="actor", actor=True, max_retries_failure=9)
    for attempt in (1, 2):
        _, log = await open_log(core, job.id, "a", attempt)
        for number in range(20):
            await log.write(bytes([number]))
        assert len(cluster.keys(CheckpointKey.prefix(job.id, "a"))) <= 2
    await stop(core, job.id, "enough")
    for _ in range(2):  # the job is archived, and then removed
        await asyncio.sleep(core.settings.retention + 1)
        repair = Reconciler(core, "p").repair
        await repair.run({})
        await repair.archive.run()
    assert cluster.keys("jobs/") == cluster.keys("archive/") == cluster.keys("work/") == []


async def test_a_checkpoint_costs_a_write_a_list_and_a_conditional_read(cluster: Cluster) -> None:
    core = await cluster.core()
    _, log = await open_log(core, "a-1", "a", 1)
    await log.write(b"x")
    asked = cluster.connections[0].asked
    asked.clear()
    await log.write(b"y")
    asked.remove(("unchanged", CLUSTER_KEY))  # the answer to the read
    assert sorted(verb for verb, _ in asked) == ["delete", "get_if_changed", "list", "put"]
