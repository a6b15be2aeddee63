"""A driver prints the output of its jobs, actors and workers; on a private cluster of either kind."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest

from fray.client import StorageClient
from fray.cluster import Entrypoint, JobRequest, LocalCluster, ResourceConfig
from fray.cluster.log_printer import SWITCH_VARIABLE
from fray.errors import JobFailed
from fray.pool import WorkerPool
from fray_coordinator.store.store import Store
from tests.support.waiting import wait_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SMALL = ResourceConfig(cpu=0.1)


@pytest.fixture(scope="module")
def processes() -> Iterator[LocalCluster]:
    with LocalCluster() as opened:
        opened.log_to_driver = True
        yield opened


@pytest.fixture
def threads() -> Iterator[LocalCluster]:
    with LocalCluster(use_processes=False) as opened:
        opened.log_to_driver = True
        yield opened


def say(*words: str, end: str = "\n") -> None:
    for word in words:
        print(word, end=end)


def say_and_fail() -> None:
    print("about to fail")
    print("no luck", file=sys.stderr)
    raise ValueError("bad luck")


class Greeter:
    def greet(self, name: str) -> None:
        print(f"hello {name}")


def call(function: object, *args: object) -> JobRequest:
    return JobRequest("said", Entrypoint.from_callable(function, args=args), SMALL)  # type: ignore[arg-type]


def command(text: str) -> JobRequest:
    return JobRequest("sh", Entrypoint.from_binary("sh", ["-c", text]), SMALL)


def test_a_waits_end_comes_after_the_last_lines(processes: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = processes.launch_many([call(say, "one", "two"), command("echo three; echo four >&2")])
    processes.wait(jobs)
    shown = capsys.readouterr()
    said, sh = jobs
    assert sorted(shown.out.splitlines()) == sorted([f"({said}) one", f"({said}) two", f"({sh}) three"])
    assert f"({sh}) four" in shown.err.splitlines()


def test_a_failed_jobs_lines_come_before_its_exception(
    processes: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(JobFailed):
        processes.result(processes.launch(call(say_and_fail)))
    shown = capsys.readouterr()
    assert "about to fail" in shown.out
    assert "no luck" in shown.err


def printed_from_now(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What is printed, which may be looked at while others print: `capsys` loses what comes while it is asked.

    Called by the test itself: before it begins, pytest has its own streams.
    """
    stream = io.StringIO()
    monkeypatch.setattr("sys.stdout", stream)
    return stream


def test_output_of_actors_and_workers_is_shown(processes: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    out = printed_from_now(monkeypatch)
    actor = StorageClient(processes).create_actor(Greeter, name="greeter", resources=SMALL)
    with WorkerPool(processes, 1, SMALL) as pool:
        actor.greet("world")
        pool.submit(say, "from a worker").result()
        wait_until(lambda: "hello world" in out.getvalue() and "from a worker" in out.getvalue())
    assert re.search(r"^\(greeter-0-\w+\) hello world$", out.getvalue(), re.MULTILINE)
    assert re.search(r"^\(worker-[\w-]+\) from a worker$", out.getvalue(), re.MULTILINE)


def test_an_ending_program_shows_the_last_lines_of_its_actors() -> None:
    script = """
from fray import current_client
from fray.cluster import LocalCluster, set_current_cluster
set_current_cluster(LocalCluster())
from fray.client import StorageClient
from fray.cluster import current_cluster
class Last:
    def word(self): print("famous")
StorageClient(current_cluster()).create_actor(Last, name="last").word()
"""
    environ = {**os.environ, SWITCH_VARIABLE: "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environ, timeout=200, check=True
    )
    assert re.fullmatch(r"\(last-0-\w+\) famous\n", done.stdout)


def test_threads_show_whole_lines_at_once(threads: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    out = printed_from_now(monkeypatch)
    _gates["wait"] = threading.Event()
    jobs = threads.launch_many([call(say_in_turn, "a"), call(say_in_turn, "b")])
    wait_until(lambda: out.getvalue().count("begun") == 2)  # while they run
    _gates["wait"].set()
    threads.wait([*jobs, shell := threads.launch(command("echo a process"))])
    assert sorted(out.getvalue().splitlines()) == sorted(
        [f"({job}) {line}" for job in jobs for line in ("begun", "rest", "last")] + [f"({shell}) a process"]
    )


_gates: dict[str, threading.Event] = {}


def say_in_turn(name: str) -> None:
    say("be", "gun\nre", end="")
    _gates["wait"].wait(200)
    say("st\nlast", end="")


def test_nothing_is_read_when_it_is_off(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []
    get = Store.get

    async def noting(store: Store, key: str, one_of_many: bool = False) -> Any:
        asked.append(key)
        return await get(store, key, one_of_many)

    monkeypatch.setattr(Store, "get", noting)
    with LocalCluster() as cluster:
        cluster.wait(job := cluster.launch(command("echo hello")))
    assert not [key for key in asked if key.startswith(f"work/{job}/")]
    assert "hello" not in capsys.readouterr().out
