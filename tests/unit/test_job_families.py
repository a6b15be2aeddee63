"""The family of a job: the jobs above it are in its record, in its entry's key, and in its task's environment."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fray.cluster.current_job import current_job
from fray_coordinator.jobs.submission import submit
from fray_coordinator.placements import launching, reservations
from fray_coordinator.placements.launching import GroupWish
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.reconcile.admission import Admission
from fray_coordinator.store.interface import ANY
from fray_layouts.index_keys import PendingKey, family_digits
from fray_layouts.object_keys import ReservationKeys
from fray_layouts.records import MAX_ANCESTORS, JobRecord, ancestors_of_child, root_of
from fray_layouts.spec import JobSpec
from fray_layouts.spec_parsing import parse_spec
from tests.support.scripted_agents import ScriptedAgent, job_now, join, launch
from tests.support.virtual import Cluster


def a_spec(**fields: Any) -> JobSpec:
    return parse_spec({"name": "job", "entrypoint": {"command": ["true"]}, **fields})


async def running(agent: ScriptedAgent, **spec: Any) -> JobRecord:
    """A job that the agent runs; the only one that waits."""
    await launch(agent.core, **spec)
    claimed = await agent.claim()
    await agent.core.store.delete(entry_of(claimed.record).key())
    return claimed.record


@pytest.mark.parametrize("detached", [False, True])
async def test_a_child_has_its_parent_s_ancestors_and_its_parent(cluster: Cluster, detached: bool) -> None:
    agent = await join(cluster, "a")
    top = await running(agent)
    middle = await running(agent, parent=top.id)
    child = await launch(agent.core, parent=middle.id, detached=detached)
    assert (top.ancestors, middle.ancestors) == ([], [top.id])
    assert child.ancestors == [top.id, middle.id]


async def test_a_job_s_own_process_knows_the_ancestors_without_a_read(cluster: Cluster) -> None:
    user = await cluster.core()
    await submit(user, [a_spec()], 1)
    as_many = user.store.usage.reads
    (done,) = await submit(user, [a_spec(parent="middle-0-1")], 1, ancestors=["top-0-1"])
    assert done.job.ancestors == ["top-0-1", "middle-0-1"]
    assert user.store.usage.reads - as_many <= as_many, "a submission without a parent reads no less"


async def test_a_driver_s_job_without_a_parent_belongs_to_the_driver_s_family(cluster: Cluster) -> None:
    (done,) = await submit(await cluster.core(), [a_spec()], ancestors=["driver-0-1"])
    assert (done.job.parent, done.job.ancestors) == (None, ["driver-0-1"])


async def test_a_child_that_was_dropped_as_a_file_has_its_ancestors(cluster: Cluster) -> None:
    agent = await join(cluster, "a")
    parent = await running(agent)
    spec = {"name": "dropped", "entrypoint": {"command": ["true"]}, "parent": parent.id}
    await agent.core.store.put("inbox/dropped.json", json.dumps(spec).encode(), ANY)
    await Admission(agent.core).handle("inbox/dropped.json")
    (key,) = cluster.keys("pending/")
    entry = PendingKey.parse(key)
    assert entry is not None
    assert (await job_now(agent.core, entry.job)).ancestors == [parent.id]
    assert entry.below == family_digits(parent.id)


async def test_a_group_belongs_to_the_family_of_its_jobs(cluster: Cluster) -> None:
    agent = await join(cluster, "a", supports_placements=True)
    parent = await running(agent)
    (one,) = await launching.launch(agent.core, [a_spec(parent=parent.id)], GroupWish("group"))
    group = ReservationKeys.of_pool(one.job.spec.pool)
    assert (await reservations.read(agent.core, group)).record.ancestors == [parent.id]


def test_the_entry_of_a_job_with_ancestors_ends_in_the_digits_of_its_family() -> None:
    job = JobRecord(id="child-0-1", spec=a_spec(), status="pending", ancestors=["top-0-1", "middle-0-1"])
    key = entry_of(job).key()
    assert key.endswith("~" + family_digits("top-0-1"))
    parsed = PendingKey.parse(key)
    assert parsed == entry_of(job)
    assert PendingKey.shape_text(key) == "c1000m0d0"
    alone = entry_of(JobRecord(id="top-0-1", spec=a_spec(), status="pending"))
    assert (alone.below, alone.family) == ("", parsed.family)


def test_of_many_ancestors_the_topmost_and_the_nearest_are_kept() -> None:
    above = [f"j{n}-0-1" for n in range(MAX_ANCESTORS)]
    kept = ancestors_of_child(above, "last-0-1")
    assert len(kept) == MAX_ANCESTORS
    assert (kept[0], kept[1], kept[-1]) == ("j0-0-1", "j2-0-1", "last-0-1")
    assert root_of("x-0-1", kept) == "j0-0-1"


def test_a_process_of_a_job_passes_its_family_on(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {
        "JOB_ID": "middle-0-1",
        "ATTEMPT": "1",
        "NAMESPACE": "n",
        "TASK_DIR": "/t",
        "CLUSTER_SPEC": "memory://x",
    }
    for name, value in {**variables, "ANCESTORS": "top-0-1"}.items():
        monkeypatch.setenv(f"FRAY_{name}", value)
    mine = current_job()
    assert mine is not None
    assert mine.family == ["top-0-1", "middle-0-1"]
