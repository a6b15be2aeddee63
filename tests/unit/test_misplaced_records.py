"""A record under another name than its own is ignored: it changes nothing for the original."""

from __future__ import annotations

import pytest

from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord
from fray_coordinator.jobs.stopping import stop
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.store.interface import ABSENT
from fray_layouts.object_keys import AgentKeys, JobKeys
from fray_layouts.records import AgentRecord, JobRecord
from tests.support.scripted_agents import agent_now, job_now, join, launch, pass_now, passes
from tests.support.virtual import Cluster


async def copy(core: Core, key: str, to: str) -> str:
    found = await core.store.get(key)
    assert found is not None
    await core.store.put(to, found.data, ABSENT)
    return to


async def test_a_copy_of_a_pending_job_gives_the_job_that_ended_no_entry_again(cluster: Cluster) -> None:
    user = await cluster.core()
    job = await launch(user)
    backup = await copy(user, JobKeys.key(job.id), JobKeys.key(f"{job.id}.1"))
    await stop(user, job.id, "enough")
    await user.store.delete(entry_of(job).key())
    newcomer = Reconciler(await cluster.core(), "newcomer")
    await passes(newcomer, 200.0)
    assert (await job_now(user, job.id)).status == "stopped"
    assert cluster.keys("pending/") == []
    assert "holds a copy of" in (await pass_now(user)).problems[backup]


async def test_a_copy_of_a_live_agents_record_is_no_agent_that_could_die(cluster: Cluster) -> None:
    user = await cluster.core()
    hand = await join(cluster, "one")
    backup = await copy(user, AgentKeys.key("one"), AgentKeys.key("one-copy"))
    newcomer = Reconciler(await cluster.core(), "newcomer")
    for _ in range(20):
        await hand.beat()
        await passes(newcomer, 5.0, every=5.0)
    assert (await agent_now(user, "one")).state == "live"
    assert list(newcomer.detector.live()) == ["one"]
    assert "holds a copy of" in (await pass_now(user)).problems[backup]


@pytest.mark.parametrize(("prefix", "kind"), [("jobs/", JobRecord), ("agents/", AgentRecord)])
async def test_a_read_of_a_misplaced_record_says_where_it_belongs(
    cluster: Cluster, prefix: str, kind: type[JobRecord | AgentRecord]
) -> None:
    user = await cluster.core()
    await join(cluster, "one")
    job = await launch(user)
    own = JobKeys.key(job.id) if kind is JobRecord else AgentKeys.key("one")
    other = await copy(user, own, f"{prefix}other.json")
    with pytest.raises(BadRecord, match=f"holds a copy of {own}"):
        await user.records.read(other, kind)
