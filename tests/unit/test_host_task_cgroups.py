"""Where an agent may make cgroups for its tasks, on hosts that are folders here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fray_agents.host.task_cgroups import claim_prefix

OWN = "sys/fs/cgroup/pod/agent"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A host whose kernel has put this process into /pod/agent, with a shell, and offers two controllers."""
    put(tmp_path, "proc/self/cgroup", "0::/pod/agent\n")
    put(tmp_path, f"{OWN}/cgroup.procs", f"7\n{os.getpid()}\n")
    put(tmp_path, f"{OWN}/cgroup.events", "populated 1\n")
    put(tmp_path, f"{OWN}/cgroup.controllers", "cpuset cpu memory\n")
    put(tmp_path, f"{OWN}/cgroup.subtree_control", "")
    yield tmp_path
    for path in tmp_path.rglob("*"):
        path.chmod(0o755)


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_processes_of_the_cgroup_move_to_a_leaf_and_controllers_are_enabled(root: Path) -> None:
    prefix = claim_prefix(root)
    assert Path(prefix).parent == root / OWN
    assert (root / OWN / "fray-agent/cgroup.procs").read_text() == str(os.getpid())  # the value that was written last
    assert (root / OWN / "cgroup.subtree_control").read_text() == "+memory"


def test_a_log_line_says_what_is_limited_if_the_kernel_limits_nothing(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(root, f"{OWN}/cgroup.controllers", "cpuset\n")
    with caplog.at_level("INFO", "fray"):
        claim_prefix(root)
    assert "the kernel limits nothing: Fray limits memory and processes, and nothing limits processors" in caplog.text


def test_a_second_agent_in_the_leaf_shares_the_cgroup(root: Path) -> None:
    put(root, "proc/self/cgroup", "0::/pod/agent/fray-agent\n")
    put(root, f"{OWN}/cgroup.procs", "")
    put(root, f"{OWN}/fray-agent/cgroup.procs", f"{os.getpid()}\n")
    assert Path(claim_prefix(root)).parent == root / OWN


def test_nothing_is_moved_out_of_the_outermost_cgroup_of_a_host(root: Path) -> None:
    (root / OWN / "cgroup.events").unlink()
    assert Path(claim_prefix(root)).parent == root / OWN
    assert not (root / OWN / "fray-agent").exists()


def test_under_systemd_only_the_delegated_cgroup_is_divided(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(root, "run/systemd/system/x", "")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert claim_prefix(root) == ""
    monkeypatch.setattr(os, "getxattr", lambda path, name: b"1" if name == "user.delegate" else b"")
    assert claim_prefix(root) != ""


def test_a_cgroup_that_this_process_is_not_in_is_left_alone(root: Path) -> None:
    """The kernel names the path as the host sees it, and a container sees another group there."""
    put(root, f"{OWN}/cgroup.procs", "7\n")
    assert claim_prefix(root) == ""


def test_without_cgroups_there_are_none(tmp_path: Path) -> None:
    assert claim_prefix(tmp_path) == ""


def test_the_cgroups_of_a_dead_agent_are_removed_and_those_of_a_live_one_stay(root: Path) -> None:
    mine = Path(f"{claim_prefix(root)}1")
    _, _, namespace, agent, started, _ = mine.name.split("-")
    dead = mine.with_name(f"fray-task-{namespace}-{agent}-{started}0-1")
    elsewhere = mine.with_name(f"fray-task-{namespace}0-{agent}-{started}0-1")  # of a container's own processes
    for path in (mine, dead / "nested", elsewhere):
        path.mkdir(parents=True)
    claim_prefix(root)
    assert (mine.exists(), dead.exists(), elsewhere.exists()) == (True, False, True)
