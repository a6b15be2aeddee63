"""A signal is for the process, and so for the agent that it has at that moment."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fray_agents.agent import daemon
from fray_agents.agent.agent import AgentOptions, ExitReason
from fray_agents.host import agent_lock
from fray_runtime.directories import UntrustedDirectory
from fray_runtime.network import NetworkSettings


def test_a_signal_while_a_fenced_agent_is_put_down_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fenced:
        """An agent that was declared dead, and gets the signal while it kills its tasks."""

        id = "fenced"

        def __init__(self, *args: object) -> None:
            self.told = asyncio.Event()

        def terminate(self) -> None:
            self.told.set()

        async def run(self) -> ExitReason:
            os.kill(os.getpid(), signal.SIGTERM)
            await self.told.wait()
            return ExitReason.FENCED

    monkeypatch.setattr(daemon, "Agent", Fenced)
    joined: list[str] = []
    asyncio.run(
        daemon.run_agent(f"file://{tmp_path}/root", AgentOptions(network=NetworkSettings(inbound=False)), joined.append)
    )
    assert joined == ["fenced"]


@pytest.mark.parametrize("nohup", [False, True])
def test_an_agent_whose_terminal_is_closed_leaves_unless_it_is_to_ignore_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nohup: bool
) -> None:
    told: list[str] = []

    class Attached:
        id = "attached"

        def __init__(self, *args: object) -> None: ...

        def terminate(self) -> None:
            told.append("leave")

        async def run(self) -> ExitReason:
            for _ in range(2):  # the kernel and the shell both send it
                os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0.1)
            return ExitReason.LEFT

    monkeypatch.setattr(daemon, "Agent", Attached)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)
    try:
        asyncio.run(daemon.run_agent(f"file://{tmp_path}/root", AgentOptions(network=NetworkSettings(inbound=False))))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert told == ([] if nohup else ["leave"])


FULL = OSError(errno.ENOSPC, "No space left on device")
SOMEBODY_ELSES = UntrustedDirectory(Path("/tmp/fray"), "belongs to user 7")


def short_of_room(monkeypatch: pytest.MonkeyPatch, error: Exception, times: int, instead: Callable[[], None]) -> None:
    """The first tries to make an agent's directory fail; `instead` is called at the last of them."""
    real, failed = agent_lock.AgentLock.work_dir, [0]

    def work_dir(self: agent_lock.AgentLock, parent: Path | None) -> Path:
        failed[0] += 1
        if failed[0] > times:
            return real(self, parent)
        if failed[0] == times:
            instead()
        raise error

    monkeypatch.setattr(agent_lock.AgentLock, "work_dir", work_dir)
    monkeypatch.setattr(daemon, "RETRY_INTERVAL", 0.01)


def leave() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def open_files() -> set[str]:
    """What this process has open: the number of each descriptor, and to what it leads."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own, and what others closed meanwhile
            found.add(f"{number}: {os.readlink(f'/proc/self/fd/{number}')}")
    return found


def test_a_full_temporary_directory_is_waited_out_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    short_of_room(monkeypatch, FULL, 3, lambda: None)
    joined: list[str] = []

    def on_join(agent: str) -> None:
        joined.append(agent)
        leave()

    before = open_files()
    with caplog.at_level(logging.WARNING, "fray"):
        asyncio.run(
            daemon.run_agent(f"file://{tmp_path}/root", AgentOptions(network=NetworkSettings(inbound=False)), on_join)
        )
    assert len(joined) == 1
    told = [record.message for record in caplog.records if "cannot take an agent" in record.message]
    assert told == ["this host cannot take an agent yet: [Errno 28] No space left on device"]
    assert not open_files() - before, "no try leaves its lock behind"


def test_a_signal_ends_the_wait_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short_of_room(monkeypatch, FULL, 3, leave)
    joined: list[str] = []
    asyncio.run(
        daemon.run_agent(f"file://{tmp_path}/root", AgentOptions(network=NetworkSettings(inbound=False)), joined.append)
    )
    assert joined == []


def test_an_agent_that_joins_again_waits_for_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person who starts an agent gets the error at once. An agent that joins again has nobody to report to."""
    short_of_room(monkeypatch, SOMEBODY_ELSES, 1, lambda: None)
    options = AgentOptions(network=NetworkSettings(inbound=False))
    with pytest.raises(UntrustedDirectory):
        asyncio.run(daemon.run_agent(f"file://{tmp_path}/root", options))
    short_of_room(monkeypatch, SOMEBODY_ELSES, 2, leave)
    asyncio.run(daemon.run_agent(f"file://{tmp_path}/root", replace(options, rejoins=True)))


@pytest.mark.parametrize("signals", [0, 1, 2])
def test_the_end_of_a_host_lets_jobs_end_and_the_signal_that_it_brings_does_not_hurry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, signals: int
) -> None:
    class Leaving:
        """An agent that leaves when it is asked to."""

        id = "leaving"
        asked = 0

        def __init__(self, *args: object) -> None:
            self.told = asyncio.Event()

        def terminate(self) -> None:
            Leaving.asked += 1
            self.told.set()

        async def run(self) -> ExitReason:
            await self.told.wait()
            handled = asyncio.Event()
            for _ in range(signals):
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(0.01)  # the loop handles a signal in its next round
            asyncio.get_running_loop().call_later(0.01, handled.set)
            await handled.wait()
            return ExitReason.LEFT

    async def end_of_host() -> str:
        return "it is preempted"

    monkeypatch.setattr(daemon, "Agent", Leaving)
    options = AgentOptions(network=NetworkSettings(inbound=False), end_of_host=end_of_host)
    asyncio.run(daemon.run_agent(f"file://{tmp_path}/root", options))
    assert Leaving.asked == (2 if signals == 2 else 1), "only a second signal is immediate"
    assert "it is preempted: the agent leaves" in caplog.text
