"""The API against a private cluster: real processes, real files."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from fray.cluster import (
    Entrypoint,
    EnvironmentConfig,
    GpuConfig,
    JobRequest,
    JobStatus,
    LocalCluster,
    ResourceConfig,
    StorageCluster,
    current_cluster as current,
)
from fray.errors import InvalidInput, JobFailed, NoResult
from fray_coordinator.errors import JobNotFound
from fray_coordinator.jobs import waiting
from tests.support.processes import is_alive
from tests.support.waiting import wait_until

CLUSTER = "processes"


def call(fn: Callable[..., Any], *args: Any, name: str = "job", **fields: Any) -> JobRequest:
    return JobRequest(name, Entrypoint.from_callable(fn, args), **fields)


def command(*words: str, name: str = "job", **fields: Any) -> JobRequest:
    return JobRequest(name, Entrypoint.from_binary(words[0], words[1:]), **fields)


@pytest.mark.parametrize("workers", [0, -1])
def test_a_cluster_without_cores_is_refused(workers: int) -> None:
    with pytest.raises(InvalidInput, match=r"max_workers: .* give at least 1, or no job would ever run"):
        LocalCluster(workers)


def test_a_wait_takes_a_duration_as_people_write_it(cluster: LocalCluster) -> None:
    job = cluster.launch(call(lambda: 5, timeout="10m"))
    assert cluster.wait(job, timeout="10m").status is JobStatus.SUCCEEDED
    with pytest.raises(InvalidInput, match=r"timeout: 'soon' .* give seconds, or a duration such as 10m or 1h30m"):
        cluster.wait(job, timeout="soon")


@pytest.mark.parametrize("value", [None, [{"a": [1, 2.5, "é"]}, ((1, 2), Fraction(1, 3), b"\0\xff")], "x" * 200_000])
def test_a_result_comes_back_as_it_was_returned(cluster: LocalCluster, value: object) -> None:
    assert cluster.result(cluster.launch(call(lambda: value)), timeout=200) == value


@pytest.mark.parametrize("processes", [True, False])
def test_files_that_a_job_leaves_can_be_fetched(
    processes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with LocalCluster(use_processes=processes) as cluster:
        job = cluster.launch(call(lambda: Path("model").write_text("weights"), outputs=["model"]))
        cluster.wait(job, raise_on_failure=True)
        assert cluster.pull(job, tmp_path / "got") == [tmp_path / "got" / "model"]
        assert (tmp_path / "got" / "model").read_text() == "weights"


def test_a_job_that_leaves_more_than_is_kept_fails_and_says_so(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fray_agents.tasks.output_files.MAX_OUTPUT_FILES", 0)
    info = cluster.wait(cluster.launch(command("true", outputs=["pyproject.toml"])))
    assert info.exit is not None
    assert info.exit.kind == "too-large"
    assert "name fewer, or pack them into one" in info.exit.message


def test_a_command_leaves_a_result_in_a_file_or_none(cluster: LocalCluster) -> None:
    with_result = cluster.launch(command("sh", "-c", 'echo "[1, 2]" > "$FRAY_RESULT"'))
    without = cluster.launch(command("true"))
    assert cluster.result(with_result) == [1, 2]
    with pytest.raises(NoResult, match=without):
        cluster.result(without)


def divide(a: int, b: int) -> float:
    return a / b


def test_a_failure_raises_with_the_remote_traceback_and_the_original_exception(cluster: LocalCluster) -> None:
    job = cluster.launch(call(divide, 1, 0))
    info = cluster.wait(job)
    assert (info.status, info.error_message) == (JobStatus.FAILED, "exception: ZeroDivisionError: division by zero")
    with pytest.raises(JobFailed, match=r"in divide\s+return a / b") as caught:
        cluster.wait(job, raise_on_failure=True)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(JobFailed):
        cluster.result(job)


def raise_what_only_the_job_has(module: str) -> None:
    Path(f"{module}.py").write_text("class Odd(Exception): pass")
    sys.path.insert(0, os.getcwd())
    raise __import__(module).Odd("only there")


def test_an_exception_that_cannot_be_loaded_here_still_tells_its_traceback(cluster: LocalCluster) -> None:
    def fail() -> None:
        os.chdir(os.environ["FRAY_TASK_DIR"])
        raise_what_only_the_job_has("only_in_the_job")

    with pytest.raises(JobFailed, match="only there") as caught:
        cluster.result(cluster.launch(call(fail)))
    assert caught.value.__cause__ is None


@pytest.mark.slow
def test_waiting_for_many_keeps_their_order_and_counts_each_id(cluster: LocalCluster) -> None:
    ids = cluster.launch_many([call(lambda n=n: n, name=f"n{n}") for n in range(6)])
    infos = cluster.wait([*reversed(ids), ids[0]])
    assert [info.job_id for info in infos] == [*reversed(ids), ids[0]]
    assert {info.status for info in infos} == {JobStatus.SUCCEEDED}
    assert cluster.wait([]) == []


def test_the_first_failure_ends_a_wait_that_raises(cluster: LocalCluster) -> None:
    slow, bad = cluster.launch_many([command("sleep", "1000"), command("false")])
    with pytest.raises(JobFailed, match=bad):
        cluster.wait([slow, bad], raise_on_failure=True)
    assert cluster.poll(slow).status is not JobStatus.SUCCEEDED
    cluster.terminate(slow)
    assert cluster.wait(slow).status is JobStatus.STOPPED
    with pytest.raises(JobFailed, match="stopped"):
        cluster.wait(slow, raise_on_failure=True)


def test_a_timeout_leaves_the_job_running(cluster: LocalCluster) -> None:
    job = cluster.launch(command("sleep", "1000"))
    with pytest.raises(TimeoutError, match=job):
        cluster.wait(job, timeout=0.05)
    cluster.terminate(job)
    cluster.wait(job)


def test_monitor_prints_everything_and_returns_at_the_end(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    info = cluster.monitor(cluster.launch(command("sh", "-c", "echo one; echo two; printf three; exit 3")))
    assert capsys.readouterr().out == "one\ntwo\nthree"
    assert info.exit is not None
    assert (info.status, info.exit.code) == (JobStatus.FAILED, 3)
    assert [line.data for line in cluster.logs(info.job_id)] == [b"one", b"two", b"three"]


def test_terminating_a_job_ends_its_process_tree_and_its_children(cluster: LocalCluster, tmp_path: Path) -> None:
    def parent() -> None:
        mine = current()
        child = mine.launch(command("sh", "-c", f"echo $$ > {tmp_path}/child; sleep 1000"))
        Path(tmp_path, "name").write_text(child)
        grandchild = subprocess.Popen(["sleep", "1000"])
        Path(tmp_path, "tree").write_text(str(grandchild.pid))
        mine.wait(child)

    job = cluster.launch(call(parent))
    wait_until(lambda: (tmp_path / "tree").exists() and (tmp_path / "child").exists())
    wait_until(lambda: (tmp_path / "child").read_text() != "")
    pids = [int((tmp_path / name).read_text()) for name in ("tree", "child")]
    assert all(is_alive(pid) for pid in pids)
    cluster.terminate(job)
    assert cluster.wait(job).status is JobStatus.STOPPED
    child = cluster.wait(next(i.job_id for i in cluster.list_jobs() if i.job_id == (tmp_path / "name").read_text()))
    assert (child.status, child.parent) == (JobStatus.STOPPED, job)
    wait_until(lambda: not any(is_alive(pid) for pid in pids))


def test_children_inherit_the_namespace_and_see_their_cluster(cluster: LocalCluster) -> None:
    def child() -> dict[str, str]:
        return {name: os.environ[name] for name in os.environ if name.startswith("FRAY_")}

    def parent() -> tuple[str, str, dict[str, str]]:
        mine = current()
        job = mine.launch(call(child, name="kid"))
        return mine.namespace, job, mine.result(job)

    job = cluster.launch(call(parent, name="family"))
    namespace, kid, environ = cluster.result(job)
    assert namespace == environ["FRAY_NAMESPACE"] == cluster.poll(kid).namespace == cluster.namespace
    assert environ["FRAY_JOB_ID"] == kid
    assert environ["FRAY_JOB_NAME"] == "kid"
    assert environ["FRAY_CLUSTER_ADDRESS"] == cluster.root
    assert cluster.poll(kid).parent == job


def test_the_same_id_launches_once(cluster: LocalCluster) -> None:
    request = call(lambda: 1, name="once", id="only")
    first, again = cluster.launch(request), cluster.launch(request)
    assert first == again
    assert first.startswith("once-only-")


def test_a_module_that_this_process_can_import_is_there_in_jobs(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_module.py").write_text("def answer(): return 42")
    monkeypatch.syspath_prepend(tmp_path)
    answer = __import__("their_module").answer

    def through_a_child() -> int:
        mine = current()
        result: int = mine.result(mine.launch(call(answer)))
        return result

    assert cluster.result(cluster.launch(call(through_a_child))) == 42


def test_environment_variables_reach_the_job(cluster: LocalCluster) -> None:
    environment = EnvironmentConfig.create(env_vars={"PLAIN": "a"}, secret_env_vars={"TOKEN": "b"})
    job = cluster.launch(call(lambda: os.environ["PLAIN"] + os.environ["TOKEN"], environment=environment))
    assert cluster.result(job) == "ab"


@pytest.mark.slow
async def test_it_works_in_a_notebook_and_from_many_threads(cluster: LocalCluster) -> None:
    assert cluster.result(cluster.launch(call(lambda: "cell"))) == "cell"
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda n: cluster.result(cluster.launch(call(lambda: n))), range(8))) == list(range(8))


def test_it_can_be_pickled_and_used_after_a_fork(cluster: LocalCluster) -> None:
    copy = pickle.loads(pickle.dumps(cluster))
    assert copy.wait(copy.launch(command("true"))).status is JobStatus.SUCCEEDED
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(launch_here, (cluster.root,)) == pool.apply(use_inherited, (cluster.root,)) == "forked"
    assert cluster.wait(cluster.launch(command("true"))).status is JobStatus.SUCCEEDED
    assert len(list((cluster._directory / "root" / "agents").iterdir())) == 1


def launch_here(root: str) -> object:
    from fray.cluster import StorageCluster

    with StorageCluster(root) as opened:
        return opened.result(opened.launch(call(lambda: "forked")))


def use_inherited(root: str) -> object:
    import gc

    [inherited] = [one for one in gc.get_objects() if type(one) is LocalCluster and one.root == root]
    return inherited.result(inherited.launch(call(lambda: "forked")))


def test_bad_jobs_end_with_a_reason_and_the_cluster_goes_on(cluster: LocalCluster) -> None:
    jobs = cluster.launch_many(
        [
            command("there-is-no-such-program"),
            call(lambda: __import__("threading").Lock()),
            JobRequest("job", Entrypoint.from_callable(LoadsNowhere())),
        ]
    )
    reasons = [info.error_message or "" for info in cluster.wait(jobs)]
    assert "there-is-no-such-program" in reasons[0]
    assert "cannot be pickled" in reasons[1]
    assert "cannot be loaded" in reasons[2]
    assert cluster.wait(cluster.launch(command("true"))).status is JobStatus.SUCCEEDED


class LoadsNowhere:
    def __call__(self) -> None:
        raise AssertionError("never")

    def __reduce__(self) -> Any:
        return __import__, ("a_module_of_nobody",)


def test_unknown_jobs_are_not_found(cluster: LocalCluster) -> None:
    for ask in (cluster.poll, cluster.wait, cluster.monitor, cluster.terminate, cluster.result):
        with pytest.raises(JobNotFound, match="job-nobody"):
            ask("job-nobody")


def test_it_says_that_no_agent_can_run_a_job_instead_of_staying_silent(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "WARN_AFTER", 0.0)
    job = StorageCluster(cluster.root).launch(
        call(print, pool="elsewhere", environment=EnvironmentConfig(workspace=""))
    )
    with caplog.at_level(logging.WARNING, "fray"), ThreadPoolExecutor(1) as beside:
        ended = beside.submit(cluster.wait, job)
        wait_until(lambda: "elsewhere" in caplog.text)
        cluster.terminate(job)
        ended.result()


ELSEWHERE = [
    ResourceConfig.with_tpu(["v5p-16", "v4-16"], ram="128g"),
    ResourceConfig(cpu=64, device=GpuConfig("h100", 8), regions=["eu"], zone="eu-1", image="debian", count=2),
]


@pytest.mark.parametrize("resources", ELSEWHERE, ids=["tpu", "gpu"])
def test_what_this_machine_lacks_is_refused_to_jobs_of_a_job_too(
    cluster: LocalCluster, resources: ResourceConfig
) -> None:
    request = call(os.getpid, resources=replace(resources, image=None))

    def driver() -> None:
        current().launch(request)

    for launch in (lambda: cluster.launch(request), lambda: cluster.result(cluster.launch(call(driver)), timeout=200)):
        with pytest.raises(Exception, match=r"this machine cannot run it .* wanted, none here.*simulate=True"):
            launch()


@pytest.mark.slow
@pytest.mark.parametrize("resources", ELSEWHERE, ids=["tpu", "gpu"])
def test_a_cluster_that_simulates_runs_jobs_without_what_this_machine_lacks(resources: ResourceConfig) -> None:
    environment = EnvironmentConfig.create(env_vars={"PLAIN": "a"}, extras=["tpu"], pip_packages=["x"], workspace=".")
    request = call(lambda: os.environ["PLAIN"], resources=resources, environment=environment)

    def driver() -> object:
        mine = current()
        return mine.result(mine.launch(request))

    with LocalCluster(simulate=True) as cluster:
        assert cluster.result(cluster.launch(request), timeout=200) == "a"
        assert cluster.result(cluster.launch(call(driver)), timeout=200) == "a"


@pytest.mark.parametrize("resources", [ResourceConfig(ram="lots"), ResourceConfig(cpu=-1)])
def test_resources_that_are_invalid_anywhere_are_refused_here_too(
    cluster: LocalCluster, resources: ResourceConfig
) -> None:
    with pytest.raises(InvalidInput, match="resources"):
        cluster.launch(call(print, resources=resources))


def test_jobs_that_a_wait_has_seen_end_are_known_no_longer(cluster: LocalCluster) -> None:
    """So that a program that launches jobs for weeks remembers those that run."""
    job = cluster.launch(command("true"))
    assert job in cluster._launched_jobs._ids
    cluster.wait(job)
    assert job not in cluster._launched_jobs._ids


def test_wait_has_a_second_name_for_its_first_parameter(cluster: LocalCluster) -> None:
    job = cluster.launch(command("true"))
    assert cluster.wait(job_ids=job).status is JobStatus.SUCCEEDED
    assert [info.job_id for info in cluster.wait(job_ids=[job, job])] == [job, job]
    with pytest.raises(InvalidInput, match="job_id"):
        cluster.wait()  # type: ignore[call-overload]


def test_the_first_version_of_wait_calls_it_fail_on_error(cluster: LocalCluster) -> None:
    with pytest.raises(JobFailed):
        cluster.wait(cluster.launch(command("false")), fail_on_error=True)


_CLOSED = """
import sys, time
from pathlib import Path
from fray.cluster import Entrypoint, JobRequest, LocalCluster
opened = LocalCluster()
told = Path(sys.argv[1])
opened.launch(JobRequest("job", Entrypoint.from_binary("sh", ["-c", f"echo $$ > {told}; exec sleep 1000"])))
opened.result(opened.launch(JobRequest("call", Entrypoint.from_callable(len, ["abc"]))))
while not (told.exists() and told.read_text()):
    time.sleep(0.01)
opened.close()
opened.close()
left = [pid for one in Path("/proc/self/task").glob("*/children") for pid in one.read_text().split()]
print(left, opened._directory.exists())
"""


@pytest.mark.slow
def test_closing_ends_jobs_and_removes_the_directory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _CLOSED, str(tmp_path / "pid")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[] False\n"
    assert not is_alive(int((tmp_path / "pid").read_text()))


SCRIPT = """
import sys, time
from pathlib import Path
from fray import Entrypoint, JobRequest, current_cluster

cluster = current_cluster()
assert current_cluster() is cluster
cluster.launch(JobRequest("job", Entrypoint.from_binary("sh", ["-c", f"echo $$ > {sys.argv[1]}/pid; exec sleep 1000"])))
told = Path(sys.argv[1], "pid")
while not (told.exists() and told.read_text()):
    time.sleep(0.01)
print(cluster.root)
"""


def test_the_end_of_the_process_ends_its_jobs_and_leaves_nothing(tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FRAY_")}
    environ["FRAY_CLUSTER_SPEC"] = "local"
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert not Path(done.stdout.strip().removeprefix("file://")).parent.exists()
    wait_until(lambda: not is_alive(int((tmp_path / "pid").read_text())))
