"""docs/coming-from.md: each command and job file in a column "Fray" works; its Python is run by `test_pages.py`."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fray.cli.commands.submit import read_jobs
from tests.support.pages import ROOT, equivalents
from tests.support.shell import Shell

CODE = equivalents(ROOT / "docs" / "coming-from.md")
COMMANDS = list(dict.fromkeys(code for code in CODE if code.startswith("fray ")))
AGENTS = [code for code in COMMANDS if code.startswith("fray agent ")]
JOB_FILES = [code for code in CODE if code.startswith("{")]


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A root, with the agents that the page starts."""
    shell = Shell(tmp_path_factory.mktemp("coming") / "root")
    shell("init")
    agents = [shell.start(*shlex.split(code)[1:], stdout=subprocess.PIPE) for code in AGENTS]
    for agent in agents:
        assert agent.stdout is not None
        assert agent.stdout.readline().startswith("fray: agent ")
    yield shell
    for agent in agents:
        agent.send_signal(signal.SIGTERM)
    ended = {agent.wait(200) for agent in agents}
    assert ended <= {0, -signal.SIGTERM}, "one that was drained may be past the point where it handles signals"


def test_the_page_has_commands_and_job_files_of_every_kind() -> None:
    verbs = {code.split()[1] for code in COMMANDS}
    assert {"agent", "run", "submit", "ps", "status", "logs", "pull", "stop", "agents", "drain", "doctor"} <= verbs
    assert len(JOB_FILES) > 5


def test_the_commands_work(shell: Shell) -> None:
    text = "{name: a, entrypoint: {command: [sh, -c, echo 1 > out]}, outputs: [out]}"
    file = Path(shell.root.parent, "job.yaml")
    file.write_text(text)
    (submitted,) = shell.json("submit", str(file))
    shell.until_status(submitted["job"], "succeeded")
    agent = shell.json("agents")[0]["id"]
    places = {"JOB": submitted["job"], "AGENT": agent, "FILE": str(file)}
    for code in sorted(set(COMMANDS) - set(AGENTS), key=lambda code: code.startswith("fray drain")):
        words = shlex.split(re.sub("JOB|AGENT|FILE", lambda found: places[found[0]], code))
        shell(*words[1:])


@pytest.mark.parametrize("text", JOB_FILES)
def test_the_job_files_are_understood(text: str) -> None:
    assert len(read_jobs(text, "job.yaml")) == 1
