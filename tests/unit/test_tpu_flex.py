"""How many slices a flexible run takes, and when it changes the number."""

from __future__ import annotations

from typing import Any

import pytest

from fray.errors import InvalidInput, JobFailed
from fray.tpu import pods, run_on_pod, run_on_pod_multislice_resumable
from fray.types import JobId, JobInfo, JobRequest, JobStatus
from fray_layouts.records import AgentRecord, Holding, Resources, SliceMember

TYPE = "v5litepod-16"


def a_worker(slice_id: str, index: int, holds: str = "", **fields: Any) -> AgentRecord:
    room = Resources(cpu=8000, memory=2**34, disk=10**12, device=f"tpu-{TYPE}", device_count=4)
    base: dict[str, Any] = {
        "id": f"{slice_id}-{index}",
        "host": "h",
        "pool": "default",
        "capacity": room,
        "free": room,
        "supports_placements": True,
        "slice": SliceMember(id=slice_id, type=TYPE, index=index, hosts=4),
        "holdings": {holds: Holding(attempt=1)} if holds else {},
    }
    return AgentRecord(**(base | fields))


def a_slice(name: str, holds: str = "") -> list[AgentRecord]:
    return [a_worker(name, index, holds) for index in range(4)]


@pytest.mark.parametrize(("available", "best"), [(0, 2), (1, 2), (2, 2), (3, 2), (5, 4), (9, 8)])
def test_the_largest_acceptable_number_is_taken(available: int, best: int) -> None:
    assert pods.best_count([2, 4, 8], available) == best


def test_slices_count_if_they_are_whole_and_free_or_the_jobs_own() -> None:
    assert pods.available_slices([*a_slice("a"), *a_slice("b", "mine")], TYPE, "mine") == 2
    assert pods.available_slices([*a_slice("a", "other"), *a_slice("b")], TYPE, "mine") == 1
    assert pods.available_slices(a_slice("a")[:3], TYPE, "") == 0
    assert pods.available_slices([*a_slice("a")[:3], a_worker("a", 3, drain=True)], TYPE, "") == 0
    assert pods.available_slices(a_slice("a"), "v6e-16", "") == 0
    assert pods.available_slices([a_worker("a", n, pool="other") for n in range(4)], TYPE, "") == 0


def test_in_a_reservation_its_own_slices_count() -> None:
    held = [a_worker("a", n, "r-1") for n in range(4)]
    agents = [*held, *a_slice("b"), *a_slice("c", "r-2")]
    assert pods.available_slices(agents, TYPE, "mine", "~r-1") == 1
    assert pods.available_slices(agents, TYPE, "mine") == 1


def test_a_change_comes_after_some_checks_in_a_row() -> None:
    choice = pods.FlexChoice([1, 2, 4], current=2)
    several = pods.CHECKS_BEFORE_CHANGE - 1
    assert [choice.update(4, runs=True) for _ in range(several)] == [2] * several
    assert choice.update(2, runs=True) == 2  # it was gone again
    assert [choice.update(4, runs=True) for _ in range(several + 1)] == [2] * several + [4]


def test_a_running_job_is_not_shrunk_and_a_waiting_one_is() -> None:
    checks = pods.CHECKS_BEFORE_CHANGE
    assert {pods.FlexChoice([1, 2], current=2).update(1, runs=True) for _ in range(checks)} == {2}
    choice = pods.FlexChoice([1, 2], current=2)
    assert [choice.update(1, runs=False) for _ in range(checks)][-1] == 1


class ScriptedCluster:
    """A cluster on which each job goes as it is told.

    Args:
        slices: how many there are, at each look.
        ends: how each job ends once it is not stopped: its status, preemptions and failures.
    """

    def __init__(self, slices: list[int], ends: list[tuple[JobStatus, int, int]]) -> None:
        self.slices = slices
        self.ends = ends
        self.launched: list[JobRequest] = []
        self.stopped: list[int] = []

    def launch(self, request: JobRequest) -> JobId:
        self.launched.append(request)
        return JobId(f"job-{len(self.launched)}")

    def available(self, *asked: object) -> int:
        return self.slices.pop(0) if len(self.slices) > 1 else self.slices[0]

    def poll(self, job: str) -> JobInfo:
        return JobInfo(JobId(job), "job", JobStatus.RUNNING)

    def wait(self, job: str, raise_on_failure: bool = False, timeout: float | None = None) -> JobInfo:
        number = int(job.removeprefix("job-")) - 1
        status, preemptions, failures = self.ends[number]
        if timeout is not None and len(self.slices) > 1:
            raise TimeoutError
        info = JobInfo(JobId(job), "job", status, preemptions=preemptions, failures=failures)
        if raise_on_failure and status is not JobStatus.SUCCEEDED:
            raise JobFailed.of(info)
        return info

    def terminate(self, job: str) -> None:
        self.stopped.append(int(job.removeprefix("job-")))

    def results(self, job: str) -> list[str]:
        return [f"result of {job}"]


def use(cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make it the current cluster, which reports the number of slices itself."""
    monkeypatch.setattr(pods, "current_cluster", lambda: cluster)
    monkeypatch.setattr(pods, "_available", cluster.available)


def replicas_of(cluster: ScriptedCluster) -> list[int]:
    return [request.resources.replicas for request in cluster.launched]


def test_a_run_is_restarted_with_more_slices_and_keeps_its_remaining_retries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = ScriptedCluster(
        [1, *[2] * (pods.CHECKS_BEFORE_CHANGE + 1)], [(JobStatus.STOPPED, 3, 1), (JobStatus.SUCCEEDED, 0, 0)]
    )
    use(cluster, monkeypatch)
    results = run_on_pod_multislice_resumable(print, TYPE, [1, 2], max_retries_preemption=10, max_retries_failure=1)
    assert results == ["result of job-2"]
    assert replicas_of(cluster) == [4, 8]
    budgets = [(request.max_retries_preemption, request.max_retries_failure) for request in cluster.launched]
    assert budgets == [(10, 1), (7, 0)]
    assert 1 in cluster.stopped


def test_a_run_that_fails_is_told_and_not_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ScriptedCluster([2], [(JobStatus.FAILED, 0, 0)])
    use(cluster, monkeypatch)
    with pytest.raises(JobFailed):
        run_on_pod_multislice_resumable(print, TYPE, [1, 2])
    assert (replicas_of(cluster), cluster.stopped) == ([8], [1])


@pytest.mark.parametrize("num_slices", ["2", None, 1.5, ["2"], {"a": 1}])
def test_numbers_of_slices_that_are_none_are_refused(num_slices: Any) -> None:
    with pytest.raises(InvalidInput, match=r"num_slices: .* give a number, or a list of acceptable numbers"):
        run_on_pod_multislice_resumable(print, TYPE, num_slices)


@pytest.mark.parametrize(
    ("tpu_type", "count", "message"),
    [
        (TYPE, 0, "num_slices: 0 .*at least 1 slice"),
        (TYPE, -1, "num_slices: -1 .*at least 1 slice"),
        (TYPE, "2", "num_slices: '2' .*give a number"),
        ("v5litepod-17", 1, "tpu_type: 'v5litepod-17' .*v5litepod-16"),
    ],
)
def test_slices_that_cannot_be_are_refused(tpu_type: str, count: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        run_on_pod(print, tpu_type, count)
    with pytest.raises(InvalidInput, match=message):
        run_on_pod_multislice_resumable(print, tpu_type, [count, 2])


def test_no_number_of_slices_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"num_slices: .*name at least one"):
        run_on_pod_multislice_resumable(print, TYPE, [])
