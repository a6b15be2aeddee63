"""Exponential back-off."""

from __future__ import annotations

from itertools import islice

import pytest

from fray_coordinator.backoff import backoff, exponential_wait


def test_the_waits_double_up_to_the_longest() -> None:
    assert list(islice(backoff(0.5, 3.0), 5)) == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_they_grow_by_another_factor() -> None:
    assert list(islice(backoff(1.0, 100.0, 1.5), 3)) == [1.0, 1.5, 2.25]


@pytest.mark.parametrize(("failures", "wait"), [(0, 0.0), (1, 0.1), (4, 0.8), (10**9, 8.0)])
def test_the_wait_after_so_many_failures(failures: int, wait: float) -> None:
    assert exponential_wait(failures, 0.1, 8.0) == pytest.approx(wait)
