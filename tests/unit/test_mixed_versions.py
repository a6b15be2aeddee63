"""Agents of a version that does not know gangs, beside those that do, while a cluster is upgraded.

What an older version does with a gang follows from two things: it is in no index that the older version reads, and the
status of its record is one that it does not know, so all that it has for such records is to leave them as they are.
"""

from __future__ import annotations

from typing import Any

from fray_coordinator.core import Core
from fray_coordinator.jobs import pending_index
from fray_coordinator.jobs.why_waiting import why_waiting
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_layouts import codec
from fray_layouts.object_keys import JobKeys
from fray_layouts.records import JobRecord, Record
from tests.support.scripted_agents import agent_now, job_now, join, launch, pass_now
from tests.support.scripted_members import gathering
from tests.support.virtual import Cluster


async def test_gangs_are_given_to_agents_that_know_them_and_singles_to_all(cluster: Cluster) -> None:
    old = await join(cluster, "old")
    found = await gathering(cluster, "new1", "new2")
    gang, single = await launch(found.core, replicas=2), await launch(found.core)
    assert (await old.claim()).record.id == single.id, "all that an older agent finds in the index"
    await found.step()
    now = await job_now(found.core, gang.id)
    assert now.placement is not None
    assert {member.agent for member in now.placement.members} == {"new1", "new2"}
    for member in found.members:
        await member.vote(gang.id)
    await found.step()
    assert (await job_now(found.core, gang.id)).status == "running"


async def test_a_gang_waits_while_there_are_too_few_agents_that_know_it(cluster: Cluster) -> None:
    await join(cluster, "old")
    found = await gathering(cluster, "new")
    gang = await launch(found.core, replicas=2)
    await found.step()
    assert (await job_now(found.core, gang.id)).placement is None


class OlderJobRecord(Record, kw_only=True):
    """The fields of a job's record that an older version uses."""

    id: str
    spec: dict[str, Any]
    status: str
    attempt: int = 1


async def test_an_older_versions_write_keeps_the_fields_that_it_does_not_know(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b")
    gang = await launch(found.core, replicas=2)
    await found.step()
    before = await found.core.store.get(JobKeys.key(gang.id))
    assert before is not None
    read = codec.decode(before.data, OlderJobRecord)
    written = codec.encode(codec.successor(read.record, "op", read.record), read.raw)
    again = codec.decode(written, JobRecord).record
    assert again.placement == (await job_now(found.core, gang.id)).placement
    assert again.status == "gathering"


async def test_an_entry_that_an_older_version_might_make_is_not_claimed_and_goes(cluster: Cluster, core: Core) -> None:
    gang = await launch(core, replicas=2)
    await pending_index.create_entry(core, gang)
    old = await join(cluster, "old")
    await old.try_claim()
    assert (await job_now(core, gang.id)).status == "gathering"
    await Reconciler(await cluster.core(), "p").run_once()
    assert cluster.keys("pending/") == []


async def test_the_pass_is_taken_from_an_agent_that_gathers_no_gangs(cluster: Cluster) -> None:
    await join(cluster, "old")
    old, new = Reconciler(await cluster.core(), "old"), Reconciler(await cluster.core(), "new")
    assert await old.try_pass()
    assert await new.try_pass()
    assert (await pass_now(new.core)).holder == "new"
    assert not await old.try_pass(), "which sees that it has lost the lease"


async def test_the_pass_is_not_taken_from_one_that_does(cluster: Cluster) -> None:
    await join(cluster, "holder", supports_placements=True)
    first, second = Reconciler(await cluster.core(), "holder"), Reconciler(await cluster.core(), "second")
    assert await first.try_pass()
    assert not await second.try_pass()


async def test_a_gang_that_only_older_agents_could_run_says_why_it_waits(cluster: Cluster, core: Core) -> None:
    gang = await launch(core, replicas=2)
    await join(cluster, "old")
    told = why_waiting(gang, [await agent_now(core, "old")], core.now())
    assert told.endswith("is drained, unfit, or of a version without gangs: old is one")
