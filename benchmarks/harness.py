"""Shared by the benches: a private root, agents and peers as processes, medians, and the line of figures."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PYTHON = sys.executable
"""The interpreter itself, never a launcher found on the PATH (a pyenv shim adds 70 ms to every start)."""


def arguments(doc: str, peers: Sequence[str] = ()) -> argparse.Namespace:
    """The options that every bench has: `--quick`, and the interpreter of each peer's environment."""
    parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small run that shows that everything works")
    for peer in peers:
        parser.add_argument(f"--{peer}", metavar="PYTHON", help=f"interpreter that has {peer}; without it no ratio")
    return parser.parse_args()


def say(text: str) -> None:
    """Print a note for people, on stderr."""
    print(text, file=sys.stderr, flush=True)


def report(bench: str, figures: dict[str, Any]) -> None:
    """Print the bench's one line."""
    print(json.dumps({"bench": bench, **figures, "machine": machine()}), flush=True)


def machine() -> dict[str, Any]:
    """The machine, on which the figures depend."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        "kernel": platform.release(),
    }


def spread(seconds: Sequence[float]) -> dict[str, float | int]:
    """Median and 95th percentile in milliseconds."""
    ordered = sorted(seconds)
    return {
        "p50_ms": round(statistics.median(ordered) * 1000, 1),
        "p95_ms": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))] * 1000, 1),
        "samples": len(ordered),
    }


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A directory that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="fray-bench-") as name:
        yield Path(name)


class Helper:
    """A process that prints one JSON line when it is ready, and answers each line of input with another."""

    def __init__(self, command: Sequence[str], **environment: str) -> None:
        environ = {**os.environ, **environment}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ)
        self.pid = self._process.pid
        self.greeting = self._hear()

    def ask(self, line: str = "") -> Any:
        """Send a line and wait for the answer."""
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)
        return self._hear()

    def end(self) -> Any:
        """Send SIGTERM; return its last line."""
        self._process.send_signal(signal.SIGTERM)
        return self._hear()

    def close(self) -> None:
        """Close its input, which ends it, and wait; kill it if it does not end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _hear(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended early, with code {self._process.wait()}")
        return json.loads(line)


@contextlib.contextmanager
def agents(root: Path, count: int = 1, cores: float = 2) -> Iterator[list[Helper]]:
    """`count` agents on `root`, each offering `cores`; they have joined when the block begins."""
    with contextlib.ExitStack() as ending:

        def start(number: int) -> Helper:
            work_dir = root.with_name(f"work-{number}")
            agent = Helper(
                [PYTHON, str(HERE / "agent.py"), str(root), str(work_dir), str(cores)], TMPDIR=str(root.parent)
            )
            ending.callback(agent.close)
            return agent

        yield [start(number) for number in range(count)]


@contextlib.contextmanager
def ray(side: str, python: str | None) -> Iterator[Helper | None]:
    """Ray's side of a bench, one of the files in `peers/`, in Ray's own environment; None if there is none."""
    if python is None:
        yield None
        return
    peer = Helper([python, str(HERE / "peers" / side)])
    say(f"Ray {peer.greeting['version']} started in {peer.greeting['start_s']:.1f} s")
    try:
        yield peer
    finally:
        peer.close()
