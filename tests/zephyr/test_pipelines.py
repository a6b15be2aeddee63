"""Real Zephyr, unchanged: the same pipelines in threads of this process, on two agents and on Ray."""

from __future__ import annotations

import gzip
import json
import os
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import release
from release import NEW, Dataset, ZephyrContext, count, inline, load_jsonl, zephyr_worker_ctx

from fray.client import Client, StorageClient
from fray.cluster import StorageCluster
from fray.local_backend import LocalClient
from tests.support.agents import agents, on_cluster
from tests.support.waiting import PATIENCE

# The workers cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(release)

DOCUMENTS, FILES = 120, 6


@pytest.fixture(scope="module", params=["threads", "agents", *(["ray"] if find_spec("ray") else [])])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    if request.param == "ray":
        yield from ray_client()
        return
    if request.param == "threads":
        client = LocalClient()
        yield client
        client.shutdown(wait=False)
        return
    place = tmp_path_factory.mktemp("cluster")
    root = place / "root"
    on_cluster(root, lambda core: core.store.learn_clock())
    with agents(str(root), place / "work", count=2, cores=3):
        yield StorageClient(StorageCluster(str(root)))


def ray_client() -> Iterator[Client]:
    """A client of a Ray of this machine alone, which ends with it."""
    from fray.backends.ray import RayClient
    from tests.support.ray_nodes import local_ray

    with local_ray(head_node=1):  # Zephyr's coordinator runs here
        client = RayClient()
        yield client
        client.shutdown()


@pytest.fixture
def context(client: Client, tmp_path: Path) -> ZephyrContext:
    return ZephyrContext(
        client=client,
        max_workers=3,
        name="test",
        chunk_storage_prefix=str(tmp_path / "chunks"),
        stage_runner_factory=inline(),
        max_execution_retries=2,
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JSONL files of documents, some with equal words."""
    folder = tmp_path_factory.mktemp("source")
    for number in range(FILES):
        with gzip.open(folder / f"part-{number}.jsonl.gz", "wt") as out:
            for i in range(number, DOCUMENTS, FILES):
                out.write(json.dumps({"id": i, "text": f"Document {i % 7}", "kind": "even" if i % 2 == 0 else "odd"}))
                out.write("\n")
    return folder


def written(folder: Path) -> list[dict[str, Any]]:
    texts = [gzip.decompress(path.read_bytes()) for path in sorted(folder.glob("*.jsonl.gz"))]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def documents(source: Path) -> Dataset:
    return Dataset.from_files(str(source / "*.jsonl.gz")).flat_map(load_jsonl)


def met(folder: Path, count: int) -> int:
    """This process's id. Waits until `count` processes have come here, so one that starts late finds work."""
    (folder / str(os.getpid())).touch()
    deadline = time.monotonic() + PATIENCE
    while len(list(folder.iterdir())) < count and time.monotonic() < deadline:
        time.sleep(0.02)
    return os.getpid()


def test_files_to_files_in_processes_of_their_own(
    client: StorageClient, context: ZephyrContext, source: Path, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    count = 1 if isinstance(client, LocalClient) else 2
    pipeline = (
        documents(source)
        .filter(lambda doc: doc["id"] % 3 == 0)
        .map(lambda doc: {**doc, "text": doc["text"].lower(), "pid": met(here, count)})
        .write_jsonl(str(tmp_path / "out-{shard:05d}-of-{total:05d}.jsonl.gz"))
    )
    files = context.execute(pipeline).results
    assert [Path(name).name for name in files] == [f"out-{i:05d}-of-{FILES:05d}.jsonl.gz" for i in range(FILES)]
    found = written(tmp_path)
    assert sorted(doc["id"] for doc in found) == list(range(0, DOCUMENTS, 3))
    assert all(doc["text"] == f"document {doc['id'] % 7}" for doc in found)
    pids = {doc["pid"] for doc in found}
    if isinstance(client, LocalClient):
        assert pids == {os.getpid()}
    else:
        assert len(pids) > 1
        assert os.getpid() not in pids


def test_group_by_and_reduce(context: ZephyrContext, source: Path) -> None:
    sizes = documents(source).group_by(
        key=lambda doc: doc["kind"], reducer=lambda kind, docs: {"kind": kind, "ids": sum(doc["id"] for doc in docs)}
    )
    found = {row["kind"]: row["ids"] for row in context.execute(sizes).results}
    assert found == {"even": sum(range(0, DOCUMENTS, 2)), "odd": sum(range(1, DOCUMENTS, 2))}


def test_a_value_reduced_from_all(context: ZephyrContext, source: Path) -> None:
    assert list(context.execute(documents(source).map(lambda doc: doc["id"]).reduce(sum)).results) == [
        sum(range(DOCUMENTS))
    ]


def test_deduplicate(context: ZephyrContext, source: Path) -> None:
    found = context.execute(documents(source).deduplicate(key=lambda doc: doc["text"])).results
    assert sorted(doc["text"] for doc in found) == [f"Document {i}" for i in range(7)]


def test_shared_data_and_counters(context: ZephyrContext, source: Path) -> None:
    context.put("wanted", {3, 5})

    def is_wanted(doc: dict[str, Any]) -> bool:
        count("seen")
        return doc["id"] % 7 in zephyr_worker_ctx().get_shared("wanted")

    ran = context.execute(documents(source).filter(is_wanted))
    assert sorted(doc["id"] for doc in ran.results) == [i for i in range(DOCUMENTS) if i % 7 in (3, 5)]
    assert ran.counters["seen"] == DOCUMENTS


def test_zephyrs_own_choice_of_runner_works(client: StorageClient, tmp_path: Path) -> None:
    """In threads it runs shards in place, elsewhere each in a subprocess of the worker."""
    context = ZephyrContext(client=client, max_workers=2, name="own", chunk_storage_prefix=str(tmp_path))
    pids = context.execute(Dataset.from_list([1, 2]).map(lambda item: os.getpid())).results
    assert (set(pids) == {os.getpid()}) == isinstance(client, LocalClient)


class Mistake(ValueError):
    """The exception that users' functions raise."""


def test_an_exception_of_the_users_function_reaches_the_driver_as_it_would_elsewhere(context: ZephyrContext) -> None:
    def fail(item: int) -> int:
        raise Mistake(f"no {item}")

    context.max_shard_failures = 1
    with pytest.raises(RuntimeError, match="no 1"):
        context.execute(Dataset.from_list([1]).map(fail))


if NEW:  # the older release has no shared pool

    def test_one_pool_serves_several_pipelines(context: ZephyrContext) -> None:
        with context as pool:
            assert list(pool.execute(Dataset.from_list([1, 2, 3]).map(lambda item: item * 2)).results) == [2, 4, 6]
            assert list(pool.execute(Dataset.from_list([4]).map(lambda item: item * 2)).results) == [8]
