"""The command line with damaged records, wrong roots, wrong words and wrong settings."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fray.cli import cli
from fray_coordinator.core import open_core
from fray_coordinator.jobs.claiming import Claimed, try_claim
from fray_coordinator.jobs.lookup import read_job
from fray_coordinator.protocol.scheduling import entry_of
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import AgentRecord, Resources
from tests.support.left_behind import started
from tests.support.shell import FRAY, Shell


def test_a_file_in_the_inbox_is_admitted_by_a_pass(empty: Shell) -> None:
    (empty.root / "inbox" / "dropped.json").write_text('{"name": "dropped", "entrypoint": {"command": ["true"]}}')
    assert empty.json("coordinate", "--once") == {"problems": {}}
    assert [job["status"] for job in empty.json("ps")] == ["pending"]


def test_fsck_tells_and_repairs(empty: Shell) -> None:
    empty.detached("--", "true")
    for entry in (empty.root / "pending" / "default").iterdir():
        entry.unlink()
    told = empty("fsck", code=1).stdout
    assert "no agent finds it" in told
    assert "--repair" in told
    assert empty("fsck", "--repair").stdout == "no problems\n"
    assert empty.json("fsck") == []


def test_doctor_and_cost_speak_plainly(empty: Shell, tmp_path: Path) -> None:
    assert {finding["severity"] for finding in empty.json("doctor")} <= {"ok", "warning"}
    (tmp_path / "file").write_text("")
    assert "error" in empty("doctor", str(tmp_path / "file"), code=1).stdout
    assert "an idle agent, a month" in empty("cost").stdout
    assert all(line["dollars"] >= 0 for line in empty.json("cost"))


def test_an_agent_refuses_a_root_that_doctor_calls_unable_unless_told_to(empty: Shell) -> None:
    empty.root.chmod(0o777)
    says = "every user of this host may write into the root, and so run code as its agents' user"
    assert says in empty("doctor", code=1).stdout
    assert f"can carry no cluster, as `fray doctor` says: {says}; chmod o-rwx ROOT" in empty("agent", code=1).stderr
    agent = empty.start("agent", "--unfit-root", stdout=subprocess.PIPE)
    assert agent.stdout is not None
    assert "fray: agent " in agent.stdout.readline()
    agent.terminate()
    assert agent.wait(200) == 0


@pytest.mark.parametrize(
    "program", [[*FRAY, "ps"], [sys.executable, "-c", "import fray.cluster as c; c.current_cluster().list_jobs()"]]
)
def test_a_person_who_waits_for_an_unreachable_store_is_told(tmp_path: Path, program: list[str]) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # it does not listen, so each connection is refused
        place = f"127.0.0.1:{deaf.getsockname()[1]}"
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_ENDPOINT_URL": f"http://{place}"}
        environ = {**os.environ, **keys, "FRAY_CLUSTER_SPEC": "s3://bucket/prefix"}
        waiting = started(subprocess.Popen(program, env=environ, stderr=subprocess.PIPE, text=True, cwd=tmp_path))
        assert waiting.stderr is not None
        told = waiting.stderr.readline()
        waiting.kill()
        waiting.communicate()
    prefix = "fray: " if "ps" in program else ""
    assert told.startswith(f"{prefix}get s3://bucket/prefix/cluster.json: no success for ")
    assert f"the last answer was: no connection to {place}: " in told
    assert told.endswith("; it is tried for 60 s\n")


@pytest.mark.parametrize(("more", "told"), [(0, "is full: "), (1, "is too small: it has ")])
def test_a_full_disk_of_the_root_is_told_by_every_command(
    empty: Shell, monkeypatch: pytest.MonkeyPatch, more: int, told: str
) -> None:
    disk = os.statvfs(empty.root)
    monkeypatch.setattr("fray_coordinator.store.file_tree.LEAST_FREE", disk.f_blocks * disk.f_frsize + more)
    assert f"fray: the disk of {empty.root} {told}" in empty("ps").stderr
    (problem,) = empty.json("fsck", code=1)
    assert problem["what"].startswith(f"the disk of {empty.root} {told}")
    assert f"error    the disk of {empty.root} {told}" in empty("doctor", code=1).stdout


def test_doctor_and_fsck_say_that_the_pass_cannot_run(empty: Shell) -> None:
    empty("coordinate", "--once")
    assert {finding["severity"] for finding in empty.json("doctor")} <= {"ok", "warning"}
    (empty.root / "coordinator" / "reconciler.json").write_text("garbage")
    for command, code in (("doctor", 0), ("fsck", 1)):
        told = empty(command, code=code).stdout
        assert "until it is replaced, no file is admitted" in told
        assert "coordinator/reconciler.json does not hold a ReconcilerRecord" in told
        assert "any live agent replaces it" in told
    (empty.root / "coordinator" / "reconciler.json").unlink()
    assert empty("fsck").stdout == "no problems\n"


@pytest.mark.parametrize(
    ("key", "means"),
    [("cluster.json", "nobody can join or open this cluster"), ("secrets/rpc.json", "no actor can be called")],
)
def test_doctor_says_which_record_of_the_whole_cluster_cannot_be_read(empty: Shell, key: str, means: str) -> None:
    empty("rotate")
    (empty.root / key).write_text("garbage")
    told = empty("doctor", code=1).stdout
    assert means in told
    assert f"{key} does not hold" in told


def test_doctor_reports_the_objects_that_the_last_pass_skipped(empty: Shell) -> None:
    (empty.root / "jobs").mkdir()
    (empty.root / "jobs" / "odd.json").write_text("garbage")
    lease = {"holder": "", "problems": {"jobs/odd.json": "jobs/odd.json does not hold a JobRecord"}}
    (empty.root / "coordinator").mkdir()
    (empty.root / "coordinator" / "reconciler.json").write_text(json.dumps(lease))
    assert "last pass skipped jobs/odd.json" in empty("doctor").stdout


def test_settings_are_chosen_once(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "new")
    assert shell.json("init", "--beat-interval", "2", "--quarantine", "700")["beat_interval"] == 2.0
    assert shell.json("init", "--beat-interval", "2")["quarantine"] == 700.0
    assert "beat_interval: 3.0 " in shell("init", "--beat-interval", "3", code=1).stderr
    assert "at most twice" in shell("init", "--pass-interval", "99", code=1).stderr


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["ps", "--root", "ftp://x/y"], 1, "root: 'ftp://x/y' is not accepted"),
        (["ps", "--root", "local"], 2, "give --root ROOT"),
        (["status", "no/slash"], 1, "job: 'no/slash' is not accepted"),
        (["submit", "/no/such/file"], 2, "does not exist"),
        (["run", "--cpu", "-3", "--", "x"], 1, "--cpu: -3.0 is not accepted"),
        (["run", "--name", "x" * 10_000, "--", "x"], 1, "give at most 128 characters"),
        (["run", "--memory", "lots", "--", "x"], 1, "--memory: 'lots' is not accepted"),
        (["run", "--env", "NOT_SET_ANYWHERE", "--", "x"], 1, "--env: 'NOT_SET_ANYWHERE' is not accepted"),
        (["run", "--secret", "NOT_SET_ANYWHERE", "--", "x"], 1, "--secret: 'NOT_SET_ANYWHERE' is not accepted"),
        (["frobnicate"], 2, "`fray --help` lists all commands"),
        (["submitt"], 2, "did you mean `fray submit`?"),
    ],
)
def test_errors_are_one_line_with_a_remedy(empty: Shell, words: list[str], code: int, message: str) -> None:
    result = empty(*words, code=code)
    assert result.stdout == ""
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    if code == 1:
        assert len(result.stderr.splitlines()) == 1
    assert empty.json("ps") == []


def test_looking_at_a_root_that_is_no_cluster_does_not_make_one(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "mistyped")
    assert f"there is no cluster at {shell.root.as_uri()}" in shell("ps", code=1).stderr
    assert not shell.root.exists()


def test_without_a_root_it_says_how_to_name_one() -> None:
    result = CliRunner(env={"FRAY_CLUSTER_SPEC": None}).invoke(cli, ["ps"])
    assert result.exit_code == 2
    assert "--root ROOT or set FRAY_CLUSTER_SPEC" in result.stderr


def test_a_root_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    (tmp_path / "cluster.json").write_text('{"layout": 99, "op": "x"}')
    assert "layout version 99" in shell("ps", code=1).stderr
    (tmp_path / "cluster.json").write_text("<html>")
    assert "not a Fray root" in shell("ps", code=1).stderr


def test_one_record_that_cannot_be_read_hides_no_other(empty: Shell) -> None:
    good, bad = empty.detached("--", "true"), empty.detached("--", "true")
    (empty.root / "jobs" / f"{bad}.json").write_text("garbage")
    listing = empty("ps", "--all")
    assert good in listing.stdout
    assert f"left out: jobs/{bad}.json" in listing.stderr


def test_debug_shows_the_traceback(empty: Shell) -> None:
    failing = empty.start("status", "no-such-job", "--debug", stderr=subprocess.PIPE)
    _, text = failing.communicate(timeout=200)
    assert failing.returncode == 1
    assert "Traceback" in text
    assert "JobNotFound" in text


def test_the_key_of_calls_is_replaced(empty: Shell) -> None:
    def ids() -> list[str]:
        return [key["id"] for key in json.loads((empty.root / "secrets/rpc.json").read_text())["keys"]]

    assert empty.json("rotate") == {"accepted": 1}
    first = ids()
    assert "still accepted: 1" in empty("rotate").stdout
    assert ids()[1:] == first
    assert empty.json("rotate", "--at-once") == {"accepted": 1}
    assert not set(ids()) & set(first)


def test_a_command_that_is_terminated_while_it_follows_a_job_says_that_the_job_goes_on(empty: Shell) -> None:
    following = empty.start("run", "--", "true", stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert following.stderr is not None
    job = following.stderr.readline().split()[-1]
    said = following.stderr.readline()  # the reason why it waits: it follows by now
    following.terminate()
    assert said.startswith("fray: waiting")
    assert f"{job} keeps running; `fray stop {job}` stops it" in following.stderr.read()
    assert following.wait(200) == 143
    assert empty.json("status", job)["status"] == "pending"


def test_a_job_that_was_claimed_since_the_last_heartbeat_takes_room_in_the_reasons(empty: Shell) -> None:
    claimed, waits = (empty.detached("--name", name, "--", "true") for name in ("claimed", "waits"))

    async def claim() -> None:
        core = await open_core(empty.root.as_uri())
        one = Resources(cpu=1000, memory=10**12)
        agent = AgentRecord(id="agent", host="host", pool="default", capacity=one, free=one, interval=1e6)
        await core.records.write(AgentKeys.key("agent"), AgentRecord, agent, None)
        assert isinstance(
            await try_claim(core, entry_of((await read_job(core, claimed)).record), "agent", "host"), Claimed
        )

    asyncio.run(claim())
    (shown,) = [job for job in empty.json("ps") if job["id"] == waits]
    assert shown["waiting"] == ["no agent can take it now: agent (1 job there; cpu: 1 core wanted, 0 free)"]
