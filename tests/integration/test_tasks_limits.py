"""The kernel or the runner keeps a task within its limits, and the reason states its usage."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fray import ResourceConfig
from fray.cli.job_view import Members, describe
from fray.cluster.private_spec import private_spec_of
from fray.job_spec import to_spec
from fray.types import Entrypoint, JobRequest
from fray_agents.runner.limits import Limits
from fray_agents.runner.meter import UsageMeter
from fray_agents.runner.process_tree import descendants
from fray_agents.runner.task_cgroup import TaskCgroup
from fray_agents.tasks.environment import limits_of
from fray_agents.tasks.process_task import ProcessTask, start_runner
from fray_layouts.records import JobRecord
from tests.support.processes import is_alive
from tests.support.tasks import FAR, boottime, end_of, lines_of, pids_now, sh, spec
from tests.support.waiting import eventually

MB = 10**6


def put(directory: Path, **files: str) -> None:
    for name, text in files.items():
        (directory / name.replace("_", ".")).write_text(text)


def test_a_task_above_its_memory_is_killed_whole_and_its_end_states_the_usage(tmp_path: Path) -> None:
    script = f"""
import os, subprocess, sys, time
other = subprocess.Popen(["setsid", "sleep", "600"])
open("pids", "w").write(str(other.pid))
held = bytearray(300 * {MB})
time.sleep(600)
"""
    end = end_of(spec(tmp_path, [sys.executable, "-c", script], limits=Limits(memory=100 * MB))).exit
    assert end.kind == "out-of-memory"
    assert "it used more memory than its limit of 100 MB: peak " in end.message
    assert "largest process python" in end.message
    assert not any(map(is_alive, pids_now(tmp_path / "work/pids")))


def test_a_task_within_its_memory_is_left_alone(tmp_path: Path) -> None:
    end = end_of(sh(tmp_path, "sleep 0.6", limits=Limits(memory=100 * MB, disk=MB, processes=10, cpu=500))).exit
    assert (end.kind, end.message) == ("success", "")


SHARING = f"""
import os, time
held = bytearray(b"x") * (50 * {MB})
for _ in range(3):
    if os.fork() == 0: break
print("ready", flush=True)
time.sleep(600)
"""


def test_memory_that_processes_share_counts_once() -> None:
    with subprocess.Popen([sys.executable, "-c", SHARING], stdout=subprocess.PIPE, start_new_session=True) as task:
        assert task.stdout is not None
        for _ in range(4):
            task.stdout.readline()
        meter = UsageMeter("/nowhere", "python", descendants)
        meter.sample()
        assert meter.memory > 200 * MB
        shared_away = meter.memory - sum(meter.own_memory().values())
        os.killpg(task.pid, signal.SIGKILL)
    assert shared_away > 100 * MB


@pytest.mark.parametrize(
    ("script", "limits", "message"),
    [
        (
            "for i in 1 2 3 4 5 6; do sleep 600 & done; wait",
            Limits(processes=5),
            "threads, its limit is 5",
        ),
        ("head -c 5000000 /dev/zero > data; sleep 600", Limits(disk=MB), "more disk than its limit of 1 MB: 5 MB"),
    ],
)
def test_more_processes_or_disk_than_a_task_may_have_end_it(
    tmp_path: Path, script: str, limits: Limits, message: str
) -> None:
    end = end_of(sh(tmp_path, script, limits=limits)).exit
    assert end.kind == "limit-exceeded"
    assert message in end.message


async def in_fake_cgroup(tmp_path: Path, script: str, limits: Limits) -> ProcessTask:
    """A task in a folder that has the files of a cgroup with all controllers, and that it may write itself."""
    prefix = f"{tmp_path}/cgroup-"
    runner = await start_runner(None, prefix)
    cgroup = Path(f"{prefix}{runner.pid}")
    await eventually(lambda: os.path.isdir(cgroup))
    put(cgroup, memory_max="max", memory_swap_max="max", memory_oom_group="0", pids_max="max", cpu_weight="100")
    put(cgroup, cpu_max="max", memory_peak="123000000", memory_events="oom 0\noom_kill 0\n", pids_events="max 0\n")
    what = sh(tmp_path / "task", f"cd {cgroup}; {script}", limits=limits)
    return await ProcessTask.start(what, boottime() + FAR, None, runner, prefix)


async def test_the_kernels_limits_are_written_before_the_task_starts(tmp_path: Path) -> None:
    limits = Limits(memory=100 * MB, processes=20, cpu=1500, hard_cpu=True)
    names = "memory.max memory.swap.max memory.oom.group pids.max cpu.weight cpu.max"
    task = await in_fake_cgroup(tmp_path, f"for name in {names}; do cat $name; echo; done", limits)
    log = b"".join([path.read_bytes() async for _, path in task.chunks()])
    assert lines_of(log) == [b"100000000", b"0", b"1", b"20", b"150", b"150000 100000"]


async def test_the_kernels_own_kill_says_limit_peak_and_largest_process(tmp_path: Path) -> None:
    script = "printf 'oom 1\\noom_kill 1\\n' > memory.events; kill -KILL $$"
    task = await in_fake_cgroup(tmp_path, script, Limits(memory=100 * MB))
    end = (await task.exit).exit
    assert end.kind == "out-of-memory"
    assert "limit of 100 MB: peak 123 MB, largest process sh with " in end.message


async def test_a_kill_for_the_hosts_lack_of_memory_does_not_blame_the_limit(tmp_path: Path) -> None:
    task = await in_fake_cgroup(tmp_path, "echo oom_kill 1 > memory.events; kill -KILL $$", Limits(memory=10**15))
    end = (await task.exit).exit
    assert end.kind == "out-of-memory"
    assert "lack of memory on its host" in end.message


async def test_a_kill_that_nobody_counted_names_memory_where_the_peak_was_high(tmp_path: Path) -> None:
    task = await in_fake_cgroup(tmp_path, "kill -KILL $$", Limits(memory=150 * MB))
    end = (await task.exit).exit
    reason = "probably for lack of memory: peak 123 MB of the 150 MB that it asked for; ask for more memory"
    assert (end.kind, end.message) == ("signalled", f"killed by SIGKILL: {reason}")


async def test_a_failure_after_a_refused_fork_says_so(tmp_path: Path) -> None:
    task = await in_fake_cgroup(tmp_path, "echo max 3 > pids.events; exit 1", Limits(processes=20))
    end = (await task.exit).exit
    assert end.message == "exit code 1; the kernel refused it more than its limit of 20 processes and threads"


@pytest.mark.parametrize(("cpu", "weight"), [(0, "50"), (100, "50"), (1000, "100"), (2500, "250"), (10**8, "10000")])
def test_cores_are_shared_in_proportion_to_the_requests(tmp_path: Path, cpu: int, weight: str) -> None:
    put(tmp_path, cpu_weight="100", cpu_max="max")
    TaskCgroup(str(tmp_path)).share_cpu(cpu, False)
    assert (tmp_path / "cpu.weight").read_text() == weight
    assert (tmp_path / "cpu.max").read_text() == "max"


def request(**resources: object) -> JobRequest:
    return JobRequest("job", Entrypoint.from_binary("true"), resources=ResourceConfig(**resources))  # type: ignore[arg-type]


def test_only_requested_resources_are_limited() -> None:
    unasked = limits_of(to_spec(request()).resources)
    assert (unasked.memory, unasked.disk, unasked.cpu, unasked.hard_cpu) == (0, 0, 1000, False)
    asked = limits_of(to_spec(request(cpu=2, ram="4g", disk="10g", hard_cpu=True)).resources)
    assert (asked.memory, asked.disk, asked.cpu, asked.hard_cpu) == (4000 * MB, 10_000 * MB, 2000, True)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({}, "1 core, 128 MB of memory (reserved, not limited), 1 GB of disk (reserved, not limited)"),
        ({"ram": "128m", "disk": "2g"}, "1 core, 128 MB of memory (reserved, not limited), 2 GB of disk"),
        ({"cpu": 2, "ram": "1GiB", "disk": 0}, "2 cores, 1.1 GB of memory"),
    ],
)
def test_status_reports_resources_that_are_reserved_and_not_limited(asked: dict[str, object], told: str) -> None:
    job = JobRecord(id="j-1", spec=to_spec(request(**asked)), status="pending")
    assert dict(describe(job, None, Members(), [], 0.0))["resources"] == told


def test_a_private_cluster_limits_nothing() -> None:
    limits = limits_of(private_spec_of(request(ram="1k", disk="1k"), "real").resources)
    assert (limits.memory, limits.disk) == (0, 0)
