"""Agents on the command line: the output of `fray agents`, what agents offer to jobs, how they leave, what they log."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.shell import Shell
from tests.support.waiting import wait_until


@pytest.mark.slow
def test_agents_report_for_which_gangs_they_keep_room(empty: Shell) -> None:
    agent = empty.start("agent", "--cpu", "2", "--memory", "1GB", "--zone", "z-a", "--tpu", "v5litepod-4")
    running = empty.detached("--", "sleep", "600")
    empty.until_status(running, "running")
    gang = empty.detached("--replicas", "2", "--cpu", "1", "--", "true")
    wait_until(lambda: [hold["owner"] for hold in empty.json("agents")[0]["kept_for"]] == [gang])
    assert f"zone z-a  {gang} (until there is room)" in empty("agents").stdout
    empty("stop", running)
    empty.until_status(gang, "succeeded")
    agent.terminate()
    assert agent.wait(timeout=200) == 0


def test_a_drained_agent_finishes_its_jobs_and_leaves(empty: Shell, tmp_path: Path) -> None:
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    agent = empty.start("agent", "--cpu", "1", "--memory", "1GB", **streams)
    wait = f"import pathlib, time\nwhile not pathlib.Path({str(tmp_path / 'go')!r}).exists(): time.sleep(0.02)"
    running = empty.detached("--", sys.executable, "-c", wait)
    empty.until_status(running, "running")
    (row,) = empty.json("agents")
    empty("drain", row["id"])
    later = empty.detached("--", "true")
    wait_until(lambda: not empty.json("agents")[0].get("mail"))  # the agent has read the request
    (tmp_path / "go").touch()
    assert agent.communicate(timeout=200)[1].endswith(f"{row['id']} has left\n")
    assert agent.returncode == 0
    assert empty.json("status", running)["status"] == "succeeded"
    assert empty.json("status", later)["status"] == "pending"
    assert "no live agent" in empty("drain", row["id"], code=1).stderr


def test_jobs_have_gpus_of_their_own_or_share_one_and_agents_show_which(empty: Shell) -> None:
    agent = empty.start("agent", "--cpu", "8", "--gpus", "h100:2", stdout=subprocess.PIPE)
    assert agent.stdout is not None
    assert "2 x gpu-h100" in agent.stdout.readline()
    tells = ["--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; sleep 1000"]

    def told(job: str) -> str:
        return wait_until(lambda: empty("logs", job).stdout.strip())

    one = empty.detached("--cpu", "1", "--gpus", "1", *tells)
    assert told(one) == "0"
    wanted: tuple[list[str], ...] = (["--gpus", "0.5"], ["--gpus", "h100:0.5"], [])
    half, other, none = (empty.detached("--cpu", "1", *gpus, *tells) for gpus in wanted)
    assert [told(half), told(other), told(none)] == ["1", "1", "-1"]
    wait_until(lambda: f"0: {one}; 1: {half}, {other}" in empty("agents").stdout)
    assert "0.5 x gpu h100" in empty("status", other).stdout
    agent.terminate()
    agent.terminate()
    assert agent.wait(200) == 0


@pytest.mark.slow
def test_the_log_of_an_agent_reports_the_events(empty: Shell) -> None:
    agent = empty.start("agent", "--log-format", "json", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    empty("run", "--name", "good", "--", "true")
    empty("run", "--name", "bad", "--", "sh", "-c", "exit 3", code=3)
    agent.send_signal(signal.SIGTERM)
    output, journal = agent.communicate(timeout=200)
    lines = [json.loads(line) for line in journal.splitlines()]
    assert {line["level"] for line in lines} == {"INFO"}
    good, bad = (empty.json("status", name)["id"] for name in ("good", "bad"))
    told = [line["message"] for line in lines if "cgroups" not in line["message"]]
    start = re.fullmatch(r"agent (\S+) in pool default: .*cores.*", told[0])
    assert start is not None
    assert told[1:] == [
        f"{good}: attempt 1 is claimed",
        f"{good}: attempt 1 has ended: success",
        f"{bad}: attempt 1 is claimed",
        f"{bad}: attempt 1 has ended: exited: exit code 3",
        "asked to leave: no job runs",
        f"{start[1]} has left",
    ]
    assert output == ""


@pytest.mark.slow
def test_between_attempts_the_log_is_that_of_the_last_one_that_printed(empty: Shell) -> None:
    agent = empty.start("agent", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert agent.stderr is not None
    script = "echo attemptout; [ $FRAY_ATTEMPT = 1 ] || sleep 600; exit 1"
    job = empty.detached("--retries", "1", "--", "sh", "-c", script)
    wait_until(lambda: empty.json("status", job)["attempt"] == 2)
    agent.terminate()
    journal = agent.communicate(timeout=200)[1]
    now = empty.json("status", job)
    printed = empty("logs", job)
    assert printed.stdout == "attemptout\n"
    assert f"attempt {now['attempt']} has not begun; this is the output of attempt " in printed.stderr
    assert journal.endswith(" has left\n")
