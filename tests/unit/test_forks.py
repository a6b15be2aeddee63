"""No thread forks while another starts a process: see `fray_runtime.forks`."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fray_agents.host.accelerators import _query
from fray_agents.provisioning.providers.command import _start_program
from fray_agents.tasks.process_task import start_runner
from fray_runtime.directories import _remove_tree


async def runner(tmp_path: Path) -> None:
    started = await start_runner(None)
    assert started.stdin is not None
    started.stdin.close()
    await started.wait()


async def provider_command(tmp_path: Path) -> None:
    await (await _start_program("create", ["true"], os.environ)).wait()


async def tree_removal(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda *args, **options: None)
        _remove_tree(tmp_path)


STARTS: dict[str, Callable[[Path], Awaitable[object]]] = {
    "runner": runner,
    "nvidia-smi": lambda tmp_path: _query("true", ""),
    "provider's command": provider_command,
    "removal of a tree": tree_removal,
}


@pytest.mark.parametrize("what", STARTS)
async def test_no_thread_forks_while_a_process_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str
) -> None:
    """The child would inherit the pipe that tells the starter of a process that its program was executed."""
    notes: list[str] = []
    begun, forked, execute = threading.Event(), threading.Event(), subprocess.Popen._execute_child  # type: ignore[attr-defined]

    def noted(*args: Any) -> None:
        begun.set()
        forked.wait(0.2)  # far longer than a fork takes
        execute(*args)
        notes.append("started")

    def fork() -> None:
        begun.wait(200)
        if (child := os.fork()) == 0:
            os._exit(0)
        notes.append("forked")
        forked.set()
        os.waitpid(child, 0)

    monkeypatch.setattr(subprocess.Popen, "_execute_child", noted)
    forking = threading.Thread(target=fork)
    forking.start()
    await STARTS[what](tmp_path)
    forking.join(200)
    assert notes == ["started", "forked"]
