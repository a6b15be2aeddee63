"""`fray queue`."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fray.cli import cli
from fray.cluster import StorageCluster
from fray.errors import NameTaken
from fray.queue import FileQueue
from fray_coordinator import worker_pools
from fray_layouts.queue_records import QueueRecord


class Shell:
    """Runs `fray queue` on a cluster."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, *words: str, code: int = 0, stdin: str | None = None) -> Result:
        result = CliRunner(env={"FRAY_CLUSTER_SPEC": str(self.root)}).invoke(cli, ["queue", *words], input=stdin)
        assert result.exit_code == code, result.output
        return result

    def lines(self, *words: str) -> list[Any]:
        return [json.loads(line) for line in self(*words).stdout.splitlines()]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "root")


def test_items_in_and_out(shell: Shell) -> None:
    shell("push", "work", "1", '{"a": [2]}', '"three"')
    shell("push", "work", stdin='4\n\n"five"\n')
    assert shell.lines("peek", "work", "-n", "2") == [1, {"a": [2]}]
    stat = json.loads(shell("stat", "work", "--json").stdout)
    assert (stat["available"], stat["pending"], stat["dead_letters"]) == (5, 0, 0)
    assert re.search(r"^oldest +\d+\.\ds$", shell("stat", "work").stdout, re.MULTILINE)
    assert shell.lines("pop", "work", "-n", "4") == [1, {"a": [2]}, "three", 4]
    assert shell.lines("pop", "work") == ["five"]
    assert shell("pop", "work", code=1).stdout == ""
    assert json.loads(shell("ls", "--json").stdout) == [{"namespace": "default", "name": "work"}]
    with FileQueue[Any](shell.root, name="work", namespace="team") as queue:
        queue.push({"from": "python"})
    assert shell.lines("pop", "work", "--namespace", "team") == [{"from": "python"}]


def test_the_command_alone_lists_the_queues(shell: Shell) -> None:
    shell("push", "work", "1")
    assert shell().stdout == shell("ls").stdout == "NAMESPACE  QUEUE\ndefault    work\n"


def test_dead_letters_and_purge(shell: Shell) -> None:
    with FileQueue[Any](shell.root, name="work", max_deliveries=1) as queue:
        queue.push_many(["bad", "good"], batch=1)
        queue.release(queue.pop() or pytest.fail("nothing there"))
        queue.done(queue.pop() or pytest.fail("nothing there"))
    (letter,) = shell.lines("peek", "work", "--dead")
    assert letter == {"item": "bad", "reason": "given up after 1 deliveries", "deliveries": 1}
    assert re.search(r"^dead letters +1$", shell("stat", "work").stdout, re.MULTILINE)
    assert shell("redrive", "work").stdout == "1 items pushed again\n"
    assert shell.lines("peek", "work") == ["bad"]
    assert "Go on?" in shell("purge", "work", stdin="n\n", code=1).output
    assert shell("purge", "work", "--yes").stdout == "1 items purged\n"
    assert shell.lines("peek", "work") == []


class Harmful:
    """Unpickling it ends the process."""

    def __reduce__(self) -> Any:
        return os._exit, (7,)


def test_nothing_of_a_pickled_item_is_run(shell: Shell, tmp_path: Path) -> None:
    with FileQueue[Any](tmp_path / "own") as queue:
        queue.push_many([Harmful(), {"plain": 1}])
    harmful, plain = shell.lines("peek", f"{tmp_path}/own")
    assert harmful.startswith("<pickle, ")
    assert plain == {"plain": 1}


def test_a_removed_queue_leaves_nothing_and_its_name_is_free(shell: Shell) -> None:
    with FileQueue[Any](shell.root, name="work", max_deliveries=1) as queue:
        queue.push_many([1, 2, b"x" * 100_000])
        queue.release(queue.pop() or pytest.fail("nothing there"))
        queue.done(queue.pop() or pytest.fail("nothing there"))
    shell("push", "other", "1")
    with StorageCluster(str(shell.root)) as cluster:
        with pytest.raises(NameTaken, match="fray queue rm"):
            cluster.run(lambda core: worker_pools.create(core, "default", "work", QueueRecord()))
        assert "Go on?" in shell("rm", "work", stdin="n\n", code=1).output
        shell("rm", "work", "--yes")
        assert cluster.run(lambda core: core.store.list("queues/default/work~")) == []
        assert json.loads(shell("ls", "--json").stdout) == [{"namespace": "default", "name": "other"}]
        assert "no such queue" in shell("rm", "work", "--yes", code=1).output
        cluster.run(lambda core: worker_pools.create(core, "default", "work", QueueRecord()))
    assert "worker pool" in shell("rm", "work", "--yes", code=1).output
    assert "by removing that root" in shell("rm", f"{shell.root}/own", "--yes", code=1).output


@pytest.mark.parametrize(
    "words", [["pop", "work", "-n", "-3"], ["peek", "work", "-n", "0"], ["redrive", "work", "-n", "-1"]]
)
def test_how_many_is_at_least_one(shell: Shell, words: list[str]) -> None:
    shell("push", "work", "1")
    assert "x>=1" in shell(*words, code=2).output
    assert shell.lines("peek", "work") == [1]


def test_a_wrong_command_says_what_is_wrong(shell: Shell) -> None:
    shell("push", "other", "1")
    assert "write JSON" in shell("push", "work", "three", code=1).output
    for words in (["stat", "work"], ["peek", f"{shell.root}/nothing"], ["pop", "work"]):
        assert "there is no" in shell(*words, code=1).output.lower()
    assert "no slashes and no dots" in shell("stat", "a.b", code=1).output
