"""How objects are displayed: in notebooks as tables, elsewhere in one line; and ids that stay text."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator

import pytest

from fray.client import StorageClient
from fray.cluster import LocalCluster
from fray.display import MAX_ROWS, ShownTable
from fray.job_spec import to_spec
from fray.pool import WorkerPool
from fray.queue import FileQueue
from fray.types import Entrypoint, EnvironmentConfig, JobId, JobInfo, JobRequest, JobStatus
from fray_layouts.codec import decode, encode
from fray_layouts.queue_records import TaskOutcome, decode_outcomes, encode_outcomes
from fray_layouts.records import JobRecord
from fray_layouts.spec import EntrypointSpec, JobSpec


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(use_processes=False) as cluster:
        yield cluster


class Echo:
    def echo(self, said: str) -> str:
        return said

    def fail(self) -> None:
        raise ValueError("no such thing")


def test_an_id_is_text_wherever_it_goes() -> None:
    job = JobId("train-1", lambda _: JobInfo(JobId("train-1"), "train", JobStatus.RUNNING))
    assert job == "train-1"
    by_text: dict[str, int] = {job: 1}
    assert by_text["train-1"] == 1
    assert repr(job) == "'train-1'"
    assert json.dumps([job, {job: job}]) == '["train-1", {"train-1": "train-1"}]'
    for copied in (pickle.loads(pickle.dumps(job)), copy.deepcopy(job)):
        assert isinstance(copied, JobId)
        assert copied == job
        assert copied._repr_html_() is None
    spec = JobSpec(name="a", entrypoint=EntrypointSpec(command=["true"]), parent=job)
    named = Entrypoint.from_binary(job, [job])
    variables = EnvironmentConfig(env_vars={"OTHER": job}, secret_env_vars={"MINE": job}, extras=[job])
    asked = to_spec(JobRequest(job, named, environment=variables, namespace=job, parent=job, pool=job, outputs=[job]))
    assert b"JobId" not in pickle.dumps(asked)
    assert asked.entrypoint.command == [job, job]
    assert asked.environment.env_vars == {"OTHER": job}
    record = JobRecord(id=job, spec=spec, status="pending")
    assert decode(encode(record), JobRecord).record.spec.parent == "train-1"
    assert decode(encode(record, {"new": 1}), JobRecord).record.id == "train-1"
    assert decode_outcomes(encode_outcomes([TaskOutcome(job, "value")])) == [TaskOutcome("train-1", "value")]
    queue: FileQueue[object] = FileQueue("memory://ids", encoding="json")
    queue.push({"job": job})
    assert queue.peek() == {"job": "train-1"}


def test_jobs_show_how_they_are(cluster: LocalCluster) -> None:
    job = cluster.launch(JobRequest("fail", Echo().fail))
    child = cluster.launch(JobRequest("child", Entrypoint.from_callable(len, args=("ab",)), parent=None, id=job))
    assert cluster.result(child) == 2
    info = cluster.wait(job)
    assert repr(info).startswith(f"JobInfo('{job}', FAILED, host='")
    assert "no such thing" in repr(info)
    assert "Traceback" not in repr(info)
    for shown in (job, info, StorageClient(cluster).submit(JobRequest("fail", Echo().fail, id="again"))):
        assert f"job {shown if shown is job else 'fail-'}" in str(shown._repr_html_())
    assert "no such thing" in str(job._repr_html_())


def test_a_notebook_shows_durations_as_the_command_line_does() -> None:
    info = JobInfo(JobId("train-1"), "train", JobStatus.SUCCEEDED, submit_time=0.0, start_time=4.2, end_time=7384.2)
    assert all(f">{text}</td>" in str(info._repr_html_()) for text in ("4.2s", "2h3m"))


def test_actors_show_their_jobs(cluster: LocalCluster) -> None:
    group = StorageClient(cluster).create_actor_group(Echo, name="echo", count=2)
    first = group.wait_ready()[0]
    assert str(group._repr_html_()).count('<td style="text-align: left">running</td>') == 2
    assert "actor echo (echo-0-" in str(first._repr_html_())
    said, failed = first.echo.remote("hello"), first.fail.remote()
    assert said.result() == "hello"
    assert repr(said) == "<ActorFuture returned 'hello'>"
    with pytest.raises(ValueError, match="no such thing"):
        failed.result()
    assert repr(failed) == "<ActorFuture raised ValueError('no such thing')>"
    group.shutdown()


def test_pools_and_queues_show_their_waiting_items(cluster: LocalCluster) -> None:
    with WorkerPool(cluster, 1) as pool:
        future = pool.submit(len, "ab")
        assert future.result() == 2
        assert repr(future) == "<DirectFuture returned 2>"
        assert "unfinished tasks" in str(pool._repr_html_())
    assert "shut down" in repr(pool)
    queue: FileQueue[int] = FileQueue("memory://shown")
    queue.push_many([1, 2])
    assert queue.pop() is not None
    html = str(queue._repr_html_())
    assert html.startswith("<table><caption>FileQueue(&#x27;memory://shown&#x27;)</caption>")
    assert 'available</td><td style="text-align: left">1</td>' in html


def test_text_of_others_is_harmless_and_a_storage_that_is_away_breaks_no_cell() -> None:
    html = ShownTable("a\x1b[2J<script>", [("b", "x" * 1000)], hidden=MAX_ROWS).html()
    assert "\x1b" not in html
    assert "<script>" not in html
    assert len(html) < 800

    def away(_: JobId) -> JobInfo:
        raise ConnectionError

    assert JobId("train-1", away)._repr_html_() is None
