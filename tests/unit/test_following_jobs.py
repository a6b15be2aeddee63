"""Waiting for jobs and reading logs: what is noticed, which requests are made, and that nothing hangs."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from msgspec.structs import replace

from fray_coordinator.core import Core, open_core
from fray_coordinator.errors import BadRecord, JobGone, JobNotFound
from fray_coordinator.jobs import waiting
from fray_coordinator.jobs.claiming import Claimed, try_claim
from fray_coordinator.jobs.commit import end_attempt
from fray_coordinator.jobs.logs import LogLine, follow_chunks, read_logs
from fray_coordinator.jobs.lookup import read_job
from fray_coordinator.jobs.submission import submit
from fray_coordinator.jobs.waiting import ActivityReports, PollBackoff, WaitingReasons, WaitProgress, wait_for
from fray_coordinator.protocol.commit import AttemptEnd
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.store.interface import ABSENT
from fray_coordinator.store.records import Stored
from fray_layouts.object_keys import AgentKeys, JobKeys
from fray_layouts.records import (
    AgentRecord,
    AttemptExit,
    ClusterSettings,
    JobRecord,
    PastAttempt,
    Resources,
)
from fray_layouts.spec import JobSpec
from fray_layouts.spec_parsing import parse_spec
from fray_layouts.work_keys import WorkKeys
from tests.support.virtual import Cluster
from tests.support.waiting import eventually

SUCCESS = AttemptExit(kind="success")


@pytest.fixture
async def core() -> Core:
    return await open_core(f"memory://{uuid.uuid4()}", ClusterSettings(poll_interval=0.01, requeue_backoff=0.0))


def a_spec(name: str = "job", **fields: object) -> JobSpec:
    return parse_spec({"name": name, "entrypoint": {"command": ["true"]}, **fields})


async def submitted(core: Core, count: int = 1, **fields: Any) -> list[str]:
    return [one.job.id for one in await submit(core, [a_spec(**fields)] * count)]


async def claimed(core: Core, job_id: str) -> Stored[JobRecord]:
    job = await read_job(core, job_id)
    found = await try_claim(core, entry_of(job.record), "agent", "host")
    assert isinstance(found, Claimed)
    return found.job


async def run_to(core: Core, job_id: str, end: AttemptExit) -> None:
    await end_attempt(core, await claimed(core, job_id), "agent", AttemptEnd(end), None)


async def test_looks_come_soon_after_something_was_begun_and_grow_rare(cluster: Cluster) -> None:
    pace = PollBackoff(await cluster.core(local=False))
    longest = [pace.next_pause() for _ in range(20)][-1]
    pace.reset()
    after_a_change = pace.next_pause()
    pace.expect_soon()
    soon = pace.next_pause()
    assert soon < after_a_change / 2
    assert after_a_change < longest / 5
    for _ in range(20):
        last = pace.next_pause()
    assert last > after_a_change * 5


async def test_waiting_returns_every_record_in_the_given_order(core: Core) -> None:
    ids = await submitted(core, 3)
    waiting = asyncio.create_task(wait_for(core, reversed(ids)))
    for job in ids:
        await run_to(core, job, SUCCESS)
    records = await waiting
    assert list(records) == list(reversed(ids))
    assert {job.status for job in records.values()} == {"succeeded"}


async def test_each_change_is_told_once(core: Core) -> None:
    [job] = await submitted(core)
    seen: list[str] = []
    waiting = asyncio.create_task(wait_for(core, [job], on_change=lambda record: seen.append(record.status)))
    await several_looks(core)
    held = await claimed(core, job)
    await several_looks(core)
    await end_attempt(core, held, "agent", AttemptEnd(SUCCESS), None)
    await waiting
    assert seen == ["pending", "running", "succeeded"]


async def several_looks(core: Core) -> None:
    """Wait until the one watcher has looked a few times."""
    enough = core.store.usage.reads + 5
    await eventually(lambda: core.store.usage.reads >= enough)


async def test_any_failure_ends_the_wait_while_others_run(core: Core) -> None:
    first, second = await submitted(core, 2)
    await run_to(core, second, AttemptExit(kind="exited", code=1))
    records = await wait_for(core, [first, second], any_failure=True)
    assert [records[first].status, records[second].status] == ["pending", "failed"]


async def test_a_timeout_names_the_unfinished_jobs(core: Core) -> None:
    [job] = await submitted(core)
    with pytest.raises(TimeoutError, match=job):
        await wait_for(core, [job], timeout=0.02)


async def test_a_record_that_vanishes_raises_and_one_that_never_was_too(core: Core) -> None:
    [job] = await submitted(core)
    waiting = asyncio.create_task(wait_for(core, [job]))
    await several_looks(core)
    await core.store.delete(JobKeys.key(job))
    with pytest.raises(JobGone, match=job):
        await waiting
    with pytest.raises(JobNotFound, match="job-nobody"):
        await wait_for(core, ["job-nobody"])


async def test_a_thousand_jobs_are_watched_by_listings_not_by_a_thousand_reads(core: Core) -> None:
    ids = await submitted(core, 1000)
    looks = 0

    def look_again(job: JobRecord) -> None:
        nonlocal looks
        looks += 1

    waiting = asyncio.create_task(wait_for(core, ids, on_change=look_again))
    await eventually(lambda: looks == 1000)
    before = core.store.usage.snapshot()
    await eventually(lambda: core.store.usage.lists >= before.lists + 5)
    spent = core.store.usage - before
    assert spent.reads == 0
    await run_to(core, ids[500], SUCCESS)
    await eventually(lambda: looks == 1001)
    waiting.cancel()


async def test_it_says_so_when_nobody_can_start_the_job(cluster: Cluster) -> None:
    core = await cluster.core()
    jobs = await submitted(core, 3)
    jobs += await submitted(core, resources={"cpu": 64}, pool="big")
    agent = AgentRecord(id="small", host="h", pool="big", capacity=Resources(cpu=4000))
    await core.records.write(AgentKeys.key("small"), AgentRecord, agent, None)
    told: list[WaitProgress] = []
    with pytest.raises(TimeoutError) as raised:
        await wait_for(core, jobs, timeout=10.0, on_progress=told.append)
    nobody = (
        "3 x no live agent in pool default; start one with `fray agent --pool default`; there are agents in pool big"
    )
    short = "1 x no live agent of pool big could ever run it: small (cpu: 64 cores wanted, 4 here); ask for less, or"
    assert told[0].text == "0 of 4 jobs done, 4 waiting"
    assert told[0].why.startswith(f"{nobody}; {short}")
    left = f"{jobs[0]}, {jobs[1]}, {jobs[2]} and 1 more"
    assert str(raised.value) == f"{told[0].text} after 10 s ({left}): {told[0].why}"


async def test_jobs_that_wait_for_room_say_so_and_agents_are_asked_rarely(cluster: Cluster) -> None:
    core = await cluster.core()
    jobs = await submitted(core, 2)
    agent = AgentRecord(id="busy", host="h", pool="default", capacity=Resources(cpu=4000), interval=1e6)
    await core.records.write(AgentKeys.key("busy"), AgentRecord, agent, None)
    told: list[WaitProgress] = []
    with pytest.raises(TimeoutError, match=r"0 of 2 jobs done, 2 waiting after [\d.]+ s \([^:]*\)$"):
        await wait_for(core, jobs, timeout=0.9 * waiting.WARN_AFTER, on_progress=told.append)
    assert told == []
    before = core.store.usage.lists
    short = r"no agent can take it now: busy \(cpu: 1 core wanted, 0 free\)"
    with pytest.raises(TimeoutError, match=f"0 of 2 jobs done, 2 waiting after .*: {short}"):
        await wait_for(core, jobs, timeout=100, on_progress=told.append)
    assert {progress.text for progress in told} == {"0 of 2 jobs done, 2 waiting"}
    assert core.store.usage.lists - before == 3, "after 2, 32 and 92 s"


async def test_a_job_that_was_claimed_since_the_agents_last_heartbeat_takes_its_room(cluster: Cluster) -> None:
    core = await cluster.core()
    running, pending = await submitted(core, 2)
    await claimed(core, running)
    one = Resources(cpu=1000)
    agent = AgentRecord(id="agent", host="host", pool="default", capacity=one, free=one, interval=1e6)
    await core.records.write(AgentKeys.key("agent"), AgentRecord, agent, None)
    short = r"no agent can take it now: agent \(1 job there; cpu: 1 core wanted, 0 free\)"
    with pytest.raises(TimeoutError, match=f"0 of 2 jobs done, 1 running, 1 waiting after .*: {short}"):
        await wait_for(core, [running, pending], timeout=100, on_progress=lambda now: None)


async def test_nothing_is_asked_for_jobs_that_run_and_no_wait_fails_for_want_of_a_reason(cluster: Cluster) -> None:
    core = await cluster.core()
    running, pending = await submitted(core, 2)
    await claimed(core, running)
    told: list[WaitProgress] = []
    before = core.store.usage.lists
    with pytest.raises(TimeoutError, match=r"0 of 1 jobs done, 1 running after [\d.]+ s \([^:]*\)$"):
        await wait_for(core, [running], timeout=100, on_progress=told.append)
    assert core.store.usage.lists == before
    assert told
    assert {progress.text for progress in told} == {"0 of 1 jobs done, 1 running"}
    cluster.connections[0].refused = [("list", AgentKeys.area)]
    with pytest.raises(TimeoutError, match=r"0 of 1 jobs done, 1 waiting after [\d.]+ s \([^:]*\)$"):
        await wait_for(core, [pending], timeout=100, on_progress=told.append)


async def test_a_start_that_failed_between_two_polls_is_reported_at_the_next_one(cluster: Cluster) -> None:
    core = await cluster.core()
    [job_id] = await submitted(core)
    job = (await read_job(core, job_id)).record
    reasons = WaitingReasons(core)
    for _ in range(4):
        await reasons.update([job])
        await asyncio.sleep(1)
    assert reasons.text.startswith("no live agent in pool default")
    cluster.connections[0].asked.clear()
    exit = AttemptExit(kind="host-failed", message="no space left")
    failed = PastAttempt(attempt=1, agent="a", host="h", started_at=core.now(), ended_at=core.now(), exit=exit)
    job = replace(job, attempt=2, not_before=core.now() + 8.0, history=[failed])
    why = "it is tried again in 8 s, after attempt 1 ended: host-failed: no space left"
    assert await reasons.update([job]) == why
    assert await reasons.update([job]) == ""
    assert cluster.connections[0].asked == [("get", "pools/default/pool.json")]


def stamp(stream: str, tag: str, data: bytes) -> bytes:
    return f"2026-01-02T03:04:05.678901Z {stream} {tag} ".encode() + data + b"\n"


async def print_chunk(core: Core, job: str, attempt: int, number: int, data: bytes) -> None:
    await core.store.put(WorkKeys.log(job, attempt, 0, number), data, ABSENT)


async def test_logs_are_followed_through_attempts_to_the_last_chunk(core: Core) -> None:
    [job] = await submitted(core, max_retries_failure=1)
    lines: list[LogLine] = []

    async def collect() -> None:
        async for chunk in follow_chunks(core, job):
            lines.extend(chunk)

    following = asyncio.create_task(collect())
    held = await claimed(core, job)
    await print_chunk(core, job, 1, 1, stamp("stdout", "F", b"one") + stamp("stderr", "P", b"\xfftwo"))
    await eventually(lambda: len(lines) == 2)
    assert not following.done()
    await end_attempt(core, held, "agent", AttemptEnd(AttemptExit(kind="exited", code=1, log_chunks=1)), None)
    held = await claimed(core, job)
    await print_chunk(core, job, 2, 1, stamp("stdout", "F", b"three"))
    await print_chunk(core, job, 2, 2, stamp("stdout", "F", b"four"))
    await end_attempt(core, held, "agent", AttemptEnd(AttemptExit(kind="success", log_chunks=2)), None)
    await following
    assert [(line.attempt, line.stream, line.data, line.complete) for line in lines] == [
        (1, "stdout", b"one", True),
        (1, "stderr", b"\xfftwo", False),
        (2, "stdout", b"three", True),
        (2, "stdout", b"four", True),
    ]
    assert lines[0].time == "2026-01-02T03:04:05.678901Z"
    assert [str(line) for line in lines[:2]] == ["one", "\N{REPLACEMENT CHARACTER}two"]


async def test_followers_of_a_lost_attempt_read_its_log_and_go_on(core: Core) -> None:
    [job] = await submitted(core)
    held = await claimed(core, job)
    await print_chunk(core, job, 1, 1, stamp("stdout", "F", b"last words"))
    await end_attempt(core, held, "agent", AttemptEnd(AttemptExit(kind="preempted")), None)
    await run_to(core, job, AttemptExit(kind="success", log_chunks=0))
    assert [line.data async for chunk in follow_chunks(core, job) for line in chunk] == [b"last words"]


async def test_following_never_lists(core: Core) -> None:
    [job] = await submitted(core)
    held = await claimed(core, job)
    await print_chunk(core, job, 1, 1, stamp("stdout", "F", b"x"))
    await end_attempt(core, held, "agent", AttemptEnd(AttemptExit(kind="success", log_chunks=1)), None)
    before = core.store.usage.snapshot()
    assert [line.data async for chunk in follow_chunks(core, job) for line in chunk] == [b"x"]
    spent = core.store.usage - before
    assert (spent.lists, spent.writes, spent.reads) == (0, 0, 2)


async def test_the_tail_reads_only_the_last_chunks(core: Core) -> None:
    [job] = await submitted(core)
    held = await claimed(core, job)
    for number in range(1, 11):
        await print_chunk(core, job, 1, number, stamp("stdout", "F", b"a") + stamp("stdout", "F", b"%d" % number))
    await end_attempt(core, held, "agent", AttemptEnd(AttemptExit(kind="success", log_chunks=10)), None)
    record = (await read_job(core, job)).record
    before = core.store.usage.snapshot()
    assert [line.data for line in await read_logs(core, record, 3)] == [b"9", b"a", b"10"]
    assert (core.store.usage - before).reads == 2
    assert len(await read_logs(core, record)) == 20
    assert await read_logs(core, record, 0) == []


async def test_until_an_attempt_begins_the_log_is_that_of_the_last_one_that_printed(core: Core) -> None:
    [job] = await submitted(core, max_retries_failure=2)
    held = await claimed(core, job)
    await print_chunk(core, job, 1, 1, stamp("stdout", "F", b"first") + stamp("stdout", "F", b"last"))
    await end_attempt(core, held, "agent", AttemptEnd(AttemptExit(kind="exited", code=1, log_chunks=1)), None)
    await run_to(core, job, AttemptExit(kind="exited", code=1, log_chunks=0))
    pending = (await read_job(core, job)).record
    assert pending.attempt == 3
    assert [(line.attempt, line.data) for line in await read_logs(core, pending)] == [(1, b"first"), (1, b"last")]
    assert [line.data for line in await read_logs(core, pending, 1)] == [b"last"]
    assert await read_logs(core, (await claimed(core, job)).record) == []


async def test_a_log_that_is_no_log_is_said_to_be_none(core: Core) -> None:
    [job] = await submitted(core)
    await claimed(core, job)
    await print_chunk(core, job, 1, 1, b"nonsense\n")
    with pytest.raises(BadRecord, match="nonsense"):
        await read_logs(core, (await read_job(core, job)).record)


async def test_a_wait_goes_on_though_the_record_of_the_jobs_agent_is_damaged(core: Core) -> None:
    [job] = await submitted(core, environment={"docker_image": "image"})
    held = await claimed(core, job)
    await core.store.put(AgentKeys.key("agent"), b"{}", ABSENT)
    activity = ActivityReports(core)
    assert await activity.update(held.record) == ""
    assert activity.activity == ""
