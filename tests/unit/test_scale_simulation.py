"""The simulated services of the scale run keep their documented limits, and each scenario prints its figures."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.scale.loop import LoopClock, ManyTimersLoop
from benchmarks.scale.services import GCS, Latency
from benchmarks.scale.storage import ManyContents, Rate
from fray_coordinator.store.interface import Object
from fray_coordinator.store.memory import MemoryContents


def served(rate: Rate, begin: float, seconds: int, asked: int) -> float:
    """The number of requests a second that are served if `asked` a second arrive."""
    times = (begin + second + n / asked for second in range(seconds) for n in range(asked))
    return sum(rate.take(now) for now in times) / seconds


def test_a_bucket_serves_its_rate_and_refuses_the_rest() -> None:
    assert served(Rate(100.0, float("inf")), 0.0, 10, 1000) == pytest.approx(110, abs=2)  # a second's worth at once
    assert served(Rate(100.0, float("inf")), 0.0, 10, 90) == 90


def test_the_served_rate_doubles_over_twenty_minutes_of_load_and_not_without() -> None:
    loaded, calm = Rate(100.0, 1200.0), Rate(100.0, 1200.0)
    served(loaded, 0.0, 1200, 100)
    served(calm, 0.0, 1200, 40)
    assert loaded.rate == pytest.approx(200, rel=0.01)
    assert calm.rate == 100.0


def test_latencies_have_the_median_and_the_99th_percentile_they_are_given() -> None:
    rng = random.Random(1)
    drawn = sorted(Latency(0.02, 0.08).draw(rng) for _ in range(20_000))
    assert statistics.median(drawn) == pytest.approx(0.02, rel=0.05)
    assert drawn[int(0.99 * len(drawn))] == pytest.approx(0.08, rel=0.1)


def test_many_contents_are_contents() -> None:
    rng = random.Random(1)
    few, many = MemoryContents(), ManyContents()
    for number in range(500):
        key = rng.choice("abc") + f"/{rng.randrange(200)}"
        for contents in (few, many):
            if number % 3 == 0:
                contents.remove(key)
            else:
                contents.set(key, Object(b"", str(number), 0.0))
    for prefix, after in (("", None), ("b/", None), ("b/", "b/5"), ("b/", "a/1"), ("b/1", "b/10"), ("x", None)):
        assert list(many.keys(prefix, after)) == list(few.keys(prefix, after))


def test_timers_go_off_in_their_order_in_the_time_of_a_jump_and_cancelled_ones_never() -> None:
    loop = ManyTimersLoop()
    clock = LoopClock(loop)

    async def main() -> list[tuple[float, int]]:
        heard: list[tuple[float, int]] = []

        def ring(number: int) -> None:
            heard.append((clock.boottime(), number))

        for number, delay in enumerate((30.0, 10.0, 20.0, 10.0)):
            timer = loop.call_later(delay, ring, number)
            if number == 2:
                timer.cancel()
        await clock.sleep(25.0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(100.0):
                await clock.sleep(3600.0)
        return [*heard, (clock.boottime(), -1)]

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert runner.run(main()) == [(10.0, 1), (10.0, 3), (30.0, 0), (125.0, -1)]


def scale(*options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.scale", *options]
    figures: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return figures


def test_a_small_fleet_drains_its_jobs_in_time_within_the_limits() -> None:
    figures = scale("drain", "--agents", "10", "--jobs", "50", "--task", "30")
    assert figures["finished"] == figures["claims_won"] == 50
    assert figures["times_ideal"] < 2.0
    assert figures["rejected_per_won"] < 0.5
    assert figures["throttled"] == {}
    assert 1.0 <= figures["requests_per_job"]["deletes"] < 1.1, "an entry, that seldom two find stale"
    writes = figures["requests_per_second"]["all writes"]["peak"]
    assert figures["peak_of_limit"]["bucket writes"] == round(writes / GCS.writes, 3)
    assert 0 < writes < GCS.writes


@pytest.mark.slow
def test_deaths_are_told_after_five_promised_intervals() -> None:
    spread = scale("deaths", "--agents", "12")["detection_seconds"]
    assert 20.0 <= spread["min"] <= spread["max"] < 45.0, "the last heartbeat was up to an interval before"


@pytest.mark.slow
def test_a_burst_of_small_submissions_is_taken_as_it_comes_though_all_ring_one_bell() -> None:
    figures = scale("burst", "--agents", "10", "--jobs", "200")
    assert figures["failed_submissions"] == 0
    assert figures["submitted_seconds"] < 60.0


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["gang", "crowd"])
def test_a_gang_forms_and_forms_again_in_spite_of_lost_hosts_and_other_jobs(scenario: str) -> None:
    figures = scale(scenario, "--agents", "12", "--gang", "4", "--jobs", "24", "--hints")
    phases = [figures[phase] for phase in figures if phase.startswith("formed")]
    assert [phase["running"] for phase in phases] == [4] * len(phases)
    assert all(phase["throttled"] == {} for phase in phases)
    busiest = phases[0]["busiest_second"]["of writes"]
    assert busiest["own agent writes"] >= 4, "each member votes"
    if scenario == "gang":
        assert phases[0]["all_after"] < 5.0, "woken at each step"
