"""`fray actors`: the announced actors, for people and for scripts."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from fray.cli import cli
from fray.cluster import StorageCluster
from fray.rpc import ActorServer
from fray_coordinator.core import Core
from fray_coordinator.store.interface import ANY


def fray(root: Path, *words: str) -> str:
    result = CliRunner(env={"FRAY_CLUSTER_SPEC": str(root)}).invoke(cli, words)
    assert result.exit_code == 0, result.output
    return result.output


def test_actors_are_listed(tmp_path: Path) -> None:
    with StorageCluster(str(tmp_path / "root"), namespace="lab") as cluster:
        server = ActorServer(cluster)
        server.register("curriculum", object(), metadata={"lessons": 3})
        server.register("weights", object())
        server.serve_background()
        root = tmp_path / "root"
        header, *rows = fray(root, "actors").splitlines()
        assert header.split() == ["ACTOR", "NAMESPACE", "ADDRESS", "JOB", "INCARNATION", "ATTEMPT", "AGE"]
        assert [row.split()[:3] for row in rows] == [
            [name, "lab", server.address] for name in ("curriculum", "weights")
        ]
        first, second = json.loads(fray(root, "actors", "--json"))
        assert (first["name"], first["metadata"]) == ("curriculum", {"lessons": 3})
        assert second["address"] == server.address
        assert not {"op", "recent_ops"} & first.keys()
        cluster.run(break_one)
        assert "left out: actors/lab/curriculum/odd.json" in fray(root, "actors")
        server.shutdown()
        cluster.run(remove)
        assert json.loads(fray(root, "actors", "--json")) == []


async def break_one(core: Core) -> None:
    await core.store.put("actors/lab/curriculum/odd.json", b"no record", ANY)


async def remove(core: Core) -> None:
    await core.store.delete("actors/lab/curriculum/odd.json", ANY)
