"""Pools of machines from the command line and from Python, on a root without agents."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from fray.machine_pools import get_pool, read_fray_file, set_pool, written_pool
from fray_coordinator.core import open_core
from fray_coordinator.store.interface import ABSENT
from fray_layouts.errors import InvalidInput
from fray_layouts.object_keys import AgentKeys, CoordinatorKeys, MachineKeys
from fray_layouts.pool_file import parse_pool
from fray_layouts.records import AgentRecord, MachineRecord, PoolScaling, ScalerRecord, ZoneAnswer
from tests.support.shell import Shell
from tests.support.waiting import wait_until

TPU = [
    "--provider",
    "tpu",
    "--image",
    "lab/fray",
    "--type",
    "v5litepod-16",
    "--zone",
    "us-east5-a",
    "--zone",
    "europe-west4-b",
]
FILE = """
pools:
  train:
    provider: tpu
    machine_type: v5litepod-16
    zones: [us-east5-a, europe-west4-b]
    spot: true
    max: 4
    max_hourly_cost: 60
    tpu: {project: p, image: lab/fray}
  small:
    provider: local
    max: 2
    capacity: {cpu: 1, memory: 2GB}
"""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "root")


def put_agent(shell: Shell, agent: AgentRecord) -> None:
    async def put() -> None:
        core = await open_core(str(shell.root))
        await core.records.put(AgentKeys.key(agent.id), agent, ABSENT)
        await core.store.close()

    asyncio.run(put())


def put_machine(shell: Shell, machine: MachineRecord, boot_log: bytes = b"") -> None:
    async def put() -> None:
        core = await open_core(str(shell.root))
        await core.records.put(MachineKeys.key(machine.pool, machine.name), machine, ABSENT)
        if boot_log:
            await core.store.put(MachineKeys.boot_log(machine.pool, machine.name, 0), boot_log, ABSENT)
        await core.store.close()

    asyncio.run(put())


def test_the_refusals_of_a_pools_zones_are_listed_with_it(shell: Shell) -> None:
    shell("pool", "set", "train", *TPU)
    refused = ZoneAnswer(kind="denied", text="tpu.nodes.create is missing: grant roles/tpu.admin")
    scaler = ScalerRecord(pools={"train": PoolScaling(limit="zones", zones={"us-east5-a": refused})})

    async def put() -> None:
        core = await open_core(str(shell.root))
        await core.records.put(CoordinatorKeys.scaler, scaler, ABSENT)
        await core.store.close()

    asyncio.run(put())
    assert "denied in us-east5-a: tpu.nodes.create is missing: grant roles/tpu.admin" in shell("pool", "ls").stdout


def test_a_pool_is_set_and_changed_by_options(shell: Shell) -> None:
    shell("pool", "set", "train", *TPU, "--max", "4", "--project", "p", "--label", "disk=ssd", "--cpu", "2.5")
    shown = shell.json("pool", "set", "train", "--min", "1", "--spot", "--memory", "8GB")["pools"]["train"]
    assert shown == {
        "provider": "tpu",
        "machine_type": "v5litepod-16",
        "zones": ["us-east5-a", "europe-west4-b"],
        "spot": True,
        "min": 1,
        "max": 4,
        "labels": {"disk": "ssd"},
        "tpu": {"project": "p", "image": "lab/fray"},
        "capacity": {"cpu": 2.5, "memory": 8 * 10**9},
    }
    assert yaml.safe_load(shell("pool", "show", "train").stdout) == {"pools": {"train": shown}}


def test_a_pools_settings_of_another_provider_go_with_that_provider(shell: Shell) -> None:
    shell("pool", "set", "train", *TPU, "--max", "4", "--project", "p")
    assert shell.json("pool", "set", "train", "--provider", "local")["pools"] == {
        "train": {"provider": "local", "max": 4}
    }
    spec = get_pool(str(shell.root), "train")
    assert spec is not None
    assert len(spec.zones) == 1, "the host that a local pool is on"
    put_machine(shell, MachineRecord(pool="train", name="m1", state="up", provider="local"))
    assert "another provider or project will be removed: m1" in shell("pool", "set", "train", *TPU).stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["set", "a", "--max", "1"], "provider: None is not accepted; the field is missing"),
        (["set", "a", "--provider", "azure"], "provider: 'azure' is not accepted; there are local"),
        (["set", "a", "--provider", "local", "--min", "2"], "it is above max, which is 1"),
        (["set", "a", "--provider", "local", "--zone", "z"], "a local pool is on this machine"),
        (["set", "a", "--provider", "local", "--label", "x"], "give name=value"),
        (["set", "a/b", "--provider", "local"], "pool: 'a/b' is not accepted"),
        (["set", "a", *TPU, "--max-cost", "1"], "one machine costs up to $24.96 an hour; raise it"),
        (
            ["set", "a", *TPU, "--max-cost", "30", "--max", "4", "--min", "2"],
            "so many machines cost up to $49.92 an hour",
        ),
        (
            ["set", "a", *TPU, "--zone", "mars-north1-a", "--max-cost", "30"],
            "max_hourly_cost needs it, as the price of",
        ),
        (["show", "a"], "there is no such pool of machines"),
        (["rm", "a"], "there is no such pool of machines"),
    ],
)
def test_a_mistake_in_a_pool_is_reported_in_one_line(shell: Shell, words: list[str], message: str) -> None:
    shell("init")
    assert message in shell("pool", *words, code=1).stderr
    assert shell.json("pool", "ls") == []


def test_a_price_that_nobody_knows_is_told(shell: Shell) -> None:
    told = shell("pool", "set", "a", *TPU[:6], "--zone", "us-esat5-a").stderr
    assert "the price of v5litepod-16 in us-esat5-a is unknown; did you mean us-east5-a?" in told
    assert "hourly_cost" in told
    assert shell("pool", "set", "a", "--cost", "7").stderr == ""


def test_a_cluster_is_made_with_the_pools_of_a_file(shell: Shell) -> None:
    path = shell.root.parent / "fray.yaml"
    path.write_text(FILE)
    done = shell("up")
    assert done.stdout.splitlines()[-3:] == [
        f"    export FRAY_CLUSTER_SPEC={shell.root}",
        "    fray run --pool small -- echo hello",
        "    fray status echo",
    ]
    listed = {pool["pool"]: pool for pool in shell.json("pool", "ls")}
    assert (listed["train"]["max_hourly_cost"], listed["small"]["machines"]) == (60.0, 0)
    assert "us-east5-a europe-west4-b" in shell("pool", "ls").stdout
    path.write_text(FILE.replace("max: 4", "max: 5"))
    assert shell.json("up", str(shell.root), "-f", str(path))["pools"] == ["small", "train"]
    assert shell.json("pool", "show", "train")["pools"]["train"]["max"] == 5


def test_environments_of_a_file_are_stored_with_their_project(shell: Shell) -> None:
    project = shell.root.parent / "project"
    project.mkdir()
    (project / "requirements.txt").write_text("six\n")
    (shell.root.parent / "fray.yaml").write_text(
        "pools:\n  a:\n    provider: local\n    environments: [{workspace: project}, {pip_packages: [numpy]}]\n"
    )
    shell("up")
    named = shell.json("env", "ls", "--pool", "a")
    assert named[0]["workspace"]["dependencies"] == "requirements.txt"
    assert named[1]["pip_packages"] == ["numpy"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pools: [", "fray.yaml, line 1, column 9: '...' is not accepted; it is not YAML"),
        (
            "pools:\n  a: {provider: local}\n  a: {provider: local}",
            "fray.yaml: a: '...' is not accepted; it is there twice",
        ),
        ("pools: {a: {provider: local, idle_timeout: 5m}}", "no such field; it is idle_seconds"),
        (
            "pools: {a: {provider: local, mix: 3}}",
            "pools.a.mix: 3 is not accepted; there is no such field; did you mean",
        ),
        (FILE.replace("60", "3"), "pools.train.max_hourly_cost"),
        (FILE.replace("us-east5-a", "us-east5"), "pools.train.zones: 'us-east5' is not accepted"),
    ],
)
def test_a_wrong_file_makes_no_cluster(shell: Shell, text: str, message: str) -> None:
    (shell.root.parent / "fray.yaml").write_text(text)
    assert message in shell("up", code=1).stderr
    assert not shell.root.exists()


def test_a_file_that_is_not_there_is_told(shell: Shell) -> None:
    assert "there is no such file" in shell("up", "-f", "nothing.yaml", code=1).stderr


def test_an_empty_root_is_told_how_to_go_on(shell: Shell) -> None:
    assert shell.json("up")["next"][1:] == ["fray agent", "fray run -- echo hello"]


def test_the_first_agent_is_started_and_goes_on(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(shell.root.parent))
    done = shell.json("up", "--agent")
    try:
        assert done["next"][1] == "fray run -- echo hello"
        wait_until(lambda: [agent["state"] for agent in shell.json("agents")] == ["live"])
    finally:
        os.kill(done["agent_pid"], signal.SIGTERM)
        os.waitpid(done["agent_pid"], 0)


def test_machines_are_listed_with_their_cost(shell: Shell) -> None:
    shell("pool", "set", "train", *TPU)
    gone = MachineRecord(
        pool="train", name="m1", state="gone", hourly_cost=10.0, wanted_at=1000.0, billed_at=1000.0, ended_at=8200.0
    )
    failed = MachineRecord(pool="train", name="m2", state="up", zone="us-east5-a", error="pip failed")
    put_machine(shell, gone)
    put_machine(shell, failed, b"no route to host\n")
    [listed] = shell.json("machines")
    assert (listed["name"], listed["error"], listed["cost_so_far"]) == ("m2", "pip failed", None)
    assert [each["cost_so_far"] for each in shell.json("machines", "--all")] == [20.0, None]
    assert "$20.00" in shell("machines", "-a").stdout
    assert "no route to host" in shell("machines", "m2").stdout
    assert shell.json("machines", "m2")["boot_logs"] == {"0": "no route to host\n"}
    assert "2 machines begin with that" in shell("machines", "m", code=1).stderr
    assert "lists all machines" in shell("machines", "x", code=1).stderr
    assert "only a machine whose state is stray" in shell("machines", "m2", "--delete", code=1).stderr
    assert shell("machines", "--delete", code=2)
    assert shell.json("pool", "ls")[0]["machines"] == 1


def test_a_pool_that_has_machines_is_not_forgotten(shell: Shell) -> None:
    shell("pool", "set", "train", *TPU)
    put_machine(shell, MachineRecord(pool="train", name="m1", state="up"))
    assert "it has machines (m1)" in shell("pool", "rm", "train", code=1).stderr
    shell("pool", "set", "idle", "--provider", "local")
    shell("pool", "rm", "idle")
    assert [pool["pool"] for pool in shell.json("pool", "ls")] == ["train"]


def test_down_closes_the_pools_drains_and_lists_the_rest(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere")
    (shell.root.parent / "fray.yaml").write_text(FILE)
    shell("up")
    put_machine(shell, MachineRecord(pool="train", name="m1", state="up"))
    put_machine(shell, MachineRecord(pool="train", name="m2", state="gone"))
    put_agent(shell, AgentRecord(id="of-machine", host="h", pool="train", interval=60.0, machine="m1"))
    put_agent(shell, AgentRecord(id="of-people", host="h", pool="train", interval=60.0))
    done = shell.json("down", str(shell.root))
    assert "no credentials of Google Cloud" in done.pop("problems")["train"]
    assert done == {
        "pools": ["small", "train"],
        "draining": ["of-machine"],
        "machines": ["train/m1"],
        "not_scaled": [],
        "agents": ["of-people"],
        "unattended": True,
    }
    assert {agent["id"]: agent["state"] for agent in shell.json("agents")} == {
        "of-machine": "draining",
        "of-people": "live",
    }
    kept = shell.json("pool", "show", "train")["pools"]["train"]
    assert (kept["max"], kept["max_hourly_cost"]) == (0, 60.0)
    text = shell("down").stdout
    assert "1 machine is left: train/m1" in text
    assert "pool train cannot be scaled: " in text
    assert "no other process removes them" in text
    shell("up")
    assert shell.json("pool", "show", "train")["pools"]["train"]["max"] == 4


def test_down_waits_until_the_machines_are_gone_and_scales_if_nobody_does(shell: Shell) -> None:
    (shell.root.parent / "fray.yaml").write_text("pools: {small: {provider: local}}")
    shell("up")
    put_machine(shell, MachineRecord(pool="small", name="m2", state="deleting", provider="local"))
    assert "no machine is left" in shell("down", "--wait", "60").stdout


def test_down_says_how_machines_of_pools_that_are_not_described_here_are_removed(shell: Shell) -> None:
    shell("pool", "set", "small", "--provider", "local")
    put_machine(shell, MachineRecord(pool="small", name="m2", state="deleting", provider="local"))
    assert "pool small is in no fray.yaml here, so `fray scale small` removes its machines" in shell("down").stdout
    assert [row["state"] for row in shell.json("machines")] == ["deleting"]
    assert [*shell.json("scale", "--once", "small")["pools"]] == ["small"]
    assert shell.json("machines") == []


def test_scale_is_told_which_pools(shell: Shell) -> None:
    shell("pool", "set", "small", "--provider", "local")
    assert "name the pools to scale" in shell("scale", "--once", code=1).stderr
    (shell.root.parent / "fray.yaml").write_text("pools: {small: {provider: local}, other: {provider: local}}")
    assert [*shell.json("scale", "--once")["pools"]] == ["small"]
    shell("pool", "set", "small", "--max", "9")
    assert shell.json("scale", "--once")["pools"] == {}, "the file says otherwise"
    assert [*shell.json("scale", "--once", "small")["pools"]] == ["small"]


def test_programs_set_and_read_pools(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    spec = set_pool(
        root, "train", provider="tpu", machine_type="v6e-8", zones=["us-east5-a"], max=2, tpu={"image": "i"}
    )
    assert get_pool(root, "train") == spec
    assert get_pool(root, "other") is None
    with pytest.raises(InvalidInput, match="zone"):
        set_pool(root, "train", provider="tpu", machine_type="v6e-8", zone="us-east5-a")


@pytest.mark.parametrize("name", ["train", "small"])
def test_a_pool_is_written_as_it_was_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "fray.yaml").write_text(FILE)
    spec = read_fray_file(tmp_path / "fray.yaml")[name].provisioning
    written: dict[str, Any] = json.loads(json.dumps(written_pool(spec)))
    assert parse_pool(written).provisioning == spec


@pytest.mark.parametrize("zones", [["z"], []])
def test_refusals_of_a_provider_are_reported_where_people_look(shell: Shell, zones: list[str]) -> None:
    create = ["sh", "-c", "echo no account >&2; exit 77"]
    pool = {"provider": "command", "zones": zones, "capacity": {"cpu": 1, "memory": "1GB"}, "hourly_cost": 1}
    pool["command"] = {"list": ["true"], "create": create, "delete": ["true"]}
    (shell.root.parent / "fray.yaml").write_text(json.dumps({"pools": {"a": pool}}))
    shell("up")
    job = shell("run", "--pool", "a", "--detach", "--", "true").stdout.strip()
    kind = "denied in z" if zones else "denied"
    assert f"{kind}: the command that creates machines" in shell("scale", "--once").stdout
    assert f"no live agent in pool a: {kind} (the command" in " ".join(shell("status", job).stdout.split())
    assert "no account" in shell("machines", "--all").stdout
