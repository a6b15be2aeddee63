"""What fsck and doctor tell of odd objects that the pass met, and that no check of theirs ends by one."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

from msgspec.structs import replace

from fray_coordinator import fsck
from fray_coordinator.coordinate import Pass
from fray_coordinator.core import Core
from fray_coordinator.fsck import checkup
from fray_coordinator.protocol.schedule import entry_of
from fray_coordinator.store.api import ANY
from fray_layouts.names import Agents, Jobs
from fray_layouts.records import AgentRecord
from tests.support.participants import join, launch, passes
from tests.support.virtual import Cluster, run


async def troubles(core: Core) -> dict[str, str]:
    found: dict[str, str] = {}
    for trouble in await fsck.check(core):
        found[trouble.key] = found.get(trouble.key, "") + trouble.what
    return found


def test_what_the_pass_left_alone_is_told_though_it_looks_sound() -> None:
    async def main(cluster: Cluster) -> None:
        user, holder = await cluster.core(), await join(cluster, "p")
        beating = asyncio.create_task(holder.beat_for_ever())
        job = await launch(user)
        coordinator = Pass(user, "p")
        await passes(coordinator, 200.0)
        assert await troubles(user) == {}
        await user.store.delete(entry_of(job).key())
        with mock.patch("fray_coordinator.index.enter", side_effect=MemoryError):
            await passes(coordinator, 80.0)
        assert "MemoryError" in (await troubles(user))[Jobs.key(job.id)]
        beating.cancel()

    run(main)


def test_a_check_that_an_object_ends_keeps_the_others_from_nothing() -> None:
    def fails(seen: Any) -> Any:
        raise RecursionError("too deep")
        yield

    async def main(cluster: Cluster) -> None:
        user = await cluster.core()
        await user.store.put("jobs/odd.json", b"[]", ANY)
        with mock.patch.object(checkup, "LOOKS", (fails, *checkup.LOOKS)):
            told = await troubles(user)
        assert "RecursionError: too deep" in told["/"]
        assert "jobs/odd.json" in told

    run(main)


def test_an_agent_in_an_unknown_state_is_told_of_once_it_is_silent() -> None:
    async def main(cluster: Cluster) -> None:
        user = await cluster.core()
        await join(cluster, "newer")
        key = Agents.key("newer")
        await user.records.update(key, AgentRecord, lambda now: replace(now, state="draining") if now else None)
        assert await troubles(user) == {}
        await cluster.clock.sleep(2000.0)
        assert "'draining'" in (await troubles(user))[key]

    run(main)
