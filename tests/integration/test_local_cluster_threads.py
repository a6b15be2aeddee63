"""A private cluster whose jobs are threads."""

from __future__ import annotations

import os
import pickle
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from fray.cluster import Entrypoint, EnvironmentConfig, JobRequest, JobStatus, LocalCluster, current_cluster as current
from fray.errors import JobFailed
from fray_agents.tasks.thread_task import OutputTee
from fray_runtime.current_task import on_stop, task_environ
from tests.support.waiting import wait_until

CLUSTER = "threads"


def call(fn: Callable[..., Any], *args: Any, **fields: Any) -> JobRequest:
    return JobRequest("job", Entrypoint.from_callable(fn, args), **fields)


def test_jobs_run_in_threads_of_this_process(cluster: LocalCluster) -> None:
    pid, thread = cluster.result(cluster.launch(call(lambda: (os.getpid(), threading.current_thread().name))))
    assert pid == os.getpid()
    assert thread.startswith("job-")


def test_functions_and_arguments_are_the_callers_own_and_results_are_copies(cluster: LocalCluster) -> None:
    given, seen, lock = [1], [0], threading.Lock()

    def extend(items: list[int], guard: threading.Lock) -> list[int]:
        with guard:
            items.append(2)
            seen.append(3)
        return items

    result = cluster.result(cluster.launch(call(extend, given, lock)))
    assert result == given == [1, 2]
    assert result is not given
    assert seen == [0, 3]


def test_a_call_that_is_made_again_is_the_same_call(cluster: LocalCluster) -> None:
    times: list[int] = []

    def third() -> None:
        times.append(len(times))
        assert len(times) == 3

    cluster.wait(cluster.launch(call(third, max_retries_failure=2)), raise_on_failure=True)
    assert times == [0, 1, 2]


def test_calls_are_kept_until_their_jobs_have_ended() -> None:
    go, alive = threading.Event(), weakref.WeakSet[Marker]()

    def requests() -> Iterator[JobRequest]:
        for _ in range(MANY_CALLS):
            alive.add(marker := Marker())
            yield call(id, marker)

    with LocalCluster(use_processes=False) as cluster:
        waits = cluster.launch(call(lambda: go.wait(200)))
        cluster.wait(cluster.launch_many(list(requests())), raise_on_failure=True)
        go.set()
        cluster.wait([waits, cluster.launch(call(int))], raise_on_failure=True)
        wait_until(lambda: not alive)


class Marker:
    """An argument whose lifetime the test observes."""


MANY_CALLS = 99
"""With those that are launched before and after, one more than is kept without asking."""


def test_each_thread_knows_its_own_job(cluster: LocalCluster) -> None:
    def parent() -> tuple[str, str]:
        mine = current()
        job = mine.launch(call(lambda: 1))
        mine.wait(job)
        return mine.root, mine.poll(job).parent or ""

    jobs = cluster.launch_many([call(parent), call(parent)])
    assert [cluster.result(job) for job in jobs] == [(cluster.root, job) for job in jobs]
    assert "FRAY_JOB_ID" not in os.environ


def fail() -> None:
    raise LookupError("gone")


def test_failures_have_the_same_reasons_as_in_processes(cluster: LocalCluster) -> None:
    with pytest.raises(JobFailed, match="in fail") as caught:
        cluster.result(cluster.launch(call(fail)))
    assert isinstance(caught.value.__cause__, LookupError)
    said = cluster.wait(cluster.launch(call(lambda: sys.exit("bad config"))))
    assert said.error_message == "exited: exit code 1: bad config"
    info = cluster.wait(cluster.launch(call(lambda: exit(4))))
    assert info.exit is not None
    assert (info.status, info.exit.kind, info.exit.code) == (JobStatus.FAILED, "exited", 4)


def sleep_in_small_steps() -> None:
    for _ in range(100_000):
        time.sleep(0.001)


def test_a_thread_can_be_stopped_and_timed_out_between_instructions(cluster: LocalCluster) -> None:
    late = cluster.launch(call(sleep_in_small_steps, timeout=0.05))
    end = cluster.wait(late).exit
    assert end is not None
    assert end.kind == "timeout"
    job = cluster.launch(call(sleep_in_small_steps))
    wait_until_running(cluster, job)
    cluster.terminate(job)
    assert cluster.wait(job).status is JobStatus.STOPPED
    for thread in threading.enumerate():
        if thread.name in (late, job):
            thread.join(200)
            assert not thread.is_alive()


def wait_until_running(cluster: LocalCluster, job: Any) -> None:
    wait_until(lambda: cluster.poll(job).status is JobStatus.RUNNING)


def test_a_thread_that_does_not_listen_counts_as_ended_after_its_grace(cluster: LocalCluster) -> None:
    release = threading.Event()
    STUBBORN["event"] = release
    job = cluster.launch(call(wait_for_the_stubborn, grace=0.05))
    wait_until_running(cluster, job)
    cluster.terminate(job)
    assert cluster.wait(job, timeout=200).status is JobStatus.STOPPED
    release.set()


STUBBORN: dict[str, threading.Event] = {}


def wait_for_the_stubborn() -> None:
    STUBBORN["event"].wait(200)


def test_a_command_still_is_a_process(cluster: LocalCluster) -> None:
    job = cluster.launch(JobRequest("job", Entrypoint.from_binary("sh", ["-c", "echo $PPID; echo $FRAY_JOB_ID"])))
    cluster.wait(job)
    assert [line.data.decode() for line in cluster.logs(job)][1] == job


_gates: dict[str, threading.Event] = {"go on": threading.Event(), "running": threading.Event()}
_places: list[Path] = []


def outlast() -> str:
    """Ignore a stop, and return when the test says so."""
    on_stop(lambda: None)
    _places.append(Path(task_environ()["FRAY_TASK_DIR"]))
    _gates["running"].set()
    _gates["go on"].wait(200)
    return "too late"


def test_a_thread_that_returns_after_its_attempt_has_ended_breaks_nothing(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken: list[object] = []
    monkeypatch.setattr(threading, "excepthook", broken.append)
    job = cluster.launch(call(outlast, grace=0.1))
    assert _gates["running"].wait(200)
    thread = next(thread for thread in threading.enumerate() if thread.name == job)
    cluster.terminate(job)
    assert cluster.wait(job).status is JobStatus.STOPPED
    wait_until(lambda: not _places[0].exists())
    _gates["go on"].set()
    thread.join(200)
    assert not thread.is_alive()
    assert broken == []


def say(*words: str) -> None:
    for word in words:
        print(word)
        _gates["said"].set()
        _gates["say more"].wait(200)


def lines(cluster: LocalCluster, job: Any) -> list[str]:
    return [line.data.decode() for line in cluster.logs(job)]


def test_output_of_threads_is_kept_apart_and_shown(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    _gates["said"], _gates["say more"] = threading.Event(), threading.Event()
    jobs = cluster.launch_many([call(say, "one", "two"), call(say, "uno", "dos")])
    _gates["said"].wait(200)
    assert isinstance(pickle.loads(cloudpickle.dumps(sys.stdout)), type(sys.stdout))
    wait_until(lambda: all(lines(cluster, job) for job in jobs))  # followers need not wait for the end
    _gates["say more"].set()
    cluster.wait(jobs)
    assert [lines(cluster, job) for job in jobs] == [["one", "two"], ["uno", "dos"]]
    shown = re.findall("one|two|uno|dos", capsys.readouterr().out)  # `print` writes the ends of lines by themselves
    assert sorted(shown) == ["dos", "one", "two", "uno"]


def test_streams_are_replaced_once_and_for_all(cluster: LocalCluster) -> None:
    """A `print` of another thread has no reference to the stream. If that were freed, the interpreter would crash."""
    cluster.wait(cluster.launch(call(int)))
    streams = sys.stdout, sys.stderr
    assert all(isinstance(stream, OutputTee) for stream in streams)
    cluster.wait(cluster.launch(call(int)))
    assert (sys.stdout, sys.stderr) == streams


def print_much() -> None:
    print("x" * 1_000_000, end="")


def test_a_long_line_without_an_end_is_kept_whole(cluster: LocalCluster) -> None:
    job = cluster.launch(call(print_much))
    cluster.wait(job)
    assert "".join(lines(cluster, job)) == "x" * 1_000_000


def look(name: str, gate: str = "") -> str | None:
    if gate:
        _gates["looking"].set()
        _gates[gate].wait(200)
    return os.environ.get(name)


def test_variables_are_set_for_as_long_as_a_job_wants_them(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HAD", "before")
    monkeypatch.delenv("NEW", raising=False)
    _gates["looking"], _gates["enough"] = threading.Event(), threading.Event()
    wanted = EnvironmentConfig(env_vars={"HAD": "mine"}, secret_env_vars={"NEW": "secret"})
    first = cluster.launch(call(look, "HAD", "enough", environment=wanted))
    _gates["looking"].wait(200)
    assert cluster.result(cluster.launch(call(look, "NEW", environment=wanted))) == "secret"
    other = cluster.launch(call(look, "NEW", environment=EnvironmentConfig(env_vars={"NEW": "other"})))
    with pytest.raises(JobFailed, match=r"NEW has another value.*one after the other, or as processes"):
        cluster.result(other)
    _gates["enough"].set()
    assert cluster.result(first) == "mine"
    assert (os.environ["HAD"], os.environ.get("NEW")) == ("before", None)
    assert (
        cluster.result(cluster.launch(call(look, "NEW", environment=EnvironmentConfig(env_vars={"NEW": "other"}))))
        == "other"
    )


def test_a_secret_that_a_thread_prints_is_masked_in_its_log(capsys: pytest.CaptureFixture[str]) -> None:
    environment = EnvironmentConfig(secret_env_vars={"TOKEN": "s3cret-token"})
    with LocalCluster(use_processes=False) as cluster:
        job = cluster.launch(JobRequest("talks", lambda: print("it is", os.environ["TOKEN"]), environment=environment))
        cluster.wait(job, raise_on_failure=True)
        assert [str(line) for line in cluster.logs(job)] == ["it is ***"]
