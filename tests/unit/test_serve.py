"""Signals are to the process, whichever agent it has just then."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from fray_agents import serve
from fray_agents.agent import AgentOptions, Departure
from fray_agents.reach import Reach


def test_a_signal_while_a_fenced_agent_is_put_down_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fenced:
        """Declared dead; the signal comes while it kills its tasks."""

        id = "fenced"

        def __init__(self, *args: object) -> None:
            self.told = asyncio.Event()

        def terminate(self) -> None:
            self.told.set()

        async def run(self) -> Departure:
            os.kill(os.getpid(), signal.SIGTERM)
            await self.told.wait()
            return Departure.FENCED

    monkeypatch.setattr(serve, "Agent", Fenced)
    joined: list[str] = []
    asyncio.run(serve.serve(f"file://{tmp_path}/root", AgentOptions(reach=Reach(inbound=False)), joined.append))
    assert joined == ["fenced"]
