"""Single parts of actors: refused configs, retries, the search for an actor, journals."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest

from fray.actor import ActorConfig, ActorUnavailableError, CheckpointConfig, current_actor, idempotent
from fray.actor.caller import ActorAddress, HandleCaller, wait_for_endpoint
from fray.actor.checkpointing import restore
from fray.actor.create import actor_request, retry_policy, validated
from fray.actor.running_actor import CurrentActor
from fray.client import StorageClient
from fray.cluster import StorageCluster
from fray.cluster.actor_metadata import ActorEndpoint
from fray.cluster.current_job import CurrentJob
from fray.errors import CallInterrupted, InvalidInput
from fray.rpc.calling import ReachedActor, RetryPolicy
from fray.rpc.future import UnsentCall
from fray_coordinator.core import Core
from fray_coordinator.errors import Fenced
from fray_layouts.object_keys import EndpointKey, JobKeys
from fray_layouts.records import (
    AttemptExit,
    EndpointRecord,
    JobLease,
    JobRecord,
)
from fray_layouts.spec_parsing import parse_spec
from fray_rpc import CallId, ClientCall, ConnectionLost
from fray_rpc.wire.messages import Request
from tests.support.waiting import wait_until


@pytest.fixture
def cluster() -> StorageCluster:
    return StorageCluster(f"memory://{uuid.uuid4()}", namespace="space")


# --- configs


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (ActorConfig(max_concurrency=0), "max_concurrency"),
        (ActorConfig(max_concurrency="2"), "max_concurrency"),  # type: ignore[arg-type]
        (ActorConfig(max_restarts=-1), "max_restarts"),
        (ActorConfig(max_restarts="2"), "max_restarts"),  # type: ignore[arg-type]
        (ActorConfig(checkpoint=CheckpointConfig()), "checkpoint"),
        (ActorConfig(checkpoint=CheckpointConfig(calls=0)), r"checkpoint\.calls"),
        (ActorConfig(checkpoint=CheckpointConfig(seconds=-1.0)), r"checkpoint\.seconds"),
        (ActorConfig(checkpoint=CheckpointConfig(seconds="9")), r"checkpoint\.seconds"),  # type: ignore[arg-type]
        (ActorConfig(checkpoint=CheckpointConfig(replies=True), max_concurrency=2), "max_concurrency"),
    ],
)
def test_configs_that_make_no_sense_are_refused(config: ActorConfig, field: str) -> None:
    with pytest.raises(InvalidInput, match=rf"actor_config\.{field}: "):
        validated(config)


@pytest.mark.parametrize("count", [0, "2", None])
def test_a_number_of_actors_that_makes_no_sense_is_refused(cluster: StorageCluster, count: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^count: "):
        StorageClient(cluster).create_actor_group(dict, name="group", count=count)


class Some:
    @idempotent
    def read(self) -> None: ...

    def write(self) -> None: ...


def test_a_call_that_may_have_run_is_retried_only_if_that_is_allowed() -> None:
    configs = [ActorConfig(max_task_retries=n) for n in (None, 2, -1)]
    plain, twice, always = (RetryPolicy.of(asdict(retry_policy(Some, config))) for config in configs)
    assert [plain.allows(name, 0) for name in ("read", "write")] == [True, False]
    assert [twice.allows("write", done) for done in (0, 1, 2)] == [True, True, False]
    assert always.allows("write", 1000)


def test_there_is_no_current_actor_outside_of_actors() -> None:
    with pytest.raises(RuntimeError, match="outside of an actor"):
        current_actor()


# --- where an actor is

ADDRESS = ActorAddress("space", "actor", "actor-0-1", "actor-0-1")


async def write_job(core: Core, status: str, attempt: int = 1, **fields: Any) -> None:
    spec = parse_spec({"name": "actor-0", "entrypoint": {"command": ["x"]}, "actor": True})
    lease = JobLease(agent="a", host="h", since=0.0)
    job = JobRecord(id=ADDRESS.job, spec=spec, status=status, attempt=attempt, lease=lease, **fields)
    await core.records.update(JobKeys.key(job.id), JobRecord, lambda found: job)


async def write_endpoint(core: Core, nonce: str, attempt: int = 1) -> None:
    key = EndpointKey(ADDRESS.namespace, ADDRESS.name, ADDRESS.actor_id).key()
    record = EndpointRecord(
        namespace=ADDRESS.namespace,
        name=ADDRESS.name,
        actor_id=ADDRESS.actor_id,
        job=ADDRESS.job,
        attempt=attempt,
        nonce=nonce,
        address="127.0.0.1:1",
    )
    await core.records.update(key, EndpointRecord, lambda found: record)


def test_an_actor_is_waited_for_until_it_is_up(cluster: StorageCluster) -> None:
    async def act(core: Core) -> str:
        await write_job(core, "pending")
        finding = asyncio.create_task(wait_for_endpoint(core, ADDRESS))
        await asyncio.sleep(0)
        assert not finding.done()
        await write_endpoint(core, "first")
        return (await finding).nonce

    assert cluster.run(act) == "first"


def test_an_endpoint_that_failed_is_tried_again_while_its_attempt_runs(cluster: StorageCluster) -> None:
    async def act(core: Core) -> list[str]:
        await write_job(core, "running")
        await write_endpoint(core, "first")
        still = (await wait_for_endpoint(core, ADDRESS, failed="first")).nonce
        await write_job(core, "running", attempt=2)
        finding = asyncio.create_task(wait_for_endpoint(core, ADDRESS, failed="first"))
        done, _ = await asyncio.wait([finding], timeout=0.05)
        assert not done
        await write_endpoint(core, "second", attempt=2)
        return [still, (await finding).nonce]

    assert cluster.run(act) == ["first", "second"]


def test_an_endpoint_that_a_dead_process_published_late_is_not_used(cluster: StorageCluster) -> None:
    async def act(core: Core) -> str:
        await write_job(core, "running", attempt=2)
        await write_endpoint(core, "late", attempt=1)
        finding = asyncio.create_task(wait_for_endpoint(core, ADDRESS, failed="second", seen=(0, 2)))
        done, _ = await asyncio.wait([finding], timeout=0.05)
        assert not done
        await write_endpoint(core, "third", attempt=3)
        return (await finding).nonce

    assert cluster.run(act) == "third"


def test_an_actor_that_has_ended_is_unavailable_and_says_why(cluster: StorageCluster) -> None:
    async def act(core: Core) -> None:
        await write_job(core, "failed", exit=AttemptExit(kind="out-of-memory", message="killed for lack of memory"))
        await wait_for_endpoint(core, ADDRESS)

    with pytest.raises(ActorUnavailableError, match=r"actor-0-1.*killed for lack of memory"):
        cluster.run(act)


def test_an_actor_of_one_attempt_ends_with_it(cluster: StorageCluster) -> None:
    async def act(core: Core) -> None:
        await write_job(core, "running", attempt=2)
        await wait_for_endpoint(core, ActorAddress("space", "actor", "hosted", ADDRESS.job, attempt=1))

    with pytest.raises(ActorUnavailableError, match="attempt 1 of the job"):
        cluster.run(act)


# --- order


class FakeChannel:
    """Records the messages that are sent, and answers nothing."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def start(self, actor: str, method: str, *arguments: object) -> Any:
        self.sent.append(f"direct {method}")
        return UnsentCall(ConnectionLost("this test has no server", started=False))

    def call(self, actor: str, method: str, *arguments: object) -> Any:
        self.sent.append(f"direct {method}")

    def resend(self, request: Request) -> ClientCall:
        self.sent.append(request.method)
        return ClientCall(self, request)

    def wait(self, pending: object, deadline: float | None) -> None:
        threading.Event().wait()

    def ensure_reading(self, at_once: bool = False) -> None: ...

    def grant(self, call: CallId, limit: int) -> None: ...


def test_no_call_overtakes_waiting_calls(cluster: StorageCluster) -> None:
    calls, channel, release = HandleCaller(cluster, ADDRESS), FakeChannel(), threading.Event()
    endpoint = EndpointRecord(namespace="space", name="actor", actor_id="a", nonce="n", address="127.0.0.1:1")
    calls._reached = ReachedActor(channel, ActorEndpoint.of(endpoint))  # type: ignore[arg-type]

    def hold() -> None:
        release.wait()

    calls._queue.put(hold)
    calls.start("first", (), {})
    caller = threading.Thread(target=calls.call, args=("second", (), {}), daemon=True)
    caller.start()
    calls._queue.put(lambda: None)
    assert channel.sent == []
    release.set()
    wait_until(lambda: len(channel.sent) == 2)
    assert channel.sent == ["first", "second"]
    wait_until(lambda: calls._queue.idle)
    calls.call("third", (), {})
    assert channel.sent[2:] == ["direct third"]


class LosesStreams:
    """Loses the first stream before its first item came, and answers the later ones."""

    def __init__(self) -> None:
        self.streams = 0

    def stream(self, actor: str, method: str, *arguments: object) -> Iterator[int]:
        self.streams += 1
        if self.streams == 1:
            raise ConnectionLost("the actor died", started=None)
        yield from (1, 2)


@pytest.mark.parametrize("marked", [False, True])
def test_a_stream_that_may_have_begun_is_made_again_only_where_that_is_allowed(
    cluster: StorageCluster, monkeypatch: pytest.MonkeyPatch, marked: bool
) -> None:
    calls, channel = HandleCaller(cluster, ADDRESS), LosesStreams()
    metadata = asdict(RetryPolicy(idempotent=["numbers"] if marked else []))
    record = EndpointRecord(
        namespace="space", name="actor", actor_id="a", nonce="n", address="127.0.0.1:1", metadata=metadata
    )
    reached = ReachedActor(channel, ActorEndpoint.of(record))  # type: ignore[arg-type]
    monkeypatch.setattr(calls, "reach", lambda since: reached)
    if marked:
        assert list(calls.stream("numbers", (), {})) == [1, 2]
    else:
        with pytest.raises(CallInterrupted, match=r"numbers\(\) may have been running"):
            list(calls.stream("numbers", (), {}))


# --- journals


class Tally:
    def __init__(self) -> None:
        self.calls: list[str] = []


def reopen(cluster: StorageCluster, policy: CheckpointConfig, attempt: int = 1) -> tuple[Any, Any]:
    mine = CurrentJob(cluster.root, "tally-0-1", attempt, "space", "/nowhere")
    return restore(cluster, mine, policy, CurrentActor(None, 0, "tally"), Tally, Tally)  # type: ignore[arg-type]


def call(instance: Tally, journal: Any, sequence: int, client: str = "client", lowest: int = 0) -> None:
    """One call as the server makes it; the client has already received the replies of its calls below `lowest`."""
    call_id = CallId(client, sequence)
    assert journal.known(call_id) is None
    instance.calls.append(f"{client}{sequence}")
    journal.applied(call_id, b"outcome %d" % sequence, lowest)


def test_a_restored_actor_knows_the_calls_that_its_state_has_seen(cluster: StorageCluster) -> None:
    policy = CheckpointConfig(calls=2)
    instance, journal = reopen(cluster, policy)
    for sequence in (1, 2, 3):
        call(instance, journal, sequence)
    instance, journal = reopen(cluster, policy, attempt=2)
    assert instance.calls == ["client1", "client2"]  # the third had no checkpoint
    assert [journal.known(CallId("client", n)) for n in (1, 2, 3)] == [b"outcome 1", b"outcome 2", None]


def test_outcomes_are_kept_until_their_caller_has_them(cluster: StorageCluster) -> None:
    policy = CheckpointConfig(replies=True)
    instance, journal = reopen(cluster, policy)
    call(instance, journal, 1, "other")
    call(instance, journal, 1)
    call(instance, journal, 2)
    call(instance, journal, 3, lowest=2)
    _, journal = reopen(cluster, policy, attempt=2)
    known = [journal.known(CallId(*who)) for who in (("other", 1), ("client", 1), ("client", 2), ("client", 3))]
    assert known == [b"outcome 1", None, b"outcome 2", b"outcome 3"]


def test_an_earlier_attempt_that_goes_on_may_not_reply(cluster: StorageCluster) -> None:
    policy = CheckpointConfig(replies=True)
    instance, journal = reopen(cluster, policy)
    call(instance, journal, 1)
    reopen(cluster, policy, attempt=2)
    with pytest.raises(Fenced):
        call(instance, journal, 2)
    assert reopen(cluster, policy, attempt=3)[0].calls == ["client1"]


def test_calls_that_are_not_in_a_checkpoint_yet_are_written_at_the_end(cluster: StorageCluster) -> None:
    policy = CheckpointConfig(calls=100)
    instance, journal = reopen(cluster, policy)
    call(instance, journal, 1)
    journal.close()
    assert reopen(cluster, policy, attempt=2)[0].calls == ["client1"]


def test_nothing_is_written_while_a_call_runs(cluster: StorageCluster) -> None:
    policy = CheckpointConfig(seconds=0.01)
    instance, journal = reopen(cluster, policy)
    call(instance, journal, 1)
    assert journal.known(CallId("client", 2)) is None
    instance.calls.append("half")
    threading.Event().wait(0.1)  # several times the interval
    assert reopen(cluster, policy, attempt=2)[0].calls in ([], ["client1"])
    journal._actor.shutdown_event.set()


def test_an_actors_job_has_the_priority_that_was_asked_for() -> None:
    assert actor_request(dict, (), {}, "urgent", ActorConfig(priority=7)).priority == 7
