"""No command passes control sequences from a root on to the terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from fray.cli import cli
from fray.cluster import StorageCluster
from fray.errors import JobFailed

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp\u2066\rover\x7f"
FORGED = "\nforged"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200f\u202a-\u202e\u2066-\u2069]")
COMMANDS = [
    ("ps", "--all"),
    ("status", "evil-1"),
    ("logs", "evil-1"),
    ("logs", "-f", "evil-1"),
    ("result", "evil-1"),
    ("agents", "--all"),
    ("actors",),
    ("fsck",),
    ("doctor",),
    ("coordinate", "--once"),
    ("stop", EVIL),
    ("queue", "ls"),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with a control sequence in every object that may hold a text."""
    root = tmp_path_factory.mktemp("root")
    CliRunner().invoke(cli, ["init", str(root)])
    job = {
        "id": "evil-1",
        "op": "x",
        "spec": {
            "name": "evil",
            "entrypoint": {"command": ["echo", EVIL]},
            "environment": {"env_vars": {"TITLE": EVIL}},
        },
        "status": "failed",
        "submitted_at": 1.8e9,
        "started_at": 1.8e9,
        "ended_at": 1.8e9,
        "lease": {"agent": "evil-agent", "host": EVIL, "since": 1.8e9},
        "exit": {"kind": "exception", "message": EVIL + FORGED, "traceback": EVIL, "log_chunks": 1},
        "stop": {"at": 1.8e9, "reason": EVIL},
    }
    agent = {"id": "evil-agent", "op": "x", "host": EVIL, "pool": EVIL, "state": EVIL, "problem": EVIL + FORGED}
    endpoint = {"namespace": "ns", "name": "evil", "actor_id": "e", "nonce": "n", "address": EVIL, "op": "x"}
    chunk = f"2026-01-01T00:00:00.000000000Z stdout F {EVIL}\n".encode() + b"2026-01-01T00:00:00Z stderr F \xff\n"
    files = {
        "jobs/evil-1.json": json.dumps(job).encode(),
        "agents/evil-agent.json": json.dumps(agent).encode(),
        "actors/ns/evil/e.json": json.dumps(endpoint).encode(),
        "work/evil-1/1/0/log-00000001": chunk,
        f"jobs/{EVIL.replace('/', '')}.json": b"garbage",
        "jobs/\x1b[2J\nforged.json": b"garbage",
        f"inbox/{EVIL}.json": json.dumps({"name": EVIL, EVIL: EVIL}).encode(),
    }
    for key, data in files.items():
        path = root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_no_command_passes_on_control_sequences(root: Path, words: tuple[str, ...], as_json: bool) -> None:
    done = CliRunner(env={"FRAY_CLUSTER_SPEC": str(root)}).invoke(cli, [*words, *["--json"] * as_json])
    shown = done.stdout_bytes.decode() + done.stderr_bytes.decode()
    if words[0] == "logs" and not as_json:
        shown = shown.replace("\rover", "")  # a progress bar's return hides no line but its own
    assert shown
    assert not OBEYED.findall(shown)
    assert not [line for line in shown.splitlines() if line.startswith("forged")]


def test_a_log_is_shown_byte_for_byte_on_request(root: Path) -> None:
    done = CliRunner(env={"FRAY_CLUSTER_SPEC": str(root)}).invoke(cli, ["logs", "--raw", "evil-1"])
    assert done.stdout_bytes == f"{EVIL}\n".encode()
    assert done.stderr_bytes == b"\xff\n"


def test_errors_of_the_api_are_harmless_too(root: Path) -> None:
    with StorageCluster(str(root)) as cluster, pytest.raises(JobFailed) as failed:
        cluster.wait("evil-1", raise_on_failure=True)
    assert "gnp" in str(failed.value)
    assert not OBEYED.findall(str(failed.value))
