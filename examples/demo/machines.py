"""The cluster's two machines: each is `fray agent` in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

CORES = 2


class Machine:
    """A running agent. name: shown to people; id: its id in the cluster."""

    def __init__(self, name: str, root: str, place: Path) -> None:
        self.name = name
        place.mkdir()
        command = [sys.executable, "-m", "fray", "agent", "--root", root, "--cpu", str(CORES), "--json"]
        # The jobs are functions of this folder's modules, so the machines need them.
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "TMPDIR": str(place)}
        log = place / "log"  # an agent's log would mix with the demo's own lines
        with log.open("w") as stderr:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, env=environment, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{name} did not start:\n{log.read_text()}")
        self.id: str = json.loads(line)["agent"]

    def kill(self) -> None:
        """SIGKILL, without any warning."""
        self._process.kill()
        self._process.wait()

    def leave(self) -> None:
        """SIGTERM, and wait until it has left the cluster."""
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait(timeout=60)


@contextlib.contextmanager
def machines(names: list[str], root: str, place: Path) -> Iterator[list[Machine]]:
    """Start agents and wait until they have joined the cluster; end all of them afterwards, whatever happens."""
    with contextlib.ExitStack() as ending:

        def start(name: str) -> Machine:
            machine = Machine(name, root, place / name)
            ending.callback(machine.kill)
            return machine

        yield [start(name) for name in names]
