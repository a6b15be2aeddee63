"""Reads of a cluster while it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fray_coordinator.clock import RandomSource
from fray_coordinator.core import Core, core_on
from fray_coordinator.fsck import checker
from fray_coordinator.store.store import Store
from tests.support.virtual import Cluster, StoreConnection


class SlowConnection(StoreConnection):
    """A backend whose requests take a while, so that the cluster changes while somebody reads it."""

    local = False
    seconds: float

    async def _pass(self, verb: str, key: str) -> None:
        await asyncio.sleep(self.seconds)
        await super()._pass(verb, key)


async def slow_core(cluster: Cluster, seconds: float = 0.02) -> Core:
    """One more participant, whose requests take `seconds`."""
    connection, rng = SlowConnection(cluster.contents, cluster.clock), RandomSource(99 + len(cluster.connections))
    connection.seconds = seconds
    cluster.connections.append(connection)
    return await core_on(Store(connection, cluster.clock, rng), cluster.settings, cluster.clock, rng)


def recorded_findings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect the results of repeated checks."""
    found: list[Any] = []
    checks = checker.CHECKS

    def noting(check: Callable[..., Any]) -> Callable[..., Any]:
        def noted(seen: Any) -> Any:
            shown = list(check(seen))
            found.extend(shown)
            return shown

        return noted

    monkeypatch.setattr(checker, "CHECKS", tuple((noting(check), needs) for check, needs in checks))
    return found
