"""`fray reserve` and `fray reservations`, on a root without agents."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fray.cli.root_command import cli
from fray.cluster import Entrypoint, JobRequest, ResourceConfig, StorageCluster


def fray(cluster: StorageCluster, *words: str) -> Result:
    return CliRunner().invoke(cli, [words[0], "--root", cluster.root, *words[1:]])


def listed(cluster: StorageCluster, *words: str) -> list[dict[str, Any]]:
    result = fray(cluster, "reservations", "--json", *words)
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.output)
    return found


@pytest.fixture
def cluster(new_cluster: StorageCluster) -> StorageCluster:
    team = StorageCluster(new_cluster.root, namespace="team")
    team.list_jobs()
    return team


def test_a_reservation_is_listed_renewed_and_released(cluster: StorageCluster) -> None:
    made = fray(cluster, "reserve", "--namespace", "team", "--cpu", "2", "--replicas", "2", "--max-replicas", "5")
    assert made.exit_code == 0, made.output
    reservation = made.output.strip()
    inside = cluster.launch(JobRequest("job", Entrypoint.from_binary("true")))
    assert cluster.get_reservation(reservation).jobs == [inside]
    (before,) = listed(cluster)
    assert (before["id"], before["namespace"], before["low"]) == (reservation, "team", 2)
    (after,) = listed(cluster, "--renew", reservation)
    assert after["expires_at"] >= before["expires_at"]
    row = fray(cluster, "reservations").output.splitlines()[1].split()
    assert row[:7] == [reservation, "team", "default", "forming", "0", "2", "5"]
    assert listed(cluster, "--release", reservation) == []
    (over,) = listed(cluster, "--all")
    assert (over["state"], over["reason"]) == ("ended", "released by `fray reservations`")
    assert cluster.poll(inside).status == "stopped"


def test_slices_and_gpus_are_reserved_by_their_kinds(cluster: StorageCluster) -> None:
    for words in (("--tpu", "v5litepod-16", "--replicas", "2"), ("--gpus", "h100:8")):
        assert fray(cluster, "reserve", "--namespace", "team", *words).exit_code == 0
    slices, gpus = (cluster.get_reservation(record["id"]) for record in listed(cluster))
    assert slices.pending_resources.replicas == 2
    assert slices.pending_resources.device == ResourceConfig.with_tpu("v5litepod-16").device
    assert gpus.pending_resources.device == ResourceConfig.with_gpu("h100", 8).device


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--replicas", "3", "--max-replicas", "2"), "min_resources: '3 replicas' is not accepted"),
        (("--ttl", "1"), "ttl_seconds: 1.0 is not accepted; give at least 10 seconds"),
        (("--replicas", "0"), "min_resources.replicas: 0 is not accepted"),
        (("--tpu", "v5litepod-3"), "there are v5litepod-1, v5litepod-2, v5litepod-4"),
        (("--tpu", "v5litepod-4", "--gpus", "1"), "--gpus and --tpu cannot be combined; give one of them"),
    ],
)
def test_an_impossible_reservation_is_refused(cluster: StorageCluster, words: tuple[str, ...], told: str) -> None:
    result = fray(cluster, "reserve", "--namespace", "team", *words)
    assert result.exit_code != 0
    assert told in result.output
    assert listed(cluster, "--all") == []


def test_an_unknown_reservation_is_told(cluster: StorageCluster) -> None:
    result = fray(cluster, "reservations", "--release", "nobody")
    assert result.exit_code == 1
    assert "there is no reservation nobody under" in result.output
