"""The reasons for the end of an attempt are distinct, in words that a person understands."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from fray_agents.runner import exit_kinds
from fray_agents.runner.exit_report import exit_fields
from fray_agents.runner.task_cgroup import cgroup_directories, oom_counter, oom_kills
from fray_layouts.states import ExitKind


def exited(code: int) -> int:
    return code << 8


def test_the_runners_kinds_of_exits_are_those_of_the_records() -> None:
    constants = {name: value for name, value in vars(exit_kinds).items() if name.isupper()}
    only_before_the_runner_starts = {ExitKind.ENVIRONMENT_FAILED}
    assert constants == {kind.name: kind for kind in ExitKind if kind not in only_before_the_runner_starts}


@pytest.mark.parametrize(
    ("end", "kind", "message"),
    [
        (exit_fields(exited(0)), "success", ""),
        (exit_fields(exited(3)), "exited", "exit code 3"),
        (exit_fields(signal.SIGSEGV), "signalled", "killed by SIGSEGV"),
        (exit_fields(40), "signalled", "killed by signal 40"),
        (exit_fields(signal.SIGKILL), "signalled", "killed by SIGKILL"),
        (exit_fields(signal.SIGKILL, killed_unasked="by others"), "signalled", "killed by SIGKILL: by others"),
        (exit_fields(exited(137), killed_unasked="by others"), "exited", "exit code 137 (SIGKILL): by others"),
        (exit_fields(exited(139)), "exited", "exit code 139 (SIGSEGV)"),
        (exit_fields(exited(1), stderr=b"bad config\n"), "exited", "exit code 1: bad config"),
        (
            exit_fields(exited(1), stderr=b"no fork\n", refused="it was refused more"),
            "exited",
            "exit code 1: no fork; it was refused more",
        ),
        (
            exit_fields(exited(125), stderr=b"no such image", in_unseen_container=True),
            "start-failed",
            "its container could not be started: no such image",
        ),
        (exit_fields(signal.SIGKILL, out_of_memory="too much"), "out-of-memory", "too much"),
        (exit_fields(exited(137), out_of_memory="too much"), "out-of-memory", "too much"),
        (exit_fields(signal.SIGSEGV, out_of_memory="too much"), "signalled", "killed by SIGSEGV"),
        (exit_fields(exited(1), refused="it was refused more"), "exited", "exit code 1; it was refused more"),
        (
            exit_fields(signal.SIGKILL, cause="stopped", cause_message="stopped", out_of_memory="too much"),
            "stopped",
            "SIGKILL",
        ),
        (exit_fields(exited(0), cause="stopped", cause_message="stopped"), "success", ""),
        (exit_fields(exited(0), cause="preempted", cause_message="preempted"), "success", ""),
        (exit_fields(exited(1), cause="preempted", cause_message="preempted"), "preempted", "preempted (exit code 1)"),
        (exit_fields(exited(0), cause="timeout", cause_message="too long"), "timeout", "too long (exit code 0)"),
        (exit_fields(exited(0), cause="unhealthy", cause_message="sick"), "unhealthy", "sick (exit code 0)"),
        (
            exit_fields(exited(0), result_size=11, result_limit=10),
            "too-large",
            "write it to storage and return its path",
        ),
        (
            exit_fields(exited(1), error={"kind": "exception", "message": "ValueError: no"}),
            "exception",
            "ValueError: no",
        ),
    ],
)
def test_each_end_has_its_kind_and_message(end: dict[str, Any], kind: str, message: str) -> None:
    assert end["kind"] == kind
    assert message in end.get("message", "")


def test_code_and_signal_are_kept_apart() -> None:
    assert exit_fields(exited(3))["code"] == 3
    assert "signal" not in exit_fields(exited(3))
    assert exit_fields(signal.SIGTERM)["signal"] == signal.SIGTERM


def write(root: Path, files: dict[str, Any]) -> str:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def test_the_counter_of_a_unified_cgroup(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pods/one\n",
            "sys/fs/cgroup/pods/one/memory.events": "low 0\noom 3\noom_kill 2\n",
        },
    )
    assert oom_kills(oom_counter("", root)) == 2


def test_the_counter_of_a_controller_of_its_own_seen_from_inside_a_container(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/\n",
            "sys/fs/cgroup/memory/memory.oom_control": "under_oom 0\noom_kill 7\n",
        },
    )
    assert oom_kills(oom_counter("", root)) == 7


def test_without_cgroups_the_host_counts(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/vmstat": "nr_free_pages 5\noom_kill 1\n"})
    assert oom_kills(oom_counter("", root)) == 1


def test_limits_of_every_ancestor_apply(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"})
    names = [Path(place).relative_to(tmp_path / "sys/fs/cgroup").as_posix() for place in cgroup_directories("", root)]
    assert names == ["a/b", "a", "."]
