"""Mistakes with gangs, slices and places, each with the full text that a person gets for it."""

from __future__ import annotations

import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fray import GpuConfig, InvalidInput, JobRequest, ResourceConfig, StorageCluster, TpuConfig
from fray.tpu import run_on_pod, run_on_pod_multislice_resumable
from tests.support.messages import last_error_line, normalized
from tests.support.shell import Shell
from tests.support.waiting import wait_until

TYPED = [
    ("run --replicas 0 -- true", "--replicas: 0 is not accepted; give a number of at least 1"),
    ("run --replicas -1 -- true", "--replicas: -1 is not accepted; give a number of at least 1"),
    ("run --replicas 1000000 -- true", "--replicas: 1000000 is not accepted; give a number of at most 10000"),
    (
        "run --tpu v5litepod-12 -- true",
        "--tpu: 'v5litepod-12' is not accepted; there are v5litepod-1, v5litepod-2, v5litepod-4, v5litepod-8, "
        "v5litepod-16, v5litepod-32, v5litepod-64, v5litepod-128, v5litepod-256",
    ),
    (
        "run --tpu v5litepod-16 --replicas 6 -- true",
        "--replicas: 6 is not accepted; a slice of v5litepod-16 has 4 virtual machines, each with its own process; "
        "give a multiple of 4, or leave it out for one slice",
    ),
    ("run --tpu v5litepod-16 --gpus 1 -- true", "--gpus and --tpu cannot be combined; give one of them"),
    (
        "submit FILE '{name: a, entrypoint: {command: [ls]}, replicas: 2, slices: 2}'",
        "job.yaml: slices: 2 is not accepted; only a TPU comes in slices; name a TPU as the device, or leave it out",
    ),
    (
        "submit FILE '{name: a, entrypoint: {command: [ls]}, resources: {device: {kind: tpu, variant: v5litepod-16}}}'",
        "job.yaml: replicas: 1 is not accepted; give slices: 1 and replicas: 4 for 1 slice of v5litepod-16",
    ),
    (
        "submit FILE '{name: a, entrypoint: {command: [ls]}, resources: {device: {kind: tpu, variant: v5-16}}}'",
        "job.yaml: resources.device.variant: 'v5-16' is not accepted; there are v4-16, v5p-16, v5litepod-16, v6e-16 "
        "and others",
    ),
    (
        "submit FILE '{name: a, entrypoint: {command: [ls]}, replicas: 2, same: rack}'",
        "job.yaml: same: 'rack' is not accepted; give zone, region, or nothing",
    ),
    (
        "submit FILE '{name: a, entrypoint: {command: [ls]}, replicas: 2, actor: true}'",
        "job.yaml: replicas: 2 is not accepted; an actor is one process; create a group of actors instead",
    ),
]
"""What is typed where there is no cluster. After FILE comes what it holds."""


@pytest.mark.parametrize(("words", "message"), TYPED, ids=lambda text: text[:60])
def test_a_mistyped_command_gets_its_message(words: str, message: str, tmp_path: Path) -> None:
    typed, file, content = words.partition("FILE ")
    parts = shlex.split(typed)
    if file:
        (tmp_path / "job.yaml").write_text(shlex.split(content)[0])
        parts.append("job.yaml")
    answer = last_error_line(parts, tmp_path, FRAY_CLUSTER_SPEC=str(tmp_path / "root") if file else "local")
    assert answer == message


def train() -> None:
    pass


WRITTEN: list[tuple[Callable[[StorageCluster], object], str]] = [
    (
        lambda c: c.launch(JobRequest("train", train, replicas=0)),
        "replicas: 0 is not accepted; give a number of at least 1",
    ),
    (
        lambda c: c.launch(JobRequest("train", train, ResourceConfig(replicas=2), replicas=3)),
        "replicas: 3 is not accepted; resources.replicas is 2 (with_tpu sets it to the number of virtual machines); "
        "leave one of the two out",
    ),
    (
        lambda c: c.launch(JobRequest("train", train, ResourceConfig(device=TpuConfig("v5litepod-17")))),
        "tpu_type: 'v5litepod-17' is not accepted; there are v5litepod-1, v5litepod-2, v5litepod-4, v5litepod-8, "
        "v5litepod-16, v5litepod-32, v5litepod-64, v5litepod-128, v5litepod-256",
    ),
    (
        lambda c: ResourceConfig.with_tpu("v5litepod-16", slice_count=0),
        "slice_count: 0 is not accepted; ask for at least 1 slice",
    ),
    (
        lambda c: ResourceConfig.with_tpu(["v5litepod-16", "v5litepod-32"]),
        "tpu_type: ['v5litepod-16', 'v5litepod-32'] is not accepted; all types must have the same number of "
        "machines, and of chips per machine",
    ),
    (
        lambda c: c.launch(
            JobRequest(
                "train", train, ResourceConfig(device=GpuConfig("h100"), device_alternatives=["a100"]), actor=True
            )
        ),
        "resources.device_alternatives: ['a100'] is not accepted; an actor is for one device; leave them out",
    ),
    (
        lambda c: c.launch(JobRequest("train", train, ResourceConfig(labels=["disk=ssd"]))),  # type: ignore[arg-type]
        "resources.labels: ['disk=ssd'] is not accepted; give names with their values, such as {'disk': 'ssd'}",
    ),
    (
        lambda c: c.launch(JobRequest("train", train, ResourceConfig(regions="eu"))),
        "resources.regions: 'eu' is not accepted; give a list of strings",
    ),
    (
        lambda c: run_on_pod(train, "v5litepod-16", num_slices=0),
        "num_slices: 0 is not accepted; ask for at least 1 slice",
    ),
    (
        lambda c: run_on_pod_multislice_resumable(train, "v5litepod-16", num_slices=[]),
        "num_slices: [] is not accepted; name at least one number of slices",
    ),
]


@pytest.mark.parametrize(("mistake", "message"), WRITTEN, ids=[text[:40] for _, text in WRITTEN])
def test_a_mistake_in_a_program_gets_its_message(mistake: Callable[[StorageCluster], object], message: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        mistake(StorageCluster("memory://gangs"))
    assert str(raised.value) == message


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A root with an agent of two cores that states no zone."""
    shell = Shell(tmp_path_factory.mktemp("place") / "root")
    shell("init")
    agent = shell.start("agent", "--cpu", "2", "--memory", "2GB", stdout=subprocess.PIPE)
    assert agent.stdout is not None
    agent.stdout.readline()
    yield shell
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(200) == 0


def test_an_impossible_gang_names_the_missing_resource(shell: Shell) -> None:
    (shell.root.parent / "zone.yaml").write_text("{name: zone, entrypoint: {command: [ls]}, replicas: 2, same: zone}")
    shell("submit", "zone.yaml")
    for words in ("--name three --replicas 3", "--name slice --tpu v5p-16"):
        shell.detached(*words.split(), "--", "true")
    (agent,) = shell.json("agents")
    waiting = {job["spec"]["name"]: normalized(*job["waiting"], AGENT=agent["id"]) for job in shell.json("ps")}
    assert waiting == {
        "zone": "no agent that could run it states its zone; start agents with --zone NAME",
        "three": "3 are wanted at once, and the only live agent of pool default that could run a replica has room for "
        "2; ask for less, or start more agents",
        "slice": "no live agent of pool default could ever run a replica of 2: AGENT (tpu-v5p-16: 4 wanted, none "
        "here); ask for less, or start an agent that has it",
    }
    shell("stop", "--all")


def test_a_replica_that_fails_is_told_with_its_host(shell: Shell) -> None:
    words = ["run", "--replicas", "2", "--", "sh", "-c", '[ "$FRAY_REPLICA" = 0 ] || { echo bad >&2; exit 3; }']
    last = last_error_line(words, shell.root.parent, FRAY_CLUSTER_SPEC=str(shell.root))
    host = shell.json("agents")[0]["host"]
    assert last.partition(" failed: ")[2] == f"exited: replica 1 on {host}: exit code 3: bad"


def test_a_replica_that_hangs_while_another_has_ended_is_told(shell: Shell) -> None:
    job = shell.detached("--name", "hangs", "--replicas", "2", "--", "sh", "-c", '[ "$FRAY_REPLICA" = 0 ] || sleep 600')
    wait_until(lambda: shell.json("status", job)["exits"])
    shown = shell("status", job).stdout
    assert "replica 0 has ended (success), the others run" in shown
    for words, message in [
        (["logs", "--replica", "2", job], f"replica: 2 is not accepted; the replicas of {job} are 0 to 1"),
        (["result", job], f"job {job} has not ended; it is running. `fray logs -f {job}` waits for its end"),
    ]:
        assert last_error_line(words, shell.root.parent, FRAY_CLUSTER_SPEC=str(shell.root)) == message
    shell("stop", job)
