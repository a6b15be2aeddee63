"""A wait on a cluster without agents says why: in the log after two seconds, and in the time-out's message."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fray import wait_line
from fray.client import StorageClient
from fray.cluster import StorageCluster
from fray.types import Entrypoint, JobRequest
from fray_coordinator.jobs import waiting, waiting_reasons
from tests.support import actors
from tests.support.waiting import wait_until

NOBODY = "no live agent in pool default; start one with `fray agent --pool default`"


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StorageClient]:
    """A client of a cluster without agents, on which seconds are shorter."""
    for module in (waiting, waiting_reasons):
        monkeypatch.setattr(module, "WARN_AFTER", 0.1)
    monkeypatch.setattr("fray.actor.address.WARN_AFTER", 0.1)
    monkeypatch.setattr(wait_line, "_RENEWAL", 0.02)
    with StorageCluster(str(tmp_path / "root")) as cluster:
        yield StorageClient(cluster)


def a_job(client: StorageClient) -> Callable[[float | None], object]:
    job = client.submit(JobRequest("j", Entrypoint.from_binary("true")))
    return job.wait


def an_actors_call(client: StorageClient) -> Callable[[float | None], object]:
    future = client.create_actor(actors.Counter, name="it").add.remote(1)
    return future.result


def an_actors_call_with_exception(client: StorageClient) -> Callable[[float | None], object]:
    future = client.create_actor(actors.Counter, name="it").add.remote(1)
    return future.exception


def a_group(client: StorageClient) -> Callable[[float | None], object]:
    group = client.create_actor_group(actors.Counter, name="it", count=2)
    return lambda timeout: group.wait_ready(timeout=timeout or 200.0)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (a_job, r"0 of 1 jobs done, 1 waiting after 0.5 s \(j-.*\): "),
        (an_actors_call, r"no result after 0.5 s: actor 'it' \(it-0-.*\) has not started: "),
        (an_actors_call_with_exception, r"no result after 0.5 s: actor 'it' \(it-0-.*\) has not started: "),
        (a_group, r"0 of 2 actors of 'it' serve calls \(jobs: 2 waiting\) after 0.5 s: "),
    ],
)
def test_the_log_and_the_time_out_say_why(
    client: StorageClient,
    made: Callable[[StorageClient], Callable[[float | None], object]],
    text: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    wait = made(client)

    def is_told() -> bool:
        with pytest.raises(TimeoutError) as raised:
            wait(0.5)
        return re.fullmatch(text + re.escape(NOBODY), str(raised.value)) is not None

    wait_until(is_told)
    assert any(message.endswith(NOBODY) for message in caplog.messages)


def test_one_who_waits_for_ever_is_told_while_waiting(client: StorageClient, caplog: pytest.LogCaptureFixture) -> None:
    job = client.submit(JobRequest("j", Entrypoint.from_binary("true")))
    with ThreadPoolExecutor(1) as thread:
        waits = thread.submit(job.wait, raise_on_failure=False)
        wait_until(lambda: f"0 of 1 jobs done, 1 waiting: {NOBODY}" in caplog.messages)
        job.terminate()
        assert waits.result(200).value == "stopped"
