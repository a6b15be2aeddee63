"""Fixtures that many unit tests use."""

from __future__ import annotations

import pytest

from fray_coordinator.core import Core
from fray_layouts.records import ClusterSettings
from tests.support.virtual import Cluster


@pytest.fixture
async def core(cluster: Cluster) -> Core:
    """A participant of a cluster in memory, with short retention."""
    cluster.settings = ClusterSettings(quarantine=10.0, inbox_patience=0.01)
    return await cluster.core()
