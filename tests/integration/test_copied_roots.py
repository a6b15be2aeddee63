"""Roots that were copied or moved: every command refuses them, until they are adopted or have their address."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from fray.cli import cli
from fray_agents.provisioning import identity
from fray_coordinator.actors.rpc_secrets import rpc_keys
from fray_coordinator.core import Core, open_core
from tests.support.shell import Shell

T = TypeVar("T")


def on(root: Path, work: Callable[[Core], Awaitable[T]]) -> T:
    async def run() -> T:
        core = await open_core(str(root))
        try:
            return await work(core)
        finally:
            await core.store.close()

    return asyncio.run(run())


async def identity_of(core: Core) -> str:
    return core.identity


def copy_of(root: Path) -> Path:
    return Path(shutil.copytree(root, root.with_name("copy"), symlinks=True))


def objects_of(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file() and ".fray" not in path.parts)
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


COMMANDS = [
    *(
        "actors",
        "agent",
        "agents",
        "cat j-1/logs",
        "coordinate --once",
        "cost",
        "cp j-1/logs into",
        "ls j-1",
        "doctor",
        "down",
        "drain a-1",
        "fsck",
    ),
    *(
        "init",
        "logs j-1",
        "machines",
        "pool show p",
        "ps",
        "pull j-1",
        "queue ls",
        "reservations",
        "reserve --namespace n --cpu 1",
    ),
    *("result j-1", "retry j-1", "rotate", "run --no-workspace -- true", "scale --once", "status j-1", "stop j-1"),
    *("submit spec.json", "up -f fray.yaml"),
]


def test_each_command_is_tried() -> None:
    of_hosts = {"env"}
    tried = {command.split()[0] for command in COMMANDS}
    assert tried | of_hosts == set(cli.list_commands(None))  # type: ignore[arg-type]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_a_copy_and_says_what_to_do(command: str, empty: Shell) -> None:
    copy = copy_of(empty.root)
    (empty.root.parent / "fray.yaml").write_text("pools:\n  workers:\n    provider: local\n    max: 1\n")
    (empty.root.parent / "spec.json").write_text('{"name": "job", "entrypoint": {"command": ["true"]}}')
    before = objects_of(copy)
    done = Shell(copy)(*command.split(), code=1)
    assert f"fray init --adopt-copy file://{copy}" in done.output
    assert objects_of(copy) == before


def test_an_adopted_copy_is_a_cluster_of_its_own(empty: Shell) -> None:
    keys, known = on(empty.root, rpc_keys), on(empty.root, identity_of)
    for area in ("agents", "actors/default/counter", "machines/pool", "coordinator"):
        (empty.root / area).mkdir(parents=True, exist_ok=True)
        (empty.root / area / "one.json").write_text("{}")
    copy = copy_of(empty.root)
    told = empty("init", "--adopt-copy", str(copy))
    assert "fray: dropped 4 records of the original's agents, actors and machines" in told.stderr
    dropped = [
        path for area in ("agents", "actors", "machines", "coordinator") for path in copy.glob(f"{area}/**/*.json")
    ]
    assert dropped == []
    settings = json.loads((copy / "cluster.json").read_text())
    assert settings["addresses"] == [f"file://{copy.resolve()}"]
    assert settings["cluster_id"] not in ("", known.split()[0])
    assert {name for name, _ in on(copy, rpc_keys)}.isdisjoint(name for name, _ in keys)
    assert on(empty.root, identity_of) == known
    assert "it is no copy" in empty("init", "--adopt-copy", str(copy), code=1).stderr


def test_a_moved_cluster_keeps_its_identity(empty: Shell) -> None:
    keys, known, moved = on(empty.root, rpc_keys), on(empty.root, identity_of), empty.root.with_name("moved")
    empty.root.rename(moved)
    assert "--add-address" in empty("ps", "--root", str(moved), code=1).stderr
    for _ in range(2):
        assert empty.json("init", "--add-address", str(moved))["addresses"][1:] == [f"file://{moved.resolve()}"]
    assert on(moved, identity_of) == known
    assert on(moved, rpc_keys) == keys
    assert empty("init", "--add-address", "--adopt-copy", str(moved), code=2)
    assert empty("init", "--add-address", "--retention", "5", str(moved), code=2)
    assert "there is no cluster" in empty("init", "--add-address", str(moved / "none"), code=1).stderr


def test_what_lies_outside_has_another_name_and_key_even_if_the_address_was_changed_by_hand(empty: Shell) -> None:
    keys, ours, copy = on(empty.root, rpc_keys), on(empty.root, identity_of), copy_of(empty.root)
    settings = json.loads((copy / "cluster.json").read_text())
    (copy / "cluster.json").write_text(json.dumps(settings | {"addresses": [f"file://{copy.resolve()}"]}))
    same_names, theirs = on(copy, rpc_keys), on(copy, identity_of)
    assert [name for name, _ in same_names] == [name for name, _ in keys]
    assert {key for _, key in same_names}.isdisjoint(key for _, key in keys)
    assert identity.provider_name(ours, "pool", "m1") != identity.provider_name(theirs, "pool", "m1")
    assert not identity.is_of_pool(identity.machine_labels(ours, "pool", "m1", "m1"), theirs, "pool")
