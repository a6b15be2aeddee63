"""The data-processing example on real text: on threads, and on a root with two agents."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.agents import agents, on_cluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "data_processing" / "main.py"
SHARDS = 4


@pytest.fixture
def corpus(tmp_path: Path) -> dict[str, str]:
    """Sources of the standard library as documents, in four files; their texts by id."""
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-d]*.py"))[:40]
    texts = {path.name: path.read_text() for path in sources}
    folder = tmp_path / "corpus"
    folder.mkdir()
    for shard in range(SHARDS):
        with open(folder / f"part-{shard}.jsonl", "w") as out:
            for name in list(texts)[shard::SHARDS]:
                out.write(json.dumps({"id": name, "text": texts[name]}) + "\n")
    return texts


def run_example(tmp_path: Path, **environment: str) -> list[str]:
    command = [sys.executable, str(EXAMPLE), "--input", f"{tmp_path}/corpus/*.jsonl", "--output", f"{tmp_path}/out"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FRAY_")}
    ran = subprocess.run(command, env={**environ, **environment}, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


def check(tmp_path: Path, files: list[str], corpus: dict[str, str]) -> None:
    assert files == [f"{tmp_path}/out/output-{shard:05d}.jsonl.gz" for shard in range(SHARDS)]
    lines = [line for file in files for line in gzip.decompress(Path(file).read_bytes()).splitlines()]
    found = {row["id"]: (row["text"], row["token_count"]) for row in map(json.loads, lines)}
    counted = {name: (text.lower(), len(text.split())) for name, text in corpus.items()}
    assert found == {name: row for name, row in counted.items() if row[1] > 10}


def test_on_threads(tmp_path: Path, corpus: dict[str, str]) -> None:
    check(tmp_path, run_example(tmp_path), corpus)


def test_on_a_root_with_two_agents(tmp_path: Path, corpus: dict[str, str]) -> None:
    root = tmp_path / "root"
    on_cluster(root, lambda core: core.store.learn_clock())
    with agents(str(root), tmp_path / "work", count=2):
        check(tmp_path, run_example(tmp_path, FRAY_CLUSTER_SPEC=str(root)), corpus)
