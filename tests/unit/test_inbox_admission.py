"""The inbox: each dropped file becomes one job or one reason, in any order of looks by any participants."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from fray_coordinator.core import Core
from fray_coordinator.jobs import stopping
from fray_coordinator.reconcile.admission import Admission
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.store.interface import ANY
from fray_layouts.object_keys import JobIds, JobKeys
from fray_layouts.records import JobRecord, Rejection
from fray_layouts.work_keys import InboxKeys
from tests.support.scripted_agents import job_now, join, launch
from tests.support.virtual import Cluster

SPEC: dict[str, Any] = {"name": "job", "entrypoint": {"command": ["true"]}}
KEY = "inbox/a.json"


async def drop(core: Core, content: bytes | dict[str, Any] = SPEC, key: str = KEY) -> None:
    """Copy a file as a person does with `cp`."""
    data = content if isinstance(content, bytes) else msgspec.json.encode(content)
    await core.store.put(key, data, ANY)


async def jobs(core: Core) -> list[JobRecord]:
    rows = await core.store.list("jobs/")
    return [await job_now(core, JobKeys.parse(row.key) or "") for row in rows]


async def rejections(core: Core) -> list[Rejection]:
    rows = await core.store.list(InboxKeys.rejected_prefix)
    found = [await core.store.get(row.key) for row in rows]
    return [msgspec.json.decode(each.data, type=Rejection) for each in found if each is not None]


async def test_a_dropped_spec_becomes_a_job_and_leaves_the_inbox(cluster: Cluster) -> None:
    user = await cluster.core()
    await drop(user)
    await Reconciler(await cluster.core(), "p").try_pass()
    (job,) = await jobs(user)
    assert (job.status, job.spec.name, job.spec.namespace) == ("pending", "job", job.id)
    assert cluster.keys("inbox/") == []
    assert (await (await join(cluster, "a")).claim()).record.id == job.id


@pytest.mark.parametrize("looks", [2, 3])
async def test_several_concurrent_looks_admit_one_job(cluster: Cluster, looks: int) -> None:
    user = await cluster.core()
    await drop(user)
    admissions = [Admission(await cluster.core()) for _ in range(looks)]
    await asyncio.gather(*(admission.handle(KEY) for admission in admissions))
    assert [job.status for job in await jobs(user)] == ["pending"]
    assert len(cluster.keys("pending/")) == 1
    assert cluster.keys("inbox/") == []


async def test_a_slow_second_look_does_not_run_the_job_again(cluster: Cluster) -> None:
    """It read the file before the job was admitted, ran and ended."""

    user, agent = await cluster.core(), await join(cluster, "a")
    await drop(user)
    slow = Admission(await cluster.core())

    async def meanwhile() -> None:
        await Admission(user).handle(KEY)
        await agent.end(await agent.claim())

    cluster.connections[-1].before["put", "jobs/"] = meanwhile
    await slow.handle(KEY)
    assert [job.status for job in await jobs(user)] == ["succeeded"]
    assert cluster.keys("pending/") == []


async def test_the_same_bytes_dropped_again_later_are_a_new_job(cluster: Cluster) -> None:
    user = await cluster.core()
    for _ in range(2):
        await drop(user)
        await Admission(user).handle(KEY)
        await cluster.clock.sleep(1.0)
    assert [job.status for job in await jobs(user)] == ["pending", "pending"]


@pytest.mark.parametrize("change", ["overwritten", "withdrawn"])
async def test_a_file_that_is_changed_before_its_admission_does_not_run(cluster: Cluster, change: str) -> None:
    user = await cluster.core()
    await drop(user)
    slow = Admission(await cluster.core())

    async def meanwhile() -> None:
        if change == "overwritten":
            await drop(user, {**SPEC, "name": "better"})
        else:
            await user.store.delete(KEY)

    cluster.connections[-1].before["put", "jobs/"] = meanwhile
    await slow.handle(KEY)
    (job,) = await jobs(user)
    assert job.exit is not None
    assert job.status == "stopped"
    assert "changed or removed" in job.exit.message
    await slow.handle(KEY)
    wanted = {"job": "stopped"} | ({"better": "pending"} if change == "overwritten" else {})
    assert {job.spec.name: job.status for job in await jobs(user)} == wanted
    assert cluster.keys("inbox/") == []


@pytest.mark.parametrize("verb_and_key", [("get", KEY), ("put", "jobs/"), ("put", "pending/"), ("withdraw", KEY)])
async def test_the_job_is_made_once_though_a_participant_dies_at_any_step(
    cluster: Cluster, verb_and_key: tuple[str, str]
) -> None:
    user = await cluster.core()
    await drop(user)
    mortal = Admission(await cluster.core())

    async def die() -> None:
        raise RuntimeError("killed")

    connection = cluster.connections[-1]
    if verb_and_key == ("get", KEY):  # the second read, after the record was created

        async def die_next_time() -> None:
            connection.before["get", KEY] = die

        connection.before["put", "jobs/"] = die_next_time
    else:
        connection.before[verb_and_key] = die
    with pytest.raises(RuntimeError):
        await mortal.handle(KEY)
    await Reconciler(await cluster.core(), "p").try_pass()
    assert [job.status for job in await jobs(user)] == ["pending"]
    assert len(cluster.keys("pending/")) == 1
    assert cluster.keys("inbox/") == []


async def test_an_unadmitted_record_is_decided_by_the_repair(cluster: Cluster) -> None:
    """The record's creator died, and the file was removed before anybody looked again."""

    user = await cluster.core()
    await drop(user)

    async def die() -> None:
        await user.store.delete(KEY)
        raise RuntimeError("killed")

    mortal = Admission(await cluster.core())

    async def die_next_time() -> None:
        cluster.connections[-1].before["get", KEY] = die

    cluster.connections[-1].before["put", "jobs/"] = die_next_time
    with pytest.raises(RuntimeError):
        await mortal.handle(KEY)
    assert [job.status for job in await jobs(user)] == ["unadmitted"]
    await Reconciler(user, "p").try_pass()
    assert [job.status for job in await jobs(user)] == ["stopped"]


async def test_a_job_that_is_stopped_before_its_file_is_gone_does_not_leave_the_file_for_ever(cluster: Cluster) -> None:
    user = await cluster.core()
    await drop(user)

    async def die() -> None:
        raise RuntimeError("killed")

    mortal = Admission(await cluster.core())
    cluster.connections[-1].before["withdraw", KEY] = die
    with pytest.raises(RuntimeError):
        await mortal.handle(KEY)
    (job,) = await jobs(user)
    await stopping.stop(user, job.id, "not wanted any more")
    await Reconciler(user, "p").try_pass()
    assert cluster.keys("inbox/") == []
    assert [job.status for job in await jobs(user)] == ["stopped"]


async def test_a_record_is_admitted_only_if_it_is_the_one_read_before_the_inbox(cluster: Cluster) -> None:
    """Between the second look and the write, retention removed the record and a zombie created it again."""

    user = await cluster.core()
    await drop(user)
    slow = Admission(await cluster.core())
    connection = cluster.connections[-1]

    async def reborn() -> None:
        (row,) = await user.store.list("jobs/")
        body = await user.records.read(row.key, JobRecord)
        assert body is not None
        await user.store.delete(row.key)
        await user.store.delete(KEY)
        await user.records.write(row.key, JobRecord, body.record, None)

    async def at_the_second_put() -> None:
        connection.before["put", "jobs/"] = reborn

    connection.before["put", "jobs/"] = at_the_second_put
    await slow.handle(KEY)
    await Reconciler(user, "p").try_pass()
    assert [job.status for job in await jobs(user)] == ["stopped"]


async def test_a_file_that_does_not_parse_is_rejected_after_two_looks_and_not_before(cluster: Cluster) -> None:
    user = await cluster.core()
    admission = Admission(user)
    await drop(user, b'{"name": "jo')
    await admission.handle(KEY)
    await cluster.clock.sleep(4.0)
    await admission.handle(KEY)
    assert await rejections(user) == []
    await cluster.clock.sleep(1.0)
    await admission.handle(KEY)
    (rejection,) = await rejections(user)
    assert (rejection.key, rejection.content) == (KEY, '{"name": "jo')
    assert "must be one JSON object" in rejection.reason
    assert cluster.keys("inbox/") == cluster.keys("inbox/rejected/")


async def test_a_file_that_is_copied_in_slowly_is_admitted_once_it_is_whole(cluster: Cluster) -> None:
    user = await cluster.core()
    coordinator = Reconciler(user, "p")
    whole = msgspec.json.encode(SPEC)
    for length in range(5, len(whole), 5):
        await drop(user, whole[:length])
        await coordinator.try_pass()
        await cluster.clock.sleep(6.0)
    assert await jobs(user) == []
    await drop(user, whole)
    await coordinator.try_pass()
    assert [job.status for job in await jobs(user)] == ["pending"]
    assert await rejections(user) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({**SPEC, "naem": "x"}, ["naem", "did you mean name"]),
        ({"name": "x"}, ["entrypoint", "missing"]),
        ({**SPEC, "resources": {"cpu": -1}}, ["resources.cpu", "-1"]),
        ({**SPEC, "parent": "nobody-1"}, ["nobody-1", "running parent"]),
    ],
)
async def test_a_bad_spec_is_rejected_at_once_with_the_reason(
    cluster: Cluster, content: dict[str, Any], words: list[str]
) -> None:
    user = await cluster.core()
    await drop(user, content)
    await drop(user, key="inbox/good.json")
    await Reconciler(user, "p").try_pass()
    (rejection,) = await rejections(user)
    assert all(word in rejection.reason for word in words), rejection.reason
    assert msgspec.json.decode(rejection.content) == content
    assert [job.status for job in await jobs(user)] == ["pending"]
    assert cluster.keys("inbox/") == cluster.keys("inbox/rejected/")


@pytest.mark.parametrize(
    ("variant", "size", "reason"),
    [
        ("v5litepod-16", {}, "replicas: 1 is not accepted; give slices: 1 and replicas: 4 for 1 slice of v5litepod-16"),
        ("v5litepod-12", {}, "resources.device.variant: 'v5litepod-12' is not accepted; there are v5litepod-1, "),
        ("v5litepod-16", {"replicas": 8, "slices": 2}, ""),
        ("v5litepod-4", {}, ""),
    ],
)
async def test_a_dropped_spec_for_a_tpu_asks_for_whole_slices(
    cluster: Cluster, variant: str, size: dict[str, int], reason: str
) -> None:
    user = await cluster.core()
    await drop(user, {**SPEC, **size, "resources": {"device": {"kind": "tpu", "variant": variant, "count": 4}}})
    await Reconciler(await cluster.core(), "p").try_pass()
    assert [job.spec.replicas for job in await jobs(user)] == ([] if reason else [size.get("replicas", 1)])
    assert [told.reason[: len(reason)] for told in await rejections(user)] == ([reason] if reason else [])


async def test_a_drop_with_an_id_that_exists_stands_for_the_first_job(cluster: Cluster) -> None:
    user = await cluster.core()
    first = await launch(user, id="monday")
    await drop(user, {**SPEC, "id": "monday"})
    await Reconciler(user, "p").try_pass()
    assert [job.id for job in await jobs(user)] == [first.id]
    assert cluster.keys("inbox/") == []


async def test_a_drop_with_the_id_of_a_job_that_runs_something_else_is_rejected(cluster: Cluster) -> None:
    user = await cluster.core()
    first = await launch(user, id="monday")
    await drop(user, {**SPEC, "id": "monday", "entrypoint": {"command": ["false"]}})
    await Reconciler(user, "p").try_pass()
    (rejection,) = await rejections(user)
    assert f"{first.id} was submitted under it with another entrypoint.command" in rejection.reason
    assert [job.id for job in await jobs(user)] == [first.id]


async def test_odd_files_do_not_keep_others_from_their_admission(cluster: Cluster) -> None:
    user = await cluster.core()
    await user.store.put(JobKeys.key(JobIds.given("", "job", "broken")), b"not a record", ANY)
    await drop(user, {**SPEC, "id": "broken"}, "inbox/0.json")
    await drop(user, key="inbox/1.json")
    coordinator = Reconciler(user, "p")
    await coordinator.try_pass()
    assert "inbox/1.json" not in cluster.keys("inbox/")
    assert coordinator.lease is not None
    assert "inbox/0.json" in coordinator.lease.record.problems


async def _running_parent(cluster: Cluster) -> tuple[Core, Any, Any]:
    user, agent = await cluster.core(), await join(cluster, "a")
    await launch(user, name="parent")
    return user, agent, await agent.claim()


async def test_a_child_waits_in_the_inbox_while_its_parent_is_preempted(cluster: Cluster) -> None:
    user, agent, held = await _running_parent(cluster)
    await agent.end(held, "preempted")
    parent = held.record.id
    assert (await job_now(user, parent)).status == "pending"
    await drop(user, {**SPEC, "parent": parent})
    admission = Admission(user)
    await admission.run()
    assert await rejections(user) == []
    assert f"waits for its parent {parent} to run" in admission.problems[KEY]
    await cluster.clock.sleep(60.0)
    await agent.claim()
    await admission.run()
    (child,) = [job for job in await jobs(user) if job.parent is not None]
    assert (child.status, child.parent and child.parent.attempt) == ("pending", 2)
    assert (cluster.keys("inbox/"), admission.problems) == ([], {})


async def test_a_child_whose_parent_ends_while_it_waits_in_the_inbox_is_rejected(cluster: Cluster) -> None:
    user, agent, held = await _running_parent(cluster)
    await agent.end(held, "preempted")
    await drop(user, {**SPEC, "parent": held.record.id})
    await Admission(user).run()
    await stopping.stop(user, held.record.id, "no longer needed")
    await Admission(user).run()
    (rejection,) = await rejections(user)
    assert "is stopped; a child needs a running parent" in rejection.reason


@pytest.mark.parametrize("end", ["success", "preempted"])
async def test_an_admission_that_was_cut_short_is_finished_whatever_the_parent_does(cluster: Cluster, end: str) -> None:
    user, agent, held = await _running_parent(cluster)
    await drop(user, {**SPEC, "parent": held.record.id})

    async def die() -> None:
        raise asyncio.CancelledError

    mortal = await cluster.core()
    cluster.connections[-1].before["withdraw", "inbox/"] = die
    with pytest.raises(asyncio.CancelledError):
        await Admission(mortal).run()
    await agent.end(held, end)
    for _ in range(3):
        await Admission(user).run()
    assert await rejections(user) == []
    assert cluster.keys("inbox/") == []
    assert len([job for job in await jobs(user) if job.parent is not None]) == 1
