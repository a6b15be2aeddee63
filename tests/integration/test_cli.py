"""The command line against a real agent on a real root."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fray.client import StorageClient
from fray.cluster import StorageCluster
from fray.types import ActorConfig
from fray_layouts.object_keys import JobIds
from tests.support.shell import FRAY, Shell
from tests.support.waiting import wait_until

SECRET = "hunter2-is-secret"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A root with an agent of two cores."""
    shell = Shell(tmp_path_factory.mktemp("root"))
    shell("init", "--repair-interval", "1")
    agent = shell.start("agent", "--cpu", "2", "--memory", "4GB", stdout=subprocess.PIPE)
    assert agent.stdout is not None
    assert "2 cores, 4 GB" in agent.stdout.readline()
    yield shell
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(200) == 0


def test_run_follows_a_command_and_ends_like_it(shell: Shell) -> None:
    done = shell("run", "--", "sh", "-c", "echo out; echo err >&2; printf tail; exit 7", code=7)
    assert done.stdout == "out\ntail"
    lines = done.stderr.splitlines()
    assert lines[0].startswith("fray: job sh-")
    assert lines[1] == "err"
    assert lines[2].endswith("failed: exited: exit code 7: err")


@pytest.mark.parametrize(
    ("words", "code"),
    [(["true"], 0), (["sh", "-c", "kill -TERM $$"], 128 + 15), (["no-such-program"], 127)],
)
def test_run_has_the_exit_code_of_the_job(shell: Shell, words: list[str], code: int) -> None:
    shell("run", "--", *words, code=code)


def test_a_timeout_is_a_failure_that_says_so(shell: Shell) -> None:
    done = shell("run", "--timeout", "0.1", "--", "sleep", "1000", code=128 + 15)
    assert "timeout: ran longer than its timeout of 0.1 s" in done.stderr


def test_output_is_passed_on_byte_for_byte(shell: Shell) -> None:
    assert shell("run", "--", "printf", r"\377\000\n\303").stdout_bytes == b"\xff\0\n\xc3"


def test_standard_input_reaches_every_attempt(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "piped").write_bytes(b"hello\n" * 20_000)
    script = 'wc -l; test "$FRAY_ATTEMPT" = 2'
    with open(tmp_path / "piped") as piped:
        ran = shell.start("run", "--retries", "1", "--", "sh", "-c", script, stdin=piped, stdout=subprocess.PIPE)
        assert ran.communicate(timeout=200)[0] == "20000\n20000\n"


def test_run_for_scripts_prints_a_json_object_a_line(shell: Shell) -> None:
    lines = [json.loads(line) for line in shell("run", "--json", "--", "echo", "hi").stdout.splitlines()]
    assert [(line["type"], line.get("text"), line.get("status")) for line in lines] == [
        ("log", "hi", None),
        ("job", None, "succeeded"),
    ]


def test_attempts_are_told_apart(shell: Shell) -> None:
    script = 'echo "attempt $FRAY_ATTEMPT"; test "$FRAY_ATTEMPT" = 2'
    done = shell("run", "--retries", "1", "--name", "again", "--", "sh", "-c", script)
    assert done.stdout == "attempt 1\nattempt 2\n"
    assert "fray: attempt 2\n" in done.stderr
    job = shell.json("status", "again")
    assert [past["exit"]["code"] for past in job["history"]] == [1]
    assert "attempt 1 on" in shell("status", "again").stdout
    assert shell("logs", "again").stdout == "attempt 2\n"
    assert shell("logs", "-f", "again").stdout == "attempt 1\nattempt 2\n"


def test_the_life_of_a_detached_job(shell: Shell) -> None:
    job = shell.detached("--name", "life", "--", "sh", "-c", "echo begun; sleep 1000")
    shell.until_status(job, "running")
    assert job in shell("ps").stdout
    [listed] = [one for one in shell.json("ps") if one["id"] == job]
    assert (listed["status"], listed["attempt"]) == ("running", 1)
    wait_until(lambda: "begun" in shell("logs", job).stdout)
    assert "has not ended" in shell("result", job, code=1).stderr
    assert "stopping" in shell("stop", job).stdout
    shell.until_status(job, "stopped")
    assert job not in shell("ps").stdout
    assert [line.split()[1] for line in shell("ps", "--all").stdout.splitlines() if line.startswith(job)] == ["stopped"]
    text = shell("status", job).stdout
    assert "stop " in text
    assert "fray stop (by user" in text
    assert shell("stop", job).stdout.split()[-1] == "stopped"
    assert "stopped" in shell("result", job, code=1).stderr


@pytest.mark.parametrize(
    ("script", "text", "value"),
    [
        ('echo "[1, 2]" > $FRAY_RESULT', "[1, 2]\n", {"encoding": "json", "value": [1, 2]}),
        ("printf raw > $FRAY_RESULT", "raw", {"encoding": "bytes", "value": "b'raw'"}),
    ],
)
def test_results_are_printed(shell: Shell, script: str, text: str, value: object) -> None:
    job = shell.detached("--", "sh", "-c", script)
    shell.until_status(job, "succeeded")
    assert shell("result", job).stdout == text
    assert shell.json("result", job) == value


def test_the_last_lines_of_a_log(shell: Shell) -> None:
    shell("run", "--name", "lines", "--", "sh", "-c", "echo 1; echo 2; echo 3")
    assert shell("logs", "--tail", "2", "lines").stdout == "2\n3\n"
    lines = [json.loads(line) for line in shell("logs", "lines", "--json").stdout.splitlines()]
    assert [(line["stream"], line["text"]) for line in lines] == [("stdout", "1"), ("stdout", "2"), ("stdout", "3")]
    shell("logs", "-f", "--tail", "2", "lines", code=2)


def test_usage_and_agents_are_shown(shell: Shell) -> None:
    shell("run", "--name", "worked", "--", sys.executable, "-c", "x = b'x' * 50_000_000")
    assert shell.json("status", "worked")["exit"]["usage"]["memory_peak"] > 50_000_000
    assert "MB at most" in shell("status", "worked").stdout
    [agent] = shell.json("agents")
    assert (agent["state"], agent["capacity"]["cpu"], agent["capacity"]["memory"]) == ("live", 2000, 4 * 10**9)
    assert agent["id"] in shell("agents").stdout


def test_secrets_are_used_and_never_shown(shell: Shell) -> None:
    words = ["--name", "secretive", "--secret", f"TOKEN={SECRET}", "--env", "PLAIN=seen"]
    shell("run", *words, "--", "sh", "-c", f'test "$TOKEN" = {SECRET[:7]}"-is-secret"; exit $?')
    printed = shell("run", *words[2:], "--", "sh", "-c", "env; echo $PLAIN $TOKEN >&2; exit 3", code=3)
    assert "TOKEN=***\n" in printed.stdout
    assert "exit code 3: seen ***" in printed.stderr
    assert SECRET not in printed.output
    for command in (["status", "secretive"], ["ps", "--all"], ["logs", "secretive"], ["agents"], ["fsck"]):
        for extra in ([], ["--json"]):
            assert SECRET not in shell(*command, *extra).output
    text = shell("status", "secretive").stdout
    assert "TOKEN=***" in text
    assert "PLAIN=seen" in text


def test_jobs_are_submitted_from_files(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(
        "name: from-yaml\nid: one\nentrypoint: {command: [echo, one]}\n---\n"
        "name: from-yaml\nid: two\nentrypoint: {command: [echo, two]}\n"
    )
    first = shell.json("submit", str(file))
    one, two = (JobIds.given("", "from-yaml", own) for own in ("one", "two"))
    assert first == [{"job": one, "found": False}, {"job": two, "found": False}]
    assert shell.json("submit", str(file)) == [{**each, "found": True} for each in first]
    assert shell("logs", "-f", two).stdout == "two\n"
    piped = json.dumps({"name": "piped", "entrypoint": {"command": ["true"]}})
    [job] = shell("submit", "-", stdin=piped).stdout.splitlines()
    assert shell.json("status", job)["id"] == job


def test_jobs_are_stopped_by_whole_ids_or_by_choice(shell: Shell) -> None:
    for name in ("sweep-1", "sweep-2", "other"):
        shell.detached("--name", name, "--namespace", "chosen", "--cpu", "0", "--", "sleep", "1000")

    def active(*options: str) -> list[str]:
        return [job["spec"]["name"] for job in shell.json("ps", "--namespace", "chosen", *options)]

    assert active() == ["sweep-1", "sweep-2", "other"]
    assert active("--name", "sweep-*", "--limit", "1") == ["sweep-2"]
    refused = shell("stop", "othe", code=1).stderr
    assert "it matches other-" in refused
    assert "whole id" in refused
    assert "choose them with options" in shell("stop", code=2).stderr
    assert "choose them with options" in shell("stop", "x", "--all", code=2).stderr
    stopped = shell.json("stop", "--namespace", "chosen", "--name", "sweep-*")
    assert [job["job"][:8] for job in stopped] == ["sweep-1-", "sweep-2-"]
    wait_until(lambda: active() == ["other"])
    assert active("--state", "stopped") == ["sweep-1", "sweep-2"]
    shell("stop", "--all", "--namespace", "chosen")
    wait_until(lambda: active() == [])


def test_a_beginning_of_an_id_is_of_jobs_that_can_be_stopped_or_retried(empty: Shell) -> None:
    def submitted() -> str:
        return empty.detached("--name", "zebra", "--", "true")

    def named(verb: str) -> str:
        return empty(verb, "zebra", code=1).stderr

    first, second = submitted(), submitted()
    assert "2 jobs match" in named("stop")
    empty("stop", first)
    assert f"it matches {second};" in named("stop")
    assert f"it matches {first};" in named("retry")
    empty("stop", second)
    assert "2 jobs match" in named("retry")
    assert [job["retry_of"] for job in empty.json("retry", "--name", "zeb*", "--user", "nobody")] == []
    again = empty.json("retry", "--name", "zeb*")
    assert [job["retry_of"] for job in again] == [first, second]


@pytest.mark.slow
def test_a_detached_actor_is_created_again_and_those_of_a_program_are_left_out(shell: Shell) -> None:
    config = ActorConfig(detached=True)
    with StorageCluster(str(shell.root), namespace="kept") as cluster:
        client = StorageClient(cluster)
        client.create_actor(list, name="kept", actor_config=config).append(1)
        client.create_actor(list, name="mine").append(1)
        (old,) = (job["id"] for job in shell.json("ps", "--namespace", "kept") if job["id"].startswith("kept-0-"))
        shell("stop", old)
        shell.until_status(old, "stopped")
        assert shell.json("retry", old)[0]["retry_of"] == old
        handle = client.get_actor("kept")
        handle.append(2)
        assert handle.count(2) == 1
        assert handle.count(1) == 0  # a new object
        for job in shell.json("ps", "--namespace", "kept", "--name", "*-0"):
            shell("stop", job["id"])
            shell.until_status(job["id"], "stopped")
    done = shell("retry", "--state", "stopped", "--namespace", "kept")
    assert "fray: left out: mine-0-" in done.stderr
    assert "run that program again" in done.stderr
    assert len(done.stdout.split()) == 1  # the detached one; the first was retried already
    shell("stop", "--namespace", "kept")


def test_failed_jobs_are_submitted_once_more(shell: Shell, tmp_path: Path) -> None:
    script = f"test -e {tmp_path}/mended"
    mine = ("--namespace", "again")
    old = [shell.detached("--name", name, *mine, "--", "sh", "-c", script) for name in ("one", "two")]
    for job in old:
        shell.until_status(job, "failed")
    assert "failed 1 time (not tried again)" in shell("status", old[0]).stdout
    (tmp_path / "mended").touch()
    new = shell("retry", "--failed", *mine).stdout.split()
    for job, before in zip(new, old, strict=True):
        shell.until_status(job, "succeeded")
        assert shell.json("status", job)["retry_of"] == before
    assert shell.json("retry", "--failed", *mine) == []  # an earlier loop has submitted them
    assert shell.json("retry", old[0])[0]["retry_of"] == old[0]
    waiting = shell.detached("--name", "waiting", "--cpu", "1000", "--", "true")
    assert "it is pending" in shell("retry", waiting, code=1).stderr
    shell("stop", waiting)


def test_pull_fetches_the_outputs_of_the_successful_attempt_alone(shell: Shell, tmp_path: Path) -> None:
    script = 'mkdir ck; echo "$FRAY_ATTEMPT" > "ck/of-attempt-$FRAY_ATTEMPT"; echo no > other; test "$FRAY_ATTEMPT" = 2'
    command = {"command": ["sh", "-c", script]}
    job = {"name": "leaves", "entrypoint": command, "outputs": ["ck/**"], "max_retries_failure": 1}
    shell("submit", "-", stdin=json.dumps(job))
    shell("logs", "-f", "leaves")
    got = tmp_path / "got"
    assert "1 file, 2 B, in " in shell("pull", "leaves", "--into", str(got)).stdout
    assert [str(path.relative_to(got)) for path in got.rglob("*")] == ["ck", "ck/of-attempt-2"]
    assert shell.json("pull", "leaves", "ck", "--into", str(got))["files"] == ["ck/of-attempt-2"]
    assert "has no output nix" in shell("pull", "leaves", "nix", code=1).output
    assert "1 file, 2 B" in shell("status", "leaves").stdout


def test_the_ports_of_a_running_job_are_shown_and_it_can_listen_on_them(shell: Shell) -> None:
    listen = "import os, socket, time; socket.create_server(('', int(os.environ['FRAY_PORT_HTTP']))); time.sleep(1000)"
    job = {"name": "serves", "entrypoint": {"command": [sys.executable, "-c", listen]}, "ports": ["http", "grpc-web"]}
    submitted = json.loads(shell("submit", "-", "--json", stdin=json.dumps(job)).stdout)[0]["job"]
    wait_until(lambda: re.search(r"^ports +http 2\d{4}, grpc-web 2\d{4} on ", shell("status", submitted).stdout, re.M))
    shell("stop", submitted)


def test_a_run_inside_a_job_is_its_child(shell: Shell) -> None:
    inner = f"{' '.join(FRAY)} run --name inner -- sh -c 'echo $FRAY_NAMESPACE'"
    done = shell("run", "--name", "outer", "--cpu", "1", "--", "sh", "-c", inner)
    outer = shell.json("status", "outer")["id"]
    assert done.stdout == f"{outer}\n"
    assert shell.json("status", "inner")["parent"]["job"] == outer


def test_the_environment_may_name_the_namespace(empty: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAY_NAMESPACE", "team")
    job = empty.detached("--name", "one", "--", "true")
    assert empty.json("status", job)["spec"]["namespace"] == "team"
    job = empty.detached("--name", "two", "--namespace", "mine", "--", "true")
    assert empty.json("status", job)["spec"]["namespace"] == "mine"


def test_a_job_and_its_children_belong_to_the_user_who_submitted_it(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAY_USER", "ann@lab")
    inner = f"{' '.join(FRAY)} run --name bens -- true"
    shell("run", "--name", "anns", "--cpu", "1", "--", "sh", "-c", inner)
    monkeypatch.setenv("FRAY_USER", "ben")
    shell("run", "--name", "bens", "--", "true")
    users = [(job["spec"]["name"], job["spec"]["user"]) for job in shell.json("ps", "--all", "--name", "?en*")]
    assert users == [("bens", "ann@lab"), ("bens", "ben")]
    assert [job["spec"]["name"] for job in shell.json("ps", "--all", "--user", "ann@lab")] == ["anns", "bens"]
    assert re.search("^user +ann@lab$", shell("status", "anns").stdout, re.MULTILINE)


def test_a_user_that_no_record_can_hold_is_refused(empty: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAY_USER", "a\nb")
    assert "FRAY_USER: 'a\\nb' is not accepted; remove the line break" in empty("run", "--", "true", code=1).stderr


def test_ctrl_c_stops_the_job_where_nobody_can_be_asked(shell: Shell) -> None:
    following = shell.start("run", "--name", "interrupted", "--", "sleep", "1000", stderr=subprocess.PIPE)
    assert following.stderr is not None
    assert following.stderr.readline().startswith("fray: job interrupted-"), "it follows from then on"
    wait_until(lambda: any(job["spec"]["name"] == "interrupted" and job["lease"] for job in shell.json("ps")))
    following.send_signal(signal.SIGINT)
    following.communicate(timeout=200)
    assert following.returncode == 130
    shell.until_status("interrupted", "stopped")


@pytest.mark.parametrize(("answer", "status"), [pytest.param("n", "running", marks=pytest.mark.slow), ("y", "stopped")])
def test_ctrl_c_asks_at_a_terminal(shell: Shell, answer: str, status: str) -> None:
    name = f"asked-{answer}"
    keyboard, terminal = pty.openpty()
    following = shell.start("run", "--name", name, "--", "sleep", "1000", stdin=terminal, stderr=subprocess.PIPE)
    assert following.stderr is not None
    assert following.stderr.readline().startswith(f"fray: job {name}-"), "it follows from then on"
    wait_until(lambda: any(job["spec"]["name"] == name and job["lease"] for job in shell.json("ps")))
    following.send_signal(signal.SIGINT)
    os.write(keyboard, f"{answer}\n".encode())
    assert f"stop {name}" in following.stderr.read()
    assert following.wait(200) == 130
    shell.until_status(name, status)
    shell("stop", shell.json("status", name)["id"])
    for end in (keyboard, terminal):
        os.close(end)


def test_ctrl_c_ends_following_a_log_in_silence(shell: Shell) -> None:
    job = shell.detached("--name", "followed", "--", "sh", "-c", "echo begun; sleep 1000")
    following = shell.start("logs", "-f", job, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert following.stdout is not None
    assert following.stdout.readline() == "begun\n"
    following.send_signal(signal.SIGINT)
    assert following.communicate(timeout=200) == ("", "")
    assert following.returncode == 130
    shell("stop", job)


def test_tables_are_drawn_on_a_terminal(shell: Shell) -> None:
    shell("run", "--name", "drawn", "--", "true")
    screen, terminal = pty.openpty()
    showing = shell.start("ps", "--all", stdout=terminal)
    os.close(terminal)
    seen = b""
    try:
        while data := os.read(screen, 65536):
            seen += data
    except OSError:  # the message of Linux when the other end is closed
        pass
    os.close(screen)
    assert showing.wait(200) == 0
    assert b"\x1b[" in seen
    assert b"drawn" in seen
    plain = shell("ps", "--all").stdout
    assert "\x1b" not in plain
    assert shell.json("status", "drawn")["id"] in plain
    assert "\N{HORIZONTAL ELLIPSIS}" not in plain


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("ps", "--name", "x-1*"), "there is no such job; the name of a job is its id without the last part"),
        (("stop", "--all"), "there is no such job to stop"),
        (("retry", "--failed"), "there is no such job to retry"),
        (("agents",), "no agent is live; start one with `fray agent`"),
        (("actors",), "no actor can be called"),
        (("queue", "ls"), "there is no queue"),
        (("reservations",), "nothing is reserved; --all also lists ended reservations"),
        (("pool", "ls"), "no pool may have machines; set one with `fray pool set` or `fray up`"),
        (("machines",), "there is no machine; --all also lists machines that are gone"),
        (("cost", "--by", "job"), "no job has run on a machine of a pool"),
        (("env", "ls", "--pool", "a"), "the pool a names no environment"),
    ],
)
def test_an_empty_list_says_so(empty: Shell, command: tuple[str, ...], said: str) -> None:
    assert empty(*command).stderr == f"fray: {said}\n"
    assert empty.json(*command) == []


def test_waiting_jobs_say_what_they_wait_for(empty: Shell) -> None:
    assert empty("ps").stderr == "fray: no job waits or runs; --all also lists finished jobs\n"
    job = empty.detached("--name", "waits", "--", "true")
    assert "no live agent in pool default" in empty("status", job).stdout
    assert empty.json("status", job)["waiting"] == [
        "no live agent in pool default; start one with `fray agent --pool default`"
    ]


def test_status_says_which_resource_is_short(shell: Shell) -> None:
    big = shell.detached("--name", "big", "--memory", "1TB", "--", "true")
    told = shell("status", big).stdout
    assert "memory: 1000 GB wanted" in told
    assert "1000 GB of memory\n" in told
    gpu = shell.detached("--name", "gpu", "--gpus", "h100:8", "--cpu", "1000", "--", "true")
    short = "gpu-h100: 8 wanted, none here; cpu: 1000 cores wanted"
    assert short in shell("status", gpu).stdout
    assert short in next(line for line in shell("ps").stdout.splitlines() if line.startswith(gpu))
    (shown,) = shell.json("ps", "--name", "gpu")
    assert short in shown["waiting"][0]
    shell("stop", big, gpu)


def test_jobs_are_named_by_the_beginning_of_their_id_or_their_name(empty: Shell) -> None:
    one = empty.detached("--name", "train", "--", "true")
    other = empty.detached("--name", "train-more", "--", "true")
    assert empty.json("status", "train")["id"] == one
    assert empty.json("status", other[:13])["id"] == other
    empty.detached("--name", "train", "--", "true")
    assert "2 jobs match" in empty("status", "train", code=1).stderr
    assert "there is no job nothing" in empty("stop", "nothing", code=1).stderr
