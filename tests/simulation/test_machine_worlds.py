"""Worlds of machines: sound rules break nothing, and each rule that is switched off is caught."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fray_agents.provisioning import look
from fray_coordinator.protocol.scaling import machines
from fray_coordinator.protocol.scaling.machines import Observed
from fray_coordinator.protocol.scaling.view import PoolView
from fray_layouts.records import MachineRecord
from tests.simulation.machines import simulate


def test_a_world_of_machines_breaks_nothing() -> None:
    world = simulate(2)
    assert world.breaches == []
    assert len(world.jobs) > 5
    assert len(world.provider.past) > 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 11))
def test_many_worlds_of_machines_break_nothing(seed: int) -> None:
    assert simulate(seed).breaches == []


def _without_strangers(view: PoolView, now: float) -> Observed:
    found = machines.observe(view, now)
    return Observed(found.changed, (), found.zones)


def _kept(machine: MachineRecord, reason: str, error: str = "") -> MachineRecord:
    return machine


def _nothing(*args: object) -> Sequence[Any]:
    return []


OFF: dict[str, tuple[Any, str, object]] = {
    "strangers_are_deleted": (look, "observe", _without_strangers),
    "machines_that_never_boot_are_replaced": (machines, "BOOT_SECONDS", 1e9),
    "machines_that_were_not_heard_of_are_asked_for_again": (machines, "ASK_AGAIN_SECONDS", 1e9),
    "machines_are_deleted": (look, "to_delete", _nothing),
    "agents_are_drained": (look, "to_drain", _nothing),
    "lost_machines_are_replaced": (machines, "deleted", _kept),
}
"""Rules, and what stands in for each where it is switched off."""


@pytest.mark.slow
@pytest.mark.parametrize("rule", OFF)
def test_a_rule_that_is_switched_off_is_caught(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*OFF[rule])
    assert any(simulate(seed).breaches for seed in range(1, 7))
