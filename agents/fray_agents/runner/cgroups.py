"""This process's cgroups, and the kernel's count of out-of-memory kills in them.

There are two generations of cgroups: one tree (v2), or a tree for each controller (v1), possibly beside a v2 tree that
limits nothing. A container often sees its own directory as the root of the mount, whatever path the kernel reports. So
this module looks at every ancestor that exists.
"""

from __future__ import annotations

import os

HOST_OOM_COUNTER = "/proc/vmstat"
"""The file that counts out-of-memory kills of the whole host, for containers, whose own cgroups vanish with them."""

UNIFIED = ""
"""The name here for the one tree of cgroups v2, in place of a controller."""


def cgroup_directories(controller: str, root: str = "/") -> list[str]:
    """This process's cgroup directories for `controller` (`UNIFIED` for v2), from its own to the outermost.

    Args:
        root: the folder in which `/proc` and `/sys` are looked for.
    """
    mount = os.path.join(root, "sys/fs/cgroup", controller)
    if controller == UNIFIED and os.path.isdir(beside := os.path.join(mount, "unified")):
        mount = beside
    path = _cgroup_path(controller, root)
    found = []
    while path is not None:
        directory = os.path.join(mount, path.lstrip("/")).rstrip("/")
        if os.path.isdir(directory):
            found.append(directory)
        path = os.path.dirname(path) if path != "/" else None
    return found


def _cgroup_path(controller: str, root: str) -> str | None:
    """The path that the kernel reports for this process: `0::/path` (v2), `4:memory:/path` (v1)."""
    try:
        with open(os.path.join(root, "proc/self/cgroup")) as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return None


def oom_counter(own: str, root: str = "/") -> str:
    """The file whose `oom_kill` line counts the kills in the cgroup `own`, or else in that of this process."""
    candidates = [
        f"{own}/memory.events",
        *(os.path.join(place, "memory.events") for place in cgroup_directories(UNIFIED, root)),
        *(os.path.join(place, "memory.oom_control") for place in cgroup_directories("memory", root)),
    ]
    for path in candidates:
        if os.path.exists(path):
            return path
    return os.path.join(root, HOST_OOM_COUNTER.lstrip("/"))


def oom_kills(counter: str) -> int:
    """The count in `counter`; 0 on kernels that do not count."""
    with open(counter) as file:
        for line in file:
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0
