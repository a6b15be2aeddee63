"""fsck finds damage that only a person can judge, reports it with a remedy, and leaves it alone."""

from __future__ import annotations

from dataclasses import replace as with_other

import pytest
from msgspec.structs import replace

from fray_coordinator import fsck
from fray_coordinator.core import Core
from fray_coordinator.jobs.stopping import stop
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.store.interface import ANY
from fray_layouts import codec
from fray_layouts.index_keys import PendingKey, Shape
from fray_layouts.object_keys import AgentKeys, CoordinatorKeys, EndpointKey, JobKeys, NameKeys, SecretKeys
from fray_layouts.queue_keys import QueueKeys, SegmentName, TaskKeys
from fray_layouts.queue_records import QueueLease
from fray_layouts.records import (
    AgentRecord,
    AttemptExit,
    Holding,
    JobRecord,
    JobResult,
    KeptOutputs,
    PastAttempt,
    ReconcilerRecord,
    StopRequest,
)
from fray_layouts.work_keys import WorkKeys
from tests.support.damage import (
    LONG,
    OLD,
    Make,
    a_job,
    a_job_held_by,
    a_job_running_under,
    a_large_job,
    a_queue,
    a_succeeded_job,
    an_agent,
    an_endpoint_of,
    assert_left_alone,
    everything,
    rewrite,
)


async def runs_and_is_not_listed(core: Core) -> str:
    job = await a_job_running_under(core, "live")
    await an_agent(core, "live")
    return JobKeys.key(job.id)


async def runs_and_was_not_listed_for_long(core: Core) -> str:
    """The job's entry is still there, but the agent has beaten since."""
    job = await a_job_running_under(core, "live")
    await core.store.put(entry_of(job).key(), b"{}", ANY)
    await core.clock.sleep(LONG)
    await an_agent(core, "live")
    return JobKeys.key(job.id)


async def is_not_stopped(core: Core) -> str:
    job = await a_job_running_under(core, "live")
    await rewrite(core, job, stop=StopRequest(at=core.now()))
    await core.clock.sleep(LONG)
    await an_agent(core, "live", holdings={job.id: Holding(attempt=1, phase="running")})
    return JobKeys.key(job.id)


async def listing(core: Core, job: str, attempt: int) -> str:
    await an_agent(core, "live", holdings={job: Holding(attempt=attempt, phase="running")})
    return AgentKeys.key("live")


async def a_job_of_no_record_is_listed(core: Core) -> str:
    return await listing(core, "job-nobody", 1)


async def a_later_attempt_is_listed(core: Core) -> str:
    return await listing(core, (await a_succeeded_job(core)).id, 5)


async def a_job_that_waits_is_listed(core: Core) -> str:
    return await listing(core, (await a_job(core)).id, 1)


async def a_job_of_another_is_listed(core: Core) -> str:
    return await listing(core, (await a_job_held_by(core, "other")).id, 1)


async def a_result_is_gone(core: Core) -> str:
    key = WorkKeys.result("job-x", 1, 0)
    return JobKeys.key((await a_succeeded_job(core, result=JobResult(encoding="pickle", key=key, size=10))).id)


async def a_part_of_the_outputs_is_gone(core: Core) -> str:
    job = await a_succeeded_job(core)
    key = WorkKeys.outputs(job.id, 1, 0)
    await rewrite(core, job, outputs=KeptOutputs(key=key, parts=2, files=1, size=10))
    for there in (key, WorkKeys.output_part(key, 1)):
        await core.store.put(there, b"", ANY)
    return JobKeys.key(job.id)


async def a_part_of_a_log_is_gone(core: Core) -> str:
    job = await a_succeeded_job(core, exit=AttemptExit(kind="success", log_chunks=3))
    for number in (1, 3):
        await core.store.put(WorkKeys.log(job.id, 1, 0, number), b"", ANY)
    return JobKeys.key(job.id)


async def the_log_of_an_earlier_attempt_is_gone(core: Core) -> str:
    past = PastAttempt(
        attempt=1, agent="a", host="h", started_at=0, ended_at=1, exit=AttemptExit(kind="exited", log_chunks=1)
    )
    return JobKeys.key(
        (await a_succeeded_job(core, attempt=2, history=[past], exit=AttemptExit(kind="success", log_chunks=0))).id
    )


async def runs_and_does_not_say_where(core: Core) -> str:
    return JobKeys.key((await rewrite(core, await a_job_running_under(core, "live"), lease=None)).id)


async def is_of_no_file_of_the_inbox(core: Core) -> str:
    job = await a_job(core)
    await core.store.delete(entry_of(job).key())
    return JobKeys.key((await rewrite(core, job, status="unadmitted")).id)


async def a_callable_is_gone(core: Core) -> str:
    job, blob = await a_large_job(core)
    await core.store.delete(blob)
    return JobKeys.key(job.id)


async def a_workspace_is_gone(core: Core) -> str:
    job = await a_job(core, environment={"workspace": {"blob": f"blobs/2027-01/{0:064x}"}})
    return JobKeys.key(job.id)


async def a_standard_input_is_gone(core: Core) -> str:
    job = await a_job(core, entrypoint={"command": ["cat"], "stdin": f"blobs/2027-01/{0:064x}"})
    return JobKeys.key(job.id)


async def a_record_under_another_name(core: Core) -> str:
    job = await a_job(core)
    await core.store.put(JobKeys.key(f"{job.id}x"), codec.encode(job), ANY)
    return JobKeys.key(f"{job.id}x")


async def an_agent_under_another_name(core: Core) -> str:
    record = AgentRecord(id="one", host="h", pool="default")
    await core.store.put(AgentKeys.key("other"), codec.encode(record), ANY)
    return AgentKeys.key("other")


async def an_endpoint_under_another_name(core: Core) -> str:
    key, elsewhere = (
        await an_endpoint_of(core, (await a_job_held_by(core, "live")).id),
        EndpointKey("n", "other", "id").key(),
    )
    found = await core.store.get(key)
    assert found is not None
    await core.store.put(elsewhere, found.data, ANY)
    await core.store.delete(key)
    return elsewhere


async def an_agent_is_silent_and_nobody_notices(core: Core) -> str:
    await a_job_held_by(core, "live")
    await core.clock.sleep(core.settings.outage_grace)
    return AgentKeys.key("live")


async def an_agent_is_silent_and_the_last_pass_was_long_ago(core: Core) -> str:
    await core.records.write(CoordinatorKeys.reconciler, ReconcilerRecord, ReconcilerRecord(holder="live"), None)
    await an_agent(core, "live")
    await core.clock.sleep(core.settings.outage_grace)
    return AgentKeys.key("live")


async def an_entry_of_an_attempt_to_come(core: Core) -> str:
    key = with_other(entry_of(await a_job(core)), attempt=7).key()
    await core.store.put(key, b"{}", ANY)
    return key


async def data_of_an_attempt_that_never_was(core: Core) -> str:
    key = WorkKeys.log((await a_job(core)).id, 7, 0, 1)
    await core.store.put(key, b"", ANY)
    return key


@pytest.mark.parametrize(
    ("make", "words", "remedy"),
    [
        (runs_and_is_not_listed, "does not list it", "`fray drain live`"),
        (runs_and_was_not_listed_for_long, "does not list it", "`fray drain live`"),
        (is_not_stopped, "asked to stop", "host h"),
        (a_job_of_no_record_is_listed, "no record of this job", "restart that agent"),
        (a_later_attempt_is_listed, "never existed", "restart that agent"),
        (a_job_that_waits_is_listed, "waits to be started", "restart that agent"),
        (a_job_of_another_is_listed, "agent other runs it", "restart that agent"),
        (a_result_is_gone, "its result is gone", "run it again"),
        (a_part_of_the_outputs_is_gone, "its outputs are gone: there is no object work/", "run it again"),
        (a_part_of_a_log_is_gone, "/1/0/log-00000002 is gone: the log ends before it", "run the job again"),
        (
            the_log_of_an_earlier_attempt_is_gone,
            "/1/0/log-00000001 is gone: the log ends before it",
            "run the job again",
        ),
        (runs_and_does_not_say_where, "the record names no agent", "`fray stop job-"),
        (is_of_no_file_of_the_inbox, "does not name the inbox file", "`fray stop job-"),
        (a_callable_is_gone, "its callable is gone", "submit it again"),
        (a_standard_input_is_gone, "its standard input is gone", "submit it again"),
        (a_workspace_is_gone, "its workspace is gone", "submit it again"),
        (a_record_under_another_name, "belongs under jobs/job-", "move it there"),
        (an_agent_under_another_name, "belongs under agents/one.json", "move it there"),
        (an_endpoint_under_another_name, "belongs under actors/n/x/id.json", "move it there"),
        (an_agent_is_silent_and_nobody_notices, "no process notices", "start an agent"),
        (
            an_agent_is_silent_and_the_last_pass_was_long_ago,
            "by its record it lives",
            "`fray coordinate --once` several",
        ),
        (an_entry_of_an_attempt_to_come, "entry of attempt 7", "remove it"),
        (data_of_an_attempt_that_never_was, "an attempt that never existed", "remove it"),
    ],
)
async def test_damage_to_objects_that_are_not_derived_is_found_and_left_alone(
    core: Core, make: Make, words: str, remedy: str
) -> None:
    await a_job(core)
    await assert_left_alone(core, await make(core), words, remedy)


QUEUE = QueueKeys.of("n", "q", 1)
SEGMENT = str(SegmentName(1.8e9, 0, "abcdef", 3))


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (AgentKeys.key("odd"), "are requeued only after"),
        (CoordinatorKeys.reconciler, "until it is replaced, no file is admitted"),
        (NameKeys.key("n", "actor", "x"), "nobody can take this name"),
        (SecretKeys.rpc, "no actor can be called"),
        (QUEUE.settings, "nobody can open this queue"),
        (QUEUE.doorbell, "a hint"),
        (QUEUE.lease(SEGMENT), "nobody gets the items"),
        (QUEUE.dead_letters.lease(SEGMENT), "nobody gets the items"),
        (TaskKeys.of("n", "q", 1).pool, "no driver can continue"),
        *((key, "never uses such a name") for key in (
            "jobs/readme.txt", "agents/a", "pending/default/nonsense", "children/x", "work/job-nobody/1/0/stdout-1",
            "coordinator/other.json", "pools/default/bell", "names/n/x.json", "actors/x.json", "secrets/other",
            "queues/n/q/queue.json", f"{QUEUE.segments}zz~lease", "tasks/n/x",
        )),
    ],
)  # fmt: skip
async def test_garbage_is_found_wherever_it_lies_and_left_alone(core: Core, key: str, words: str) -> None:
    await a_job(core)
    await a_queue(core)
    await core.store.put(key, b"garbage", ANY)
    for _ in range(2):
        [problem] = await fsck.check(core)
        assert problem.key == key
        assert words in problem.what
        await fsck.repair(core)
    found = await core.store.get(key)
    assert found is not None
    assert found.data == b"garbage"


async def test_a_lease_without_the_finished_items_counts_as_unreadable(core: Core) -> None:
    await a_queue(core)
    await core.store.put(QUEUE.lease(SEGMENT), codec.encode(QueueLease(owner="x", done="both")), ANY)
    await core.clock.sleep(LONG)
    [problem] = await fsck.check(core)
    assert "nobody gets the items" in problem.what


async def test_objects_that_may_belong_to_an_unreadable_record_are_left_alone(core: Core) -> None:
    job, other = await a_job(core), await a_job(core)
    old_entry = PendingKey("default", 0, OLD, job.id, 1, Shape(1000, 0, 0, "", 0, False)).key()
    its_own = [WorkKeys.log(job.id, 1, 0, 1), old_entry, f"blobs/2020-01/{0:064x}"]  # perhaps its callable
    moved = [WorkKeys.log(other.id, 1, 0, 1), entry_of(other).key()]
    for key in (*its_own, *moved):
        await core.store.put(key, b"{}", ANY)
    await core.store.put(JobKeys.key(job.id), b"garbage", ANY)
    await core.store.put(JobKeys.key("moved"), codec.encode(other), ANY)
    await core.store.delete(JobKeys.key(other.id))
    await core.clock.sleep(LONG)
    assert {t.key for t in await fsck.check(core)} == {JobKeys.key(job.id), JobKeys.key("moved")}
    await fsck.repair(core)
    assert (await everything(core)).keys() >= {*its_own, WorkKeys.log(other.id, 1, 0, 1)}


@pytest.mark.parametrize("make", [runs_and_does_not_say_where, is_of_no_file_of_the_inbox])
async def test_a_job_that_nobody_can_go_on_with_is_ended_by_a_stop(core: Core, make: Make) -> None:
    """The remedy promises this. A task that still runs somewhere learns of it as of any lost lease."""

    key = await make(core)
    job = await stop(core, JobKeys.parse(key) or "", "as fsck said")
    assert (job.status, job.ended_at) == ("stopped", core.now())
    await core.clock.sleep(LONG)
    assert await fsck.check(core) == []


async def test_a_job_that_retention_is_removing_may_be_incomplete(core: Core) -> None:
    result = JobResult(encoding="pickle", key=WorkKeys.result("job-x", 1, 0), size=10)
    await a_succeeded_job(core, expiring=True, result=result, exit=AttemptExit(kind="success", log_chunks=3))
    assert await fsck.check(core) == []


async def test_an_agent_that_is_cut_off_may_live_on(core: Core) -> None:
    await a_job_held_by(core, "live")
    await core.clock.sleep(core.settings.outage_grace)
    assert await fsck.check(core) == []


async def test_the_participant_that_makes_the_passes_declares_a_silent_agent_dead(core: Core) -> None:
    key = await an_agent_is_silent_and_the_last_pass_was_long_ago(core)
    await core.clock.sleep(LONG)
    assert [problem.key for problem in await fsck.check(core)] == [key]
    await core.records.update(
        CoordinatorKeys.reconciler,
        ReconcilerRecord,
        lambda now: replace(now, progress=now.progress + 1) if now else None,
    )
    assert await fsck.check(core) == []


async def test_a_job_with_an_id_of_its_own_needs_another(core: Core) -> None:
    job = await a_job(core, id="mine")
    await core.store.delete(entry_of(job).key())
    await rewrite(core, job, status="running")
    [problem] = await fsck.check(core)
    assert f"`fray stop {job.id}`, and submit it again under another id than 'mine'" in problem.remedy


async def test_a_job_that_its_agent_does_not_list_is_requeued_once_that_agent_left(core: Core) -> None:
    """The remedy promises this."""

    key = await runs_and_is_not_listed(core)
    assert [problem.key for problem in await fsck.check(core)] == [key]
    await core.records.update(
        AgentKeys.key("live"), AgentRecord, lambda agent: replace(agent, state="left") if agent else None
    )
    await fsck.repair(core)
    job = await core.records.read(key, JobRecord)
    assert job is not None
    assert (job.record.status, job.record.attempt) == ("pending", 2)
    assert await fsck.check(core) == []


async def test_the_problem_of_a_live_agent_is_reported_until_it_is_silent(core: Core) -> None:
    await an_agent(core, "live", problem="/scratch is full")
    [problem] = await fsck.check(core)
    assert (problem.key, problem.what) == (AgentKeys.key("live"), "the agent says: /scratch is full")
    assert "host h" in problem.remedy
    await core.clock.sleep(LONG)
    assert await fsck.check(core) == []
