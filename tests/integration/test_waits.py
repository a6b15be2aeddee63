"""A wait on a cluster without agents says why: in the log after two seconds, and in the time-out's message."""

from __future__ import annotations

import asyncio
import io
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fray import wait_line
from fray.client import StorageClient
from fray.cluster import StorageCluster
from fray.errors import ActorNotFoundError
from fray.rpc import ClusterResolver
from fray.types import Entrypoint, JobRequest
from fray_coordinator.jobs import waiting
from tests.support import actors
from tests.support.waiting import wait_until

NOBODY = "no live agent in pool default; start one with `fray agent --pool default`"


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StorageClient]:
    """A client of a cluster without agents, on which seconds are shorter."""
    for module in (waiting, waiting):
        monkeypatch.setattr(module, "WARN_AFTER", 0.1)
    monkeypatch.setattr("fray.actor.caller.WARN_AFTER", 0.1)
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


def test_an_endless_wait_logs_the_reason(client: StorageClient, caplog: pytest.LogCaptureFixture) -> None:
    job = client.submit(JobRequest("j", Entrypoint.from_binary("true")))
    with ThreadPoolExecutor(1) as thread:
        waits = thread.submit(job.wait, raise_on_failure=False)
        wait_until(lambda: f"0 of 1 jobs done, 1 waiting: {NOBODY}" in caplog.messages)
        job.terminate()
        assert waits.result(200).value == "stopped"


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True

    @property
    def line(self) -> str:
        """What the terminal shows in the line of waits."""
        return self.getvalue().rpartition("\r")[2].removesuffix("\x1b[K")


def made_screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """A terminal in the place of stderr, which pytest replaces before each phase of a test."""
    monkeypatch.setattr(sys, "stderr", shown := Screen())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    return shown


def test_a_call_to_an_actor_draws_its_line_only_while_somebody_waits(
    client: StorageClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    screen = made_screen(monkeypatch)
    actor = client.create_actor(actors.Counter, name="it")
    future = actor.add.remote(1)
    wait_until(lambda: any(message.endswith(NOBODY) for message in caplog.messages))
    assert "fray: actor 'it'" not in screen.getvalue()
    for wait in (future.result, future.exception, lambda timeout: asyncio.run(asyncio.wait_for(future, timeout))):
        with ThreadPoolExecutor(1) as thread:
            waits = thread.submit(wait, 1.0)
            wait_until(lambda: screen.line.startswith("fray: actor 'it' (it-0-") and "has not started" in screen.line)
            assert isinstance(waits.exception(), TimeoutError)
        assert screen.line == ""


def test_a_call_to_a_name_without_actors_draws_its_line_only_while_somebody_waits(
    client: StorageClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = made_screen(monkeypatch)
    monkeypatch.setattr(wait_line, "WARN_AFTER", 0.1)
    resolver = ClusterResolver(client.cluster)
    resolver.patience = 3.0
    future = resolver.lookup("it").add.remote(1)
    wait_until(lambda: bool(wait_line._terminal.value.lines and wait_line._terminal.value.lines[0]._text))
    assert screen.getvalue() == ""
    with pytest.raises(ActorNotFoundError):
        future.result()
    assert "\rfray: 0 of 1 actors it are up" in screen.getvalue()
    assert screen.line == ""
