"""The parts of the command line that need no cluster."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner

from fray.cli import cli
from fray.cli.commands.agent import capacity_of
from fray.cli.commands.submit import read_jobs
from fray.cli.cost_model import estimates, spent
from fray.cli.job_options import OF_FIELDS, WITHOUT_OPTION, spec_of, variables
from fray.cli.options import chosen_workspace, piped_input
from fray.cli.output import print_table
from fray.errors import InvalidInput
from fray.workspace.choice import WorkspaceChoice
from fray_agents.agent.claimer import REMOTE_POLL_BACKOFF
from fray_layouts.records import AgentRecord, ClusterSettings
from fray_layouts.spec import EnvironmentSpec, HealthCheckSpec, JobSpec, ResourceSpec
from fray_layouts.spec_parsing import parse_spec

NOTHING_GIVEN: dict[str, Any] = {
    option.parameter: () if option.settings.get("multiple") else None for option in OF_FIELDS.values()
} | {"gpus": None, "tpu": None}


def test_a_table_is_plain_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("JOB", "STATUS"), [("long-name", "ok"), ("x", "")])
    assert capsys.readouterr().out == "JOB        STATUS\nlong-name  ok\nx\n"


def test_a_table_on_a_terminal_cuts_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    job, reason = "job-with-a-long-name-1m82bpyja9eh90y", "waits for 4 cores: 2 are free"
    for width, lines in (
        ("80", [f"{job}  {reason}"]),
        ("64", [f"{job}  waits for 4 cores: 2 are", f"{' ' * 38}free"]),
        ("40", [job, f"    {reason}"]),
    ):
        monkeypatch.setenv("COLUMNS", width)
        print_table(("JOB", "REASON"), [(job, reason)])
        assert [line.rstrip() for line in capsys.readouterr().out.splitlines()][1:] == lines


@pytest.mark.parametrize("words", [("-it", "--", "bash"), ("--interactive", "bash"), ("-t", "--", "top")])
def test_a_job_has_no_terminal(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, ["run", *words])
    assert result.exit_code == 2
    assert "a job has no terminal" in result.output


@pytest.mark.parametrize("words", [("bash",), ("python3",)])
def test_a_program_that_would_wait_for_a_terminal_is_refused_at_one(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.isatty", lambda fd: fd == 0)
    result = CliRunner().invoke(cli, ["run", *words])
    assert result.exit_code == 2
    assert "needs a terminal, and a job has none" in result.output


def test_a_file_or_pipe_is_read_to_its_end_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"\0text")
    with open(tmp_path / "file") as file, open(os.devnull) as null:
        assert (piped_input(file.fileno()), piped_input(null.fileno())) == (b"\0text", b"")
    read, write = os.pipe()
    os.write(write, b"x" * 10)
    os.close(write)
    monkeypatch.setattr("fray.cli.options.MAX_BYTES", 9)
    with pytest.raises(InvalidInput, match="standard input"):
        piped_input(read)
    os.close(read)
    assert piped_input(read) == b""


HELP = """
import sys
from collections.abc import Iterator
from pathlib import Path
from fray.cli import cli
cli(["--help"], standalone_mode=False)
print([module for module in sys.modules if "commands." in module or module.startswith("fray_coordinator")])
"""


def test_help_names_every_command_without_importing_any() -> None:
    out = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True).stdout
    assert out.endswith("[]\n")
    assert all(f"  {name} " in out for name in ("run", "submit", "ps", "status", "logs", "result", "stop", "agent"))


def commands_of(group: click.Group, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command, also of those within groups."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands_of(command, (*before, name))
        else:
            yield (*before, name)


@pytest.mark.parametrize("words", list(commands_of(cli)), ids=" ".join)
def test_every_command_has_help_and_the_common_options(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, [*words, "--help"])
    assert result.exit_code == 0
    assert all(option in result.output for option in ("--root", "--json", "--debug"))


def test_options_of_run_become_the_spec() -> None:
    given = NOTHING_GIVEN | {
        "name": "train",
        "cpu": 2.5,
        "memory": "2GB",
        "gpus": "h100:8",
        "env": ("A=1=2",),
        "secret": ("B=x",),
        "extra": ("tpu",),
        "with": ("numpy>=2",),
        "image": "team/train:7",
        "pool": "fast",
        "priority": 7,
        "retries": 3,
        "timeout": 9.0,
    }
    spec = spec_of(("python", "x.py"), given)
    assert (spec.name, spec.entrypoint.command) == ("train", ["python", "x.py"])
    assert (spec.resources.cpu, spec.resources.memory) == (2.5, 2 * 10**9)
    assert spec.resources.device is not None
    assert (spec.resources.device.variant, spec.resources.device.count) == ("h100", 8)
    assert (spec.environment.env_vars, spec.environment.secret_env_vars) == ({"A": "1=2"}, {"B": "x"})
    brought = spec.environment
    assert (brought.extras, brought.pip_packages, brought.docker_image) == (["tpu"], ["numpy>=2"], "team/train:7")
    assert (spec.pool, spec.priority, spec.max_retries_failure, spec.timeout) == ("fast", 7, 3, 9.0)


def fields_of(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[str]:
    """The paths of all fields of a spec that people set, and for its three parts of their fields."""
    parts: dict[str, type[msgspec.Struct]] = {"resources": ResourceSpec, "environment": EnvironmentSpec}
    for name in struct.__struct_fields__:
        if name in parts and not prefix:
            yield from fields_of(parts[name], f"{name}.")
        else:
            yield f"{prefix}{name}"


def test_every_field_of_a_job_has_an_option_or_a_reason() -> None:
    fields = list(fields_of(JobSpec))
    assert sorted(fields) == sorted([*OF_FIELDS, *WITHOUT_OPTION])
    flags = [flag for option in OF_FIELDS.values() for flag in option.flags]
    assert len(set(flags)) == len(flags)
    assert all(option.help.endswith(".") for option in OF_FIELDS.values())


EVERY_OPTION = (
    "run --name n --id i --cpu 2 --hard-cpu --memory 2GB --disk 3GB --gpus a100:2 --or h100 --replicas 2 --spread "
    "--same zone --pool p --no-preemptible --region r --region s --zone z --label disk=ssd --env A=1 --secret B=2 "
    "--extra e --group dev --with w --python >=3.11 --image t/i:1 --port http --output out/** --log-limit 2GB "
    "--health-check 8080/up,interval=5s,failures=2 --retries 1 --preemption-retries 2 --timeout 10m "
    "--pending-timeout 1h --grace 20 --outage stop --priority 7 --namespace space --user me --parent job-1 --detached "
    "-- train --lr 1"
)


def test_every_option_sets_its_field(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[JobSpec] = []

    def submit(app: object, spec: JobSpec, simulates: bool, stdin: bytes) -> int:
        made.append(spec)
        return 0

    monkeypatch.setattr("fray.cli.commands.run._refuse_on_private_cluster", lambda detach, options: None)
    monkeypatch.setattr("fray.cli.commands.run._run_on_private_cluster", submit)
    result = CliRunner(env={"FRAY_CLUSTER_SPEC": ""}).invoke(cli, EVERY_OPTION.split())
    assert result.exit_code == 0, result.output
    assert {field for field in fields_of(JobSpec) if read_path(made[0], field) == read_path(PLAIN, field)} == {
        *("slices", "actor", "environment.workspace")
    }
    assert made[0].health_check == HealthCheckSpec(path="/up", port=8080, interval=5.0, failures=2)
    assert (made[0].timeout, made[0].pending_timeout, made[0].resources.labels) == (600.0, 3600.0, {"disk": "ssd"})


PLAIN = parse_spec({"name": "plain", "entrypoint": {"command": ["plain"]}})


def read_path(spec: JobSpec, field: str) -> object:
    return reduce(getattr, field.split("."), spec)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--timeout soon", "--timeout: 'soon' is not accepted"),
        ("--memory much", "--memory: 'much' is not accepted"),
        ("--port a/b", "--port: ['a/b'] is not accepted"),
        ("--health-check up", "--health-check: 'up' is not accepted; give PORT or PORT/PATH"),
        ("--health-check 80,when=5", "--health-check: '80,when=5' is not accepted; give PORT or PORT/PATH"),
        ("--label ssd", "--label: 'ssd' is not accepted; give name=value"),
        ("--priority 9000", "--priority: 9000 is not accepted"),
    ],
)
def test_a_wrong_value_names_its_option(words: str, message: str) -> None:
    result = CliRunner(env={"FRAY_CLUSTER_SPEC": ""}).invoke(cli, ["run", *words.split(), "--", "true"])
    assert result.exit_code != 0
    assert message in str(result.exception or "") + result.output


def test_a_variable_that_looks_secret_is_hinted_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fray.cli.commands.run._run_on_private_cluster", lambda *given: 0)
    names = ("API_KEY=sk-1", "HF_TOKEN=x", "db_password=x", "TOKENIZERS_PARALLELISM=1", "MAX_TOKENS=5", "KEYS=1")
    paths = ("GOOGLE_APPLICATION_CREDENTIALS=/etc/key.json",)
    words = [word for name in (*names, *paths) for word in ("-e", name)]
    result = CliRunner(env={"FRAY_CLUSTER_SPEC": ""}).invoke(cli, ["run", *words, "--", "true"])
    lines = result.stderr.splitlines()
    assert [line.split()[4] for line in lines] == ["API_KEY", "HF_TOKEN", "db_password"]
    assert lines[0] == (
        "fray: the value of API_KEY can be read by all who look at this job; with --secret API_KEY[=VALUE] instead of "
        "-e no command shows it"
    )


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/usr/bin/python3.11", "python3.11"),
        ("'./my tool!'", "my-tool"),
        ("...", "job"),
        ("é", "job"),
        ("python -m trainer --steps 3", "trainer"),
        ("python3 -u -W ignore -m team.train", "team.train"),
        ("python jobs/train.py", "train"),
        ("python -O train.py -m x", "train"),
        ("python -c 'import trainer'", "python"),
        ("python -", "python"),
        ("python -X", "python"),
        ("bash -e run.sh", "run"),
        ("bash -ec 'make all'", "bash"),
        ("./train.sh", "train"),
        ("uv run x", "x"),
        ("uv run --with einops python -m trainer", "trainer"),
        ("uv run --frozen train.py", "train"),
        ("uv run -m trainer", "trainer"),
        ("uv sync", "uv"),
        ("uv run", "uv"),
        ("torchrun --nproc-per-node 8 train.py --lr 1", "train"),
        ("torchrun --standalone -m team.train", "team.train"),
        ("accelerate launch --num_processes=2 fit.py", "fit"),
        ("torchrun --help", "torchrun"),
        ("env -u X A=1 nice -n 5 timeout -k 5 60 python train.py", "train"),
        ("env A=1", "env"),
        ("crop-train --steps 3", "crop-train"),
        ("python .py", "py"),
    ],
)
def test_a_job_is_named_after_what_its_command_runs(command: str, name: str) -> None:
    assert spec_of(tuple(shlex.split(command)), NOTHING_GIVEN).name == name


def test_a_variable_without_a_value_is_taken_from_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "value")
    assert variables("--env", ["MINE", "OTHER=", "X=a=b"]) == {"MINE": "value", "OTHER": "", "X": "a=b"}
    with pytest.raises(InvalidInput, match="NOT_MINE"):
        variables("--secret", ["NOT_MINE"])


def test_a_workspace_is_named_or_left_out_or_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert chosen_workspace("code", False) == WorkspaceChoice(tmp_path / "code")
    assert (chosen_workspace(None, False), chosen_workspace(None, True)) == (WorkspaceChoice(), None)
    with pytest.raises(click.UsageError, match="contradict"):
        chosen_workspace("code", True)


@pytest.mark.parametrize(
    ("given", "replicas", "slices"),
    [
        ({"replicas": 3}, 3, 0),
        ({"tpu": "v5litepod-16"}, 4, 1),
        ({"tpu": "v5litepod-16", "replicas": 8}, 8, 2),
        ({"tpu": "v5litepod-4"}, 1, 1),
    ],
)
def test_a_gang_is_asked_for_by_processes_or_by_slices(given: dict[str, Any], replicas: int, slices: int) -> None:
    spec = spec_of(("x",), NOTHING_GIVEN | given)
    assert (spec.replicas, spec.slices) == (replicas, slices)
    device = spec.resources.device
    assert (device.kind, device.variant, device.count) == ("tpu", given["tpu"], 4) if device else "tpu" not in given


@pytest.mark.parametrize("text", ["many", "h100:", "h100:x"])
def test_gpus_are_a_count_with_or_without_a_kind(text: str) -> None:
    with pytest.raises(InvalidInput, match="--gpus"):
        spec_of(("x",), NOTHING_GIVEN | {"gpus": text})
    with pytest.raises(InvalidInput, match="--gpus"):
        capacity_of(None, None, text)


def test_options_set_an_agents_offer() -> None:
    offered = capacity_of(1.5, "1GiB", "H100:8")
    assert (offered.cpu, offered.memory, offered.device, offered.device_count) == (1500, 2**30, "gpu-h100", 8)
    assert capacity_of(None, None, "0").device == ""
    with pytest.raises(InvalidInput, match="--cpu"):
        capacity_of(-1, None, None)


A_JOB = {"name": "a", "entrypoint": {"command": ["true"]}}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (json.dumps(A_JOB), ["a"]),
        (json.dumps([A_JOB, {**A_JOB, "name": "b"}]), ["a", "b"]),
        ("name: a\nentrypoint: {command: [echo, hi]}\n---\nname: b\nentrypoint:\n  command: [ls]\n", ["a", "b"]),
        ("- {name: a, entrypoint: {command: [ls]}}\n- {name: b, entrypoint: {command: [ls]}}\n", ["a", "b"]),
    ],
)
def test_jobs_are_read_from_json_and_yaml(text: str, names: list[str]) -> None:
    assert [job.spec.name for job in read_jobs(text, "jobs.yaml")] == names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"^jobs\.yaml, line 1, column 2: .* it is not YAML"),
        ("", "it has no job"),
        ("[]", "it has no job"),
        ("just words", r"^jobs\.yaml: job: .* write an object"),
        ('{"name": "a"}', "entrypoint: None .*missing"),
        (json.dumps([A_JOB, {**A_JOB, "cpus": 3}]), r"^jobs\.yaml: job 2: cpus: 3 .*no such field"),
        (json.dumps({**A_JOB, "resources": {"cpu": -1}}), r"resources\.cpu: -1"),
    ],
)
def test_a_file_without_a_job_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_jobs(text, "jobs.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"name": "a",\n "entrypoint": }', r"^job\.json, line 2, column 16: .* it is not JSON"),
        ('[{"name": "a", "name": "b"}]', r"^job\.json: name: .* twice"),
        ("", r"^job\.json.* it is not JSON"),
    ],
)
def test_a_wrong_file_of_json_is_named_with_its_line(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_jobs(text, "job.json")


def test_keys_of_merged_objects_are_not_there_twice() -> None:
    text = "- &a {name: a, entrypoint: &e {command: [ls]}}\n- {<<: *a, name: b}\n- {<<: *a, entrypoint: {<<: *e}}\n"
    assert [job.spec.name for job in read_jobs(text, "jobs.yaml")] == ["a", "b", "a"]


def test_costs_follow_the_settings() -> None:
    idle, quiet, busy, driver, turn, quiet_turn, jobs = estimates(ClusterSettings())
    assert quiet.dollars + quiet_turn.dollars == pytest.approx(1.75, abs=0.05), "as a test of idle agents counts"
    assert 10 * quiet.dollars + quiet_turn.dollars == pytest.approx(4.9, abs=0.1)
    assert idle.class_a == 2 * 30 * 24 * 60  # a beat and a repair's list each minute
    month = 30 * 86400
    assert (
        idle.class_b == month / REMOTE_POLL_BACKOFF[2] + month / 7.5
    )  # the doorbell at its slowest, and the lease of the pass
    assert idle.dollars == pytest.approx(86_400 * 0.005 / 1000 + idle.class_b * 0.0004 / 1000)
    assert busy.class_a > 6 * idle.class_a
    assert (driver.class_a, driver.class_b) == (month / 5, month / 60)  # beats, and a look at its own job
    assert estimates(ClusterSettings(idle_beat_interval=30.0))[0].class_a > idle.class_a
    assert (turn.class_b, jobs.class_a, jobs.class_b) == (0, 7000, 8000)


def test_agents_counts_are_added_up() -> None:
    def agent(**requests: int) -> AgentRecord:
        return AgentRecord(id="a", host="h", pool="p", requests=requests)

    [line] = spent([agent(writes=1, lists=2, reads=3, deletes=4), agent(writes=10), agent()])
    assert (line.class_a, line.class_b) == (13, 3)
    assert spent([]) == []


def test_requests_of_a_kind_that_this_version_does_not_know_are_left_out() -> None:
    [line] = spent([AgentRecord(id="a", host="h", pool="p", requests={"writes": 3, "haunted": 5})])
    assert (line.class_a, line.class_b) == (3, 0)


@pytest.mark.parametrize("option", ["--workspace", "--extra", "--with", "--image"])
def test_a_private_cluster_refuses_environments_that_only_agents_prepare(tmp_path: Path, option: str) -> None:
    result = CliRunner(env={"FRAY_CLUSTER_SPEC": ""}).invoke(cli, ["run", option, str(tmp_path), "--", "true"])
    assert result.exit_code == 2
    assert f"leave {option} out, or give --root ROOT" in result.output
