"""Actors whose process or host dies: they come back, and callers get true answers."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from fray.actor import ActorUnavailableError, CallInterrupted, CheckpointConfig, idempotent
from fray.cluster import StorageCluster
from fray_coordinator.actors import naming
from fray_coordinator.errors import StoreUnavailable
from fray_coordinator.store.metering import MeteredBackend
from tests.support import actors
from tests.support.agents import AgentProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StorageCluster, list[AgentProcess]]]:
    with actors.storage(tmp_path_factory.mktemp("cluster"), count=1) as opened:
        yield opened


@pytest.fixture
def cluster(storage: tuple[StorageCluster, list[AgentProcess]]) -> StorageCluster:
    return storage[0]


class Worker:
    """Records each call that begins in a file, and dies where it is told to."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes
        self.count = 0

    def pid(self) -> int:
        return os.getpid()

    def add(self) -> int:
        self.count += 1
        return self.count

    def once(self, what: str, die_in_attempts: int = 0) -> str:
        """Record `what`, and die if it was not recorded more often than that."""
        with self.notes.open("a") as file:
            file.write(f"{what}\n")
        if self.noted(what) <= die_in_attempts:
            os.kill(os.getpid(), signal.SIGKILL)
        return what

    @idempotent
    def repeatable(self, what: str) -> str:
        return self.once(what, die_in_attempts=1)

    def noted(self, what: str) -> int:
        return self.notes.read_text().splitlines().count(what)


def create(cluster: StorageCluster, cls: type, *args: Any, **config: Any) -> Any:
    return actors.create_group(cluster, cls, *args, name="actor", **config).handles[0]


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)


def wait_for_end(pid: int) -> None:
    """Wait until the process has ended and been reaped. Its sockets are closed, so later calls do not begin."""
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_a_crashed_actor_is_started_again_and_the_handle_follows(cluster: StorageCluster, tmp_path: Path) -> None:
    worker = create(cluster, Worker, tmp_path / "notes")
    pid = worker.pid()
    assert [worker.add(), worker.add()] == [1, 2]
    kill(pid)
    assert worker.add() == 1
    assert worker.pid() != pid


def test_a_living_actor_is_called_without_a_word_to_the_storage(
    cluster: StorageCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(cluster, actors.Counter).add()  # the first that this program owns and calls
    asked = noted_requests(cluster, monkeypatch)
    counter = create(cluster, actors.Counter)
    paid = [(verb, key.split("/")[0]) for verb, key in asked if verb in ("put", "list")]
    assert paid == [("put", "children"), ("put", "pending"), ("put", "jobs"), ("put", "pools")]  # a pool has a bell
    counter.add()
    asked.clear()
    for _ in range(100):
        counter.add.remote()
    assert counter.add() == 102
    assert asked == []


def noted_requests(cluster: StorageCluster, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The requests of this program to the storage from now on, without the heartbeat of its own lease."""
    asked: list[tuple[str, str]] = []
    own = (f"jobs/{cluster.owner()}", "agents/")

    def noting(verb: str) -> Callable[..., Any]:
        request = getattr(MeteredBackend, verb)

        def noted(metered: MeteredBackend, key: str, *args: Any) -> Any:
            if metered.root == cluster.root and not key.startswith(own):  # not of private clusters of other tests
                asked.append((verb, key))
            return request(metered, key, *args)

        return noted

    for verb in ("get", "get_if_changed", "put", "delete", "withdraw", "list"):
        monkeypatch.setattr(MeteredBackend, verb, noting(verb))
    return asked


def test_a_call_that_may_have_run_is_not_made_again(cluster: StorageCluster, tmp_path: Path) -> None:
    worker = create(cluster, Worker, tmp_path / "notes", max_concurrency=2)
    worker.pid()
    with pytest.raises(CallInterrupted, match=r"once\(\) may have been running"):
        worker.once("a", die_in_attempts=1)
    assert issubclass(CallInterrupted, ConnectionError)
    assert worker.noted("a") == 1


def test_a_call_is_made_again_as_often_as_it_may_be(cluster: StorageCluster, tmp_path: Path) -> None:
    worker = create(cluster, Worker, tmp_path / "notes", max_task_retries=1)
    assert worker.once.remote("a", die_in_attempts=1).result(200) == "a"
    assert worker.noted("a") == 2
    with pytest.raises(CallInterrupted):
        worker.once("b", die_in_attempts=2)


def test_an_idempotent_method_is_called_again(cluster: StorageCluster, tmp_path: Path) -> None:
    worker = create(cluster, Worker, tmp_path / "notes")
    assert worker.repeatable("a") == "a"
    assert worker.noted("a") == 2


def test_calls_that_did_not_begin_are_made_again_in_their_order(cluster: StorageCluster) -> None:
    diary = create(cluster, actors.Diary)
    kill(diary.pid())
    futures = [diary.note.remote(number) for number in range(50)]
    for future in futures:
        future.result(200)
    assert diary.read() == list(range(50))


def test_an_actor_that_may_not_restart_is_gone_with_its_process(cluster: StorageCluster, tmp_path: Path) -> None:
    worker = create(cluster, Worker, tmp_path / "notes", max_restarts=0)
    kill(worker.pid())
    with pytest.raises(ActorUnavailableError, match="killed by SIGKILL") as caught:
        worker.pid()
    assert worker._address.job in str(caught.value)


def test_a_durable_actor_goes_on_and_applies_no_call_twice(cluster: StorageCluster, tmp_path: Path) -> None:
    worker = create(cluster, Worker, tmp_path / "notes", checkpoint=CheckpointConfig(replies=True))
    assert [worker.add() for _ in range(3)] == [1, 2, 3]
    for count in (4, 5):
        kill(worker.pid())
        assert worker.add() == count
    assert worker.once("a", die_in_attempts=1) == "a"
    assert worker.add() == 6


class Ledger:
    """Dies between the checkpoint of a call and its reply."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag
        self.entries: list[str] = []

    def __checkpoint__(self) -> list[str]:
        return self.entries

    def __restore__(self, state: list[str]) -> None:
        self.entries = state

    def enter(self, entry: str) -> int:
        self.entries.append(entry)
        if entry == "doomed" and not self.flag.exists():
            self.flag.touch()
            self.die_once_it_is_written()
        return len(self.entries)

    def die_once_it_is_written(self) -> None:
        from fray_coordinator.actors.checkpoints import CheckpointLog

        write = CheckpointLog.write

        async def write_and_die(self: CheckpointLog, state: bytes) -> None:
            await write(self, state)
            os.kill(os.getpid(), signal.SIGKILL)

        CheckpointLog.write = write_and_die  # type: ignore[method-assign]

    def read(self) -> list[str]:
        return self.entries


def test_a_call_whose_reply_was_lost_after_its_checkpoint_has_the_outcome_it_had(
    cluster: StorageCluster, tmp_path: Path
) -> None:
    ledger = create(cluster, Ledger, tmp_path / "flag", checkpoint=CheckpointConfig(replies=True))
    assert [ledger.enter("first"), ledger.enter("doomed"), ledger.enter("last")] == [1, 2, 3]
    assert ledger.read() == ["first", "doomed", "last"]


def test_checkpoints_every_few_calls_and_seconds(cluster: StorageCluster, tmp_path: Path) -> None:
    by_calls = create(cluster, Worker, tmp_path / "notes", checkpoint=CheckpointConfig(calls=3))
    assert [by_calls.add() for _ in range(3)] == [1, 2, 3]
    kill(by_calls.pid())
    assert by_calls.add() == 4
    by_time = create(cluster, Worker, tmp_path / "notes", checkpoint=CheckpointConfig(seconds=0.1))
    assert by_time.add() == 1
    wait_until(lambda: checkpoints(cluster, by_time) > 1)
    kill(by_time.pid())
    assert by_time.add() == 2


def checkpoints(cluster: StorageCluster, handle: Any) -> int:
    """The highest number of the actor's sequence."""
    from fray_coordinator.actors.checkpoints import _list_numbers

    job = handle._address.job
    return cluster.run(lambda core: _list_numbers(core, job, handle._address.name))[-1]


@pytest.mark.parametrize("end", [AgentProcess.kill, AgentProcess.end], ids=["killed", "told to leave"])
def test_an_actor_of_a_host_that_is_gone_comes_back_elsewhere(
    tmp_path: Path, end: Callable[[AgentProcess], object]
) -> None:
    with actors.storage(tmp_path, count=1) as (cluster, (first,)):
        worker = create(cluster, Worker, tmp_path / "notes")
        pid = worker.pid()
        second = AgentProcess(cluster.root, tmp_path / "work", cores=4)
        try:
            end(first)
            wait_for_end(pid)
            assert worker.add.remote().result(200) == 1
            assert worker.pid() != pid
        finally:
            second.kill()


class Announced:
    """The storage refuses its first announcement."""

    def __init__(self, flag: Path) -> None:
        if not flag.exists():
            flag.touch()
            naming.publish = unavailable  # type: ignore[assignment]

    def pid(self) -> int:
        return os.getpid()


async def unavailable(*_: object, **__: object) -> None:
    raise StoreUnavailable("the test says so")


def test_an_actor_that_cannot_be_announced_starts_again(cluster: StorageCluster, tmp_path: Path) -> None:
    announced = create(cluster, Announced, tmp_path / "flag")
    assert announced.pid() > 0
    assert cluster.poll(announced._address.job).attempt == 2
