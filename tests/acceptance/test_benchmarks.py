"""The benches run, print one well-formed line, and find nothing lost or doubled. Their figures are not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

BENCHES = Path(__file__).parents[2] / "benchmarks"


def figures(bench: str) -> dict[str, Any]:
    """The one line of a quick run."""
    command = [sys.executable, str(BENCHES / f"{bench}.py"), "--quick"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stderr
    (line,) = ran.stdout.splitlines()
    found: dict[str, Any] = json.loads(line)
    assert found["bench"] == bench
    assert {"cores", "memory_gb", "python", "kernel"} <= found["machine"].keys()
    return found


def test_every_job_of_the_jobs_bench_succeeds() -> None:
    found = figures("jobs")
    assert found["succeeded"] == 1 + found["submit_to_succeeded"]["samples"] + 10
    assert found["jobs_per_second_at_concurrency_2"] > 0
    assert "ratio" not in found, "without the peer there is nothing to compare with"


def test_a_drain_loses_nothing_and_doubles_nothing() -> None:
    found = figures("drain")
    assert (found["lost"], found["ran_twice"]) == (0, 0)
    assert found["claims_won"] == found["jobs"] == 40
    assert found["agents_requests"]["writes"] >= 2 * found["jobs"], "a claim and a commit each"


@pytest.mark.parametrize("figure", ["import_fray", "fray_help", "claim_to_command", "claim_to_callable"])
def test_start_up_is_measured(figure: str, startup: dict[str, Any]) -> None:
    assert 0 < startup[figure]["p50_ms"] <= startup[figure]["p95_ms"]


def test_an_idle_agent_is_weighed(startup: dict[str, Any]) -> None:
    assert startup["idle_agent_mb"] > 5


@pytest.fixture(scope="module")
def startup() -> dict[str, Any]:
    return figures("startup")


def test_the_actors_bench_calls_over_both_transports() -> None:
    found = figures("actors")
    for transport in ("fray_tcp", "fray_unix"):
        assert all(figure > 0 for figure in found["calls"][transport].values())
    assert found["memory_mb"]["server"] > found["memory_mb"]["interpreter"] > 1


@pytest.mark.parametrize("side", ["local", "local_threads", "storage"])
def test_actors_are_created_on_every_kind_of_cluster(side: str, creation: dict[str, Any]) -> None:
    assert 0 < creation[side]["p50_ms"] <= creation[side]["p95_ms"]


@pytest.fixture(scope="module")
def creation() -> dict[str, Any]:
    return figures("actor_creation")


def test_a_changed_source_file_costs_one_upload_and_no_environment() -> None:
    found = figures("environments")
    assert found["edit_costs"] == {"uploads": 1, "environments": 0}
    assert all(
        found["fray"][f"{kind}_{step}"]["p50_ms"] > 0 for kind in ("workspace", "packages") for step in ("cold", "warm")
    )


def test_the_gangs_bench_sees_every_gang_form_and_recover() -> None:
    found = figures("gangs")
    for figure in ("submit_to_all_running", "death_to_all_running"):
        assert 0 < found[figure]["p50_ms"] <= found[figure]["p95_ms"]
    assert found["gangs"] == 2, "all were stopped in the end"
    assert "submit_ratio" not in found, "without the peer there is nothing to compare with"
