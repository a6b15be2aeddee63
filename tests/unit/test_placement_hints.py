"""Hints about placements, sent in threads."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from fray_agents.agent import pool_notices
from fray_agents.agent.pool_notices import PlacementHints
from fray_layouts.records import HintEndpoint


async def test_a_hint_for_one_that_is_just_being_told_is_sent_once_more_after_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, goes_on, again = threading.Event(), threading.Event(), threading.Event()
    told: list[str] = []

    def send(target: Any, keyring: Any, hint: str) -> None:
        told.append(hint)
        (again if len(told) > 1 else begun).set()
        assert goes_on.wait(60)

    monkeypatch.setattr(pool_notices, "send_hint", send)
    hints = PlacementHints(None)  # type: ignore[arg-type]
    endpoint = HintEndpoint(address="host:1", nonce="n")
    hints.send([endpoint])
    assert await asyncio.to_thread(begun.wait, 60)
    for _ in range(3):
        hints.send([endpoint])
    goes_on.set()
    assert await asyncio.to_thread(again.wait, 60)
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
    assert told == ["placements"] * 2
