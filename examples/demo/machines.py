"""Two machines of the cluster: `fray agent` in processes of their own."""

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
    """A running agent. name: for people; id: as the cluster knows it."""

    def __init__(self, name: str, root: str, place: Path) -> None:
        self.name = name
        place.mkdir()
        command = [sys.executable, "-m", "fray", "agent", "--root", root, "--cpu", str(CORES), "--json"]
        # The jobs are functions of this folder's modules, so the machines have to have them.
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "TMPDIR": str(place)}
        log = place / "log"  # what an agent logs would go through the demo's own lines
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
    """Agents that have joined the cluster; none is left afterwards, whatever happens."""
    with contextlib.ExitStack() as ending:

        def start(name: str) -> Machine:
            machine = Machine(name, root, place / name)
            ending.callback(machine.kill)
            return machine

        yield [start(name) for name in names]
