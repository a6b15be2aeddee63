"""Finds where this process may create cgroups (v2) for its tasks, and enables the controllers that limit them.

Fray may divide a cgroup if systemd delegated it (`Delegate=yes`), if it is a container's own, or if no systemd runs.
The kernel enables controllers below a cgroup only while no process is in that cgroup itself. So processes in it move to
a leaf beside the cgroups of tasks. The outermost cgroup of a host is exempt from that rule, and nothing in it is moved.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from fray_agents.runner.process_tree import stat_fields
from fray_agents.runner.task_cgroup import UNIFIED, TaskCgroup, cgroup_directories

log = logging.getLogger("fray")

_PREFIX = "fray-task-"
_LEAF = "fray-agent"
_NO_KERNEL_LIMITS = "where the kernel limits nothing: Fray limits memory and processes, and nothing limits processors"
_CONTROLLERS = {"cpu", "memory", "pids"}
_START_TIME_FIELD = 19
"""Index in `stat_fields` of the start time of a process, in ticks since the start of the host."""


def claim_prefix(root: Path = Path("/")) -> str:
    """Path prefix of the cgroups of this process's tasks, to which each adds a name; "" if it may create none.

    Also ends processes of dead agents' tasks there. root: the folder that has `/proc`, `/sys` and `/run`.
    """
    try:
        parent = _claim_cgroup(root)
        if parent is None:
            log.info("tasks have no cgroups of their own: Fray measures and limits them itself")
            return ""
        _end_orphans(parent)
        kept = _CONTROLLERS.intersection((parent / "cgroup.subtree_control").read_text().split())
        what = f"where the kernel limits {', '.join(sorted(kept))}" if kept else _NO_KERNEL_LIMITS
        log.info("tasks have cgroups in %s, %s", parent, what)
    except OSError as error:
        log.warning("tasks get no cgroups of their own: %s", error)
        return ""
    return str(parent / f"{_own_prefix()}{os.getpid()}-{_start_time(os.getpid())}-")


def _own_prefix() -> str:
    """Name prefix of the cgroups of agents whose process ids belong to this process's pid namespace."""
    return f"{_PREFIX}{os.stat('/proc/self/ns/pid').st_ino}-"


def _claim_cgroup(root: Path) -> Path | None:
    """The cgroup below which tasks get theirs, with its controllers enabled; None if Fray may divide none."""
    for place in cgroup_directories(UNIFIED, str(root)):
        own = Path(place)
        if str(os.getpid()) not in _processes(own):
            continue
        parent = own.parent if own.name == _LEAF else own
        if not _may_divide(parent, root):
            return None
        if not _is_outermost(parent):
            _empty_into_leaf(parent)
        wanted = _CONTROLLERS.intersection((parent / "cgroup.controllers").read_text().split())
        for controller in sorted(wanted):
            _enable(parent, controller)
        return parent
    return None


def _may_divide(cgroup: Path, root: Path) -> bool:
    """Whether Fray may divide this cgroup: nobody else does, and this user has the right."""
    if not os.access(cgroup, os.W_OK) or not os.access(cgroup / "cgroup.procs", os.W_OK):
        return False
    if not (root / "run/systemd/system").exists():
        return True
    return any(_attribute(cgroup, f"{kind}.delegate") == b"1" for kind in ("trusted", "user")) or (
        os.geteuid() != 0 and not os.access(cgroup.parent, os.W_OK)  # an older systemd delegated exactly this one
    )


def _attribute(cgroup: Path, name: str) -> bytes | None:
    try:
        return os.getxattr(cgroup, name)
    except OSError:
        return None


def _is_outermost(cgroup: Path) -> bool:
    return not (cgroup / "cgroup.events").exists()


def _empty_into_leaf(cgroup: Path) -> None:
    leaf = cgroup / _LEAF
    leaf.mkdir(exist_ok=True)
    for pid in _processes(cgroup):
        try:
            (leaf / "cgroup.procs").write_text(pid)
        except ProcessLookupError:
            continue  # it has ended


def _enable(cgroup: Path, controller: str) -> None:
    try:
        (cgroup / "cgroup.subtree_control").write_text(f"+{controller}")
    except OSError as error:
        log.warning("tasks are limited without the kernel's help: %s of %s: %s", controller, cgroup, error)


def _processes(cgroup: Path) -> list[str]:
    try:
        return (cgroup / "cgroup.procs").read_text().split()
    except OSError:
        return []


def _end_orphans(parent: Path) -> None:
    """Kill processes in the cgroups of dead agents' tasks, and remove these cgroups."""
    prefix = _own_prefix()
    for path in parent.glob(f"{prefix}*-*-*"):
        agent, started = path.name.removeprefix(prefix).split("-")[:2]
        if agent.isdecimal() and _start_time(int(agent)) != started:
            orphan = TaskCgroup(str(path))
            orphan.kill()
            orphan.remove()


def _start_time(pid: int) -> str:
    fields = stat_fields(pid)
    return fields[_START_TIME_FIELD] if fields else ""
