"""Any number of hints makes an agent look no more often than its interval allows."""

from __future__ import annotations

import asyncio

from fray_agents.agent.hint_listener import HintThrottle
from tests.support.virtual import Cluster


async def test_a_flood_of_hints_leads_to_one_look_at_once_and_one_an_interval(cluster: Cluster) -> None:
    looks: list[float] = []
    hinted = HintThrottle(lambda: looks.append(cluster.clock.boottime()), interval=1.0)
    for _ in range(1000):
        hinted.ask()
        await asyncio.sleep(0.0025)
    await asyncio.sleep(10)
    hinted.ask()
    await asyncio.sleep(10)
    assert [round(look, 2) for look in looks] == [0.0, 1.0, 2.0, 3.0, 12.5]


async def test_a_few_hints_are_followed_at_once_and_a_flood_once_an_interval(cluster: Cluster) -> None:
    looks: list[float] = []
    hinted = HintThrottle(lambda: looks.append(cluster.clock.boottime()), interval=1.0, burst=3)
    for _ in range(60):
        hinted.ask()
        await asyncio.sleep(0.05)
    await asyncio.sleep(10)
    for _ in range(2):
        hinted.ask()
        await asyncio.sleep(0.05)
    assert [round(look, 2) for look in looks] == [0.0, 0.05, 0.1, 1.0, 2.0, 3.0, 13.0, 13.05]


async def test_the_last_hint_of_a_flood_is_not_forgotten(cluster: Cluster) -> None:
    looks: list[float] = []
    hinted = HintThrottle(lambda: looks.append(cluster.clock.boottime()), interval=1.0)
    hinted.ask()
    await asyncio.sleep(0.5)
    hinted.ask()
    await asyncio.sleep(5)
    assert looks == [0.0, 1.0]


async def test_nothing_is_done_after_the_end(cluster: Cluster) -> None:
    looks: list[int] = []
    hinted = HintThrottle(lambda: looks.append(1), interval=1.0)
    hinted.ask()
    await asyncio.sleep(0.5)
    hinted.ask()
    await asyncio.sleep(0.1)
    hinted.cancel()
    hinted.ask()
    await asyncio.sleep(5)
    assert looks == [1]
