"""Agents on this machine that simulate the hosts of TPU slices."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

TPU_TYPE = "v5p-16"
"""A slice of two hosts."""

CORES = 2


class SliceHost:
    """A running agent that says that it is one host of a slice."""

    def __init__(self, root: str, place: Path, name: str, worker: int) -> None:
        self.name = f"{name}, host {worker}"
        place.mkdir()
        command = [sys.executable, "-m", "fray", "agent", "--root", root, "--cpu", str(CORES), "--json"]
        command += ["--tpu", TPU_TYPE, "--slice", name, "--worker", str(worker)]
        log = place / "log"
        with log.open("w") as stderr:
            environment = {**os.environ, "TMPDIR": str(place)}
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, env=environment, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the agent on {self.name} did not start:\n{log.read_text()}")
        self.id: str = json.loads(line)["agent"]

    def kill(self) -> None:
        """SIGKILL, without any warning."""
        self._process.kill()
        self._process.wait()


class Hosts:
    """The hosts that have joined the cluster under `root`."""

    def __init__(self, root: str, place: Path, ending: contextlib.ExitStack) -> None:
        self._root = root
        self._place = place
        self._ending = ending
        self._started = 0

    def join(self, name: str, worker: int) -> SliceHost:
        """Start one more agent, and wait until it has joined."""
        self._started += 1
        host = SliceHost(self._root, self._place / f"host-{self._started}", name, worker)
        self._ending.callback(host.kill)
        return host


@contextlib.contextmanager
def hosts(root: str, place: Path) -> Iterator[Hosts]:
    """A context to start hosts in; it ends all of them afterwards, whatever happens."""
    with contextlib.ExitStack() as ending:
        yield Hosts(root, place, ending)
