"""Histories recorded from several processes on one root; some are frozen or killed in the middle of a call."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.histories.calls import Call, Reading
from tests.histories.checker import Step, check
from tests.histories.second_opinion import accepts
from tests.support.waiting import wait_until

FROZEN = 0.3
"""Seconds for which one client is frozen, at any point: on local files perhaps with a lock that the others need."""
KEYS = ["lasting/0", "lasting/1", "mortal/0", "mortal/1"]


def record(
    root: str, folder: Path, calls: int, processes: int = 4, rate: float = 0.0, keys: Sequence[str] = KEYS
) -> list[Call]:
    """Record `processes` clients with `calls` calls each, and a successor of the one that is killed.

    Args:
        folder: for their diaries.
        rate: share of requests with a fault inside the clients; if there is a server, a proxy injects faults instead.
        keys: the names that they use.
    """
    rng = random.Random(calls)
    running = [_start(root, folder, f"client{number}", calls, rate, keys) for number in range(processes)]
    try:
        _go(running)
        _wait_for_calls(folder / "client0", rng.randrange(calls // 4, calls // 2))
        running[0].kill()
        running.append(_start(root, folder, "heir", calls // 2, rate, keys))
        _go(running[-1:])
        running[1].send_signal(signal.SIGSTOP)
        time.sleep(FROZEN)
        running[1].send_signal(signal.SIGCONT)
        assert [process.wait(600) for process in running[1:]] == [0] * processes
    finally:
        for process in running:
            with process:
                process.kill()
    return [call for diary in sorted(folder.iterdir()) for call in read_diary(diary)]


def read_diary(diary: Path) -> list[Call]:
    """Each call in its last version; a line that was cut off when its writer ended is ignored."""
    calls: dict[int, Call] = {}
    for line in diary.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            call = msgspec.json.decode(line, type=Call)
            calls[call.number] = call
    return list(calls.values())


def histories(calls: Sequence[Call], haunted: bool) -> dict[str, list[Step]]:
    """The steps of each name."""
    by_key: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        by_key[call.key].append(call)
    return {key: Reading(key.startswith("mortal"), haunted).steps(own) for key, own in by_key.items()}


def assert_linearizable(calls: Sequence[Call], haunted: bool) -> None:
    """Check that one order explains each name's calls. Both checkers judge names with few uncertain steps."""
    for key, steps in histories(calls, haunted).items():
        verdict = check(steps)
        if key.startswith("lasting"):
            assert accepts(steps) == verdict.linearizable, f"{key}: the checkers disagree"
        assert verdict.linearizable, f"{key}: {verdict}"


def _start(root: str, folder: Path, name: str, calls: int, rate: float, keys: Sequence[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.histories.client", root, name, str(folder / name), "--keys", *keys]
    command += ["--calls", str(calls), "--rate", str(rate)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _go(waiting: Sequence[subprocess.Popen[str]]) -> None:
    """Let the clients begin at the same moment."""
    for process in waiting:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in waiting:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()


def _wait_for_calls(diary: Path, wanted: int) -> None:
    wait_until(lambda: diary.exists() and diary.read_bytes().count(b"\n") >= wanted)
