"""Typical mistakes of the first day at the command line, each with all of the text that a person gets for it.

A text says what is wrong, why, and what to do. Whoever changes one reads it here as that person does.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fray_runtime.pickling import OWN_PYTHON
from tests.support.gcs_emulator import Emulator
from tests.support.messages import last_error_line, normalized
from tests.support.servers import gcs_emulator
from tests.support.shell import FRAY, Shell
from tests.support.waiting import wait_until

TYPED = [
    ("cancel zebra", "there is no command 'cancel'; `fray stop JOB` stops a job"),
    (
        "exec zebra bash",
        "there is no command 'exec'; Fray has no such command; nobody enters a job that runs: `fray status JOB` "
        "describes a job and what it uses, and `fray logs -f JOB` follows its output",
    ),
    (
        "rm zebra",
        "there is no command 'rm'; Fray has no such command; `fray stop JOB` stops a job, and the records of jobs "
        "that have ended are removed by themselves",
    ),
    (
        "lauch train.py",
        "there is no command 'lauch'; there is no 'launch' either; `fray run -- COMMAND` runs a command and follows it",
    ),
    ("frobnicate", "there is no command 'frobnicate'; `fray --help` lists all commands"),
    ("pool list", "there is no command 'pool list'; the commands of `fray pool` are set, show, ls, rm"),
    ("queue psuh work 1", "there is no command 'queue psuh'; did you mean `fray queue push`?"),
    (
        "run python -c 'print(1)'",
        "put -- before the command, because -c could be an option of either: fray run -- python -c 'print(1)'",
    ),
    (
        "run --cpu 2 python train.py --timeout 5",
        "put -- before the command, because --timeout could be an option of either: fray run OPTIONS -- python "
        "train.py --timeout 5",
    ),
    ("run python -- -c 'print(1)'", "put -- before the command: fray run -- python -c 'print(1)'"),
    ("sumbit job.yaml", "there is no command 'sumbit'; did you mean `fray submit`?"),
    ("ps", "no cluster is given; give --root ROOT or set FRAY_CLUSTER_SPEC"),
    (
        "run --root ray:auto -- true",
        "commands need a cluster in storage, and ray:auto is not one; submit to it from Python with current_client(), "
        "or give --root ROOT; agents of that cluster can run as jobs there",
    ),
    (
        "ps --root PLACE/nowhere",
        "there is no cluster at file://PLACE/nowhere; give the right root, or create it: fray init "
        "file://PLACE/nowhere",
    ),
    (
        "ps --root gs:/bucket/fray",
        "root: 'gs:/bucket/fray' is not accepted; use gs://bucket/prefix, s3://bucket/prefix, file:///path, a plain "
        "path, or memory://name",
    ),
    (
        "agent --root /proc/fray",
        "/proc/fray can carry no cluster, as `fray doctor` says: /proc/fray cannot be created: No such file or "
        "directory; give a folder on a disk; put this right, or give another root. Give --unfit-root to join it anyway",
    ),
    (
        "agent --root PLACE --pool ../it",
        "--pool: '../it' is not accepted; use letters, digits, '-', '_' and '.', with a letter or digit at both ends "
        "and without '..'",
    ),
    (
        "run -it -- bash",
        "a job has no terminal, because it runs on another host, perhaps later, perhaps more than once. Standard input "
        "goes to the job (`fray run -- cat < FILE`), and its output is shown here; for a shell on a host, log in there",
    ),
    (
        "run -- 'cd code && make'",
        "entrypoint.command: ['cd code && make'] is not accepted; its first part is the program alone; a line for a "
        'shell is ["sh", "-c", "..."]',
    ),
    (
        "run --memory lots -- true",
        "--memory: 'lots' is not accepted; give bytes, or a size such as 512MiB or 2GB",
    ),
    (
        "run --memory 16 -- true",
        "--memory: '16' is not accepted; that is 16 bytes; write 16GB or 16MB",
    ),
    (
        "submit FILE '{name: a, entrypoint: {command: [ls]}, resources: {memory: 16}}'",
        "job.yaml: resources.memory: 16 is not accepted; that is 16 bytes; write 16GB or 16MB",
    ),
    (
        "agent --memory 8",
        "--memory: '8' is not accepted; that is 8 bytes; write 8GB or 8MB",
    ),
    (
        "run --timeout soon -- true",
        "--timeout: 'soon' is not accepted; give seconds, or a duration such as 10m or 1h30m",
    ),
    (
        "agent --idle-exit soon",
        "--idle-exit: 'soon' is not accepted; give seconds, or a duration such as 10m or 1h30m",
    ),
    (
        "agent --cpu 0",
        "--cpu: 0.0 is not accepted; give at least 0.001 cores, or leave it out to offer all of this host",
    ),
    ("run --gpus many -- true", "--gpus: 'many' is not accepted; give a count, or kind:count such as h100:8"),
    ("run --env TOKEN -- true", "--env: 'TOKEN' is not accepted; it is not set in this shell; write NAME=VALUE"),
    (
        "run --detach -- true",
        "a private cluster ends with this command; give --root ROOT to leave a job running",
    ),
    (
        "submit FILE 'command: python train.py'",
        "job.yaml: command: '...' is not accepted; a program and its arguments are "
        '"entrypoint": {"command": ["sh", "-c", "..."]}',
    ),
    (
        "submit FILE '{name: train, entrypoint: python train.py}'",
        "job.yaml: entrypoint: '...' is not accepted; a program and its arguments are "
        '"entrypoint": {"command": ["sh", "-c", "..."]}',
    ),
    (
        "submit FILE '{name: train, entrypoint: {command: [ls]}, resources: {cpus: 2}}'",
        "job.yaml: resources.cpus: 2 is not accepted; there is no such field; did you mean cpu",
    ),
    (
        "submit FILE '{entrypoint: {command: [ls]}}'",
        "job.yaml: name: None is not accepted; the field is missing and has no default; add it",
    ),
    (
        "submit FILE '{name: my job, entrypoint: {command: [ls]}}'",
        "job.yaml: name: 'my job' is not accepted; use letters, digits, '-', '_' and '.', with a letter or digit at "
        "both ends and without '..'",
    ),
    (
        "submit FILE '{name: a, entrypoint: {command: [ls]}, schedule: \"@daily\"}'",
        "job.yaml: schedule: '...' is not accepted; there is no such field; Fray has no schedules yet: let cron run "
        "`fray submit` with this file",
    ),
    (
        "submit FILE '{name: a, entrypoint: {command: [ls]}, depends_on: [b]}'",
        "job.yaml: depends_on: '...' is not accepted; there is no such field; Fray has no order between jobs of files "
        "yet: a job may launch the others and wait for each (cluster.launch, cluster.wait)",
    ),
    (
        "submit FILE '{name: a, run: python train.py}'",
        "job.yaml: run: '...' is not accepted; there is no such field; a line for a shell is \"entrypoint\": "
        '{"command": ["sh", "-c", "..."]}',
    ),
    (
        "submit FILE '{name: a, entrypoint: {command: [ls]}, resources: {accelerators: h100}}'",
        "job.yaml: resources.accelerators: '...' is not accepted; there is no such field; it is device: {kind: gpu, "
        "variant: h100, count: 8}",
    ),
    (
        "submit FILE '{name: a, entrypoint: {command: [ls]}, cpu: 4}'",
        "job.yaml: cpu: 4 is not accepted; there is no such field; it stands below resources: resources: {cpu: ...}",
    ),
    (
        "submit FILE 'name: a\nentrypoint: {command: [ls]}\nname: b\n'",
        "job.yaml: name: '...' is not accepted; it is there twice, in line 1 and in line 3; keep one of them",
    ),
    (
        'submit FILE \'{"name": "a", "entrypoint": {"command": ["ls"], "command": ["id"]}}\'',
        "job.yaml: command: '...' is not accepted; it is there twice in one object; keep one of them",
    ),
    (
        "submit FILE 'name: a\nentrypoint:\n\tcommand: [ls]\n'",
        "job.yaml, line 3, column 1: '...' is not accepted; it is not YAML: indent with blanks: YAML allows no tabs "
        "there",
    ),
    (
        "submit FILE 'name: a: b\n'",
        "job.yaml, line 1, column 8: '...' is not accepted; it is not YAML: put text that holds ': ' in "
        "quotes, and indent all fields of an object alike",
    ),
]
"""What is typed where there is no cluster. After FILE comes what it holds."""


@pytest.mark.parametrize(("words", "message"), TYPED, ids=lambda text: text[:40])
def test_a_mistyped_command_gets_its_message(words: str, message: str, tmp_path: Path) -> None:
    typed, file, content = words.replace("PLACE", str(tmp_path)).partition("FILE ")
    parts = shlex.split(typed)
    environ = {}
    if file:
        (tmp_path / "job.yaml").write_text(shlex.split(content)[0])
        parts.append("job.yaml")
        environ = {"FRAY_CLUSTER_SPEC": str(tmp_path / "root")}
    assert normalized(last_error_line(parts, tmp_path, **environ), PLACE=tmp_path) == message


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A root with an agent of one core."""
    shell = Shell(tmp_path_factory.mktemp("place") / "root")
    shell("init")
    agent = shell.start("agent", "--cpu", "1", "--memory", "2GB", stdout=subprocess.PIPE)
    assert agent.stdout is not None
    agent.stdout.readline()
    yield shell
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(200) == 0


SEGFAULT = "import ctypes; ctypes.string_at(0)"
FAILED = [
    ("run -- pythn train.py", "exited: program 'pythn' not found on this host; install it there or give its full path"),
    (
        "run -- ./train.sh",
        "exited: program './train.sh' is not in the folder where the job starts; copy its folder to the job "
        "(--workspace ., EnvironmentConfig(workspace=...)) or give a full path",
    ),
    ("run -- python -c 'import sys; sys.exit(\"bad config\")'", "exited: exit code 1: bad config"),
    (
        "run -- python -c 'import numpyy'",
        "exited: exit code 1: ModuleNotFoundError: No module named 'numpyy'; module 'numpyy' is missing here: if it "
        'belongs to the project, send that with the job by --workspace . or EnvironmentConfig(workspace="auto"); if it '
        "belongs to a package, name that by --with or pip_packages= (a private cluster has what is installed here)",
    ),
    (
        "run -- python trian.py",
        "exited: exit code 2: PYTHON: can't open file 'WORK/trian.py': [Errno 2] No such file or directory; trian.py "
        "is not in the folder where the job starts; copy its folder to the job (--workspace ., "
        "EnvironmentConfig(workspace=...)) or give a full path",
    ),
    (
        "run -- python -m trainer",
        "exited: exit code 1: PYTHON: No module named trainer; module 'trainer' is missing here: if it belongs to the "
        'project, send that with the job by --workspace . or EnvironmentConfig(workspace="auto"); if it belongs to a '
        "package, name that by --with or pip_packages= (a private cluster has what is installed here)",
    ),
    (
        f"run -- python -c '{SEGFAULT}'",
        "signalled: killed by SIGSEGV: Segmentation fault in native code, called at <string>, line N in <module>",
    ),
    ("run --timeout 100ms -- sleep 60", "timeout: ran longer than its timeout of 0.1 s (killed by SIGTERM)"),
    (
        "run --memory 50MB -- python -c 'x = b\"x\" * 10**9; import time; time.sleep(60)'",
        "out-of-memory: it used more memory than its limit of 50 MB: peak N MB, largest process python (pid N) with "
        "N MB; ask for more memory (killed by SIGKILL)",
    ),
]
"""What fails on an agent, and the reason that stands in the last line, in `fray ps` and in `fray status`."""


@pytest.mark.parametrize(("words", "reason"), FAILED, ids=lambda text: text[:40])
def test_a_failed_job_says_why(words: str, reason: str, shell: Shell) -> None:
    last = last_error_line(shlex.split(words), shell.root.parent, FRAY_CLUSTER_SPEC=str(shell.root))
    _, _, why = last.partition(" failed: ")
    why = re.sub(r"(/\S+/)?python[0-9.]*:", "PYTHON:", re.sub(r"'/\S+/trian", "'WORK/trian", why))
    assert re.sub(r"\b(peak|with|pid|line) [\d,]+", r"\1 N", why) == reason


def test_a_script_with_line_endings_of_windows_says_so_and_the_remedy_works(shell: Shell) -> None:
    script = shell.root.parent / "s.sh"
    script.write_bytes(b"#!/bin/sh\r\ntrue\r\n")
    script.chmod(0o755)
    last = last_error_line(["run", "--", str(script)], shell.root.parent, FRAY_CLUSTER_SPEC=str(shell.root))
    _, _, why = last.partition(" failed: ")
    reason, _, remedy = normalized(why, PLACE=script.parent).partition("; convert it: ")
    assert reason == (
        "exited: program 'PLACE/s.sh' has the line endings of Windows (CR LF), and there is no interpreter whose name "
        "ends in CR"
    )
    subprocess.run(remedy.replace("PLACE", str(script.parent)), shell=True, check=True)
    assert script.read_bytes() == b"#!/bin/sh\ntrue\n"


def test_a_job_that_cannot_run_says_which_resources_are_short(shell: Shell) -> None:
    asks = ["--pool gpu", "--gpus h100:8", "--cpu 1"]
    first = shell.detached("--name", "first", "--", "sleep", "1000")
    wait_until(lambda: first in shell.json("agents")[0]["holdings"])  # as its heartbeat reports it
    jobs = [shell.detached(*ask.split(), "--", "true") for ask in asks]
    (agent,) = shell.json("agents")
    waiting = {job["id"]: normalized(*job["waiting"], AGENT=agent["id"]) for job in shell.json("ps") if job["waiting"]}
    assert [waiting[job] for job in jobs] == [
        "no live agent in pool gpu; start one with `fray agent --pool gpu`; there are agents in pool default",
        "no live agent of pool default could ever run it: AGENT (gpu-h100: 8 wanted, none here); ask for less, or "
        "start an agent that has it",
        "no agent can take it now: AGENT (1 job there; cpu: 1 core wanted, 0 free)",
    ]
    shell("stop", first, *jobs)


def test_an_agent_with_another_python_than_the_program_says_both_versions(shell: Shell) -> None:
    call = {"pickle": "AA==", "name": "train", "python": "3.99"}
    job = json.dumps({"name": "newer", "entrypoint": {"callable": call}, "max_retries_failure": 3})
    shell("submit", "-", stdin=job)
    shell.until_status("newer", "failed")
    exit = shell.json("status", "newer")["exit"]
    assert re.sub(r"3\.\d\d?(, 3\.\d\d)* here", "OWN here", normalized(f"{exit['kind']}: {exit['message']}")) == (
        "environment-failed: no agent of pool default can run it: Python: 3.99 (which pickled the callable) wanted, "
        f"OWN here; install Python 3.99 and uv on the agents' hosts, or submit from Python {OWN_PYTHON}"
    )


OF_JOBS = [
    ("status nothing", "there is no job nothing under file://ROOT; `fray ps --all` lists those that exist"),
    (
        "stop zeb",
        "job: 'zeb' is not accepted; it matches JOB; give the whole id to stop it, because there is no terminal to "
        "confirm it",
    ),
    (
        "stop",
        "name the jobs to stop, or choose them with options such as --name 'sweep-*'; see fray stop --help",
    ),
    (
        "result zebra",
        "job JOB has no result; only callables have one, and commands that write the file that FRAY_RESULT names",
    ),
    (
        "pull zebra",
        "job JOB keeps no outputs; name them at its launch: JobRequest(outputs=[...]), fray run --output, or "
        "outputs in a job's file",
    ),
    (
        "retry LIONS",
        "job: 'LIONS' is not accepted; only jobs that have ended can be submitted again: it is pending; stop it or "
        "wait for its end",
    ),
    ("logs -f --tail 3 zebra", "--tail and --follow cannot be combined; give one of them"),
    ("drain ../it", "agent: '../it' is not accepted; give the id of an agent, as `fray agents` shows it"),
    ("drain nothing", "there is no live agent nothing under file://ROOT; `fray agents` lists those that exist"),
    (
        "queue push work hello",
        "item: 'hello' is not accepted; write JSON; a string needs double quotes inside the shell's quotes",
    ),
]
"""What is asked of jobs: zebra has ended, and LIONS waits."""


def test_a_request_that_cannot_be_answered_gets_its_message(shell: Shell) -> None:
    job = shell.detached("--name", "zebra", "--", "true")
    lions = shell.detached("--name", "lions", "--pool", "other", "--", "true")
    shell.until_status(job, "succeeded")
    for words, message in OF_JOBS:
        typed = shlex.split(words.replace("LIONS", lions))
        answer = last_error_line(typed, shell.root.parent, FRAY_CLUSTER_SPEC=str(shell.root))
        assert normalized(answer, JOB=job, LIONS=lions, ROOT=shell.root) == message
    shell("stop", lions)


def test_a_warning_names_the_files_that_the_job_does_not_get(shell: Shell) -> None:
    (shell.root.parent / "train.py").write_text("print(1)")
    done = shell("run", "--detach", "--", "python", "train.py")
    assert done.stderr == (
        "fray: the job gets no copy of train.py: this folder is not a project (it has no pyproject.toml, uv.lock, "
        ".git or requirements.txt); give --workspace . to copy it\n"
    )
    assert shell("run", "--detach", "--", "python", "-m", "train").stderr == done.stderr
    done = shell("run", "--detach", "--", "python", "trian.py")
    assert done.stderr == "fray: there is no file trian.py here; did you mean train.py?\n"


def test_a_warning_names_the_files_that_git_ignores(tmp_path: Path, shell: Shell) -> None:
    for name in ("train.py", "data/x.csv", "out/x.py", ".gitignore"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("data\nout/*.py\n" if name == ".gitignore" else "")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    words = ["run", "--root", str(shell.root), "-d", "--", "python", "out/x.py", "--data=data", "--log", "train.py"]
    done = subprocess.run([*FRAY, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
    workspace, warning = done.stderr.splitlines()
    assert workspace.startswith(f"fray: workspace {tmp_path}: 2 files, ")
    assert warning == (
        "fray: the job gets no copy of out/x.py, data, which .gitignore or .frayignore leaves out; take it out of "
        "there (for .gitignore, `git add -f` is enough), or let the job read it from storage"
    )


@pytest.mark.parametrize(
    ("denied", "root", "message"),
    [
        (
            [],
            "gs://nowhere/fray",
            "get gs://nowhere/fray/cluster.json: the bucket nowhere does not exist; correct its name, or make it: "
            "`gcloud storage buckets create gs://nowhere`, for which the credentials need the right "
            "storage.buckets.create",
        ),
        (
            ["GET"],
            "gs://bucket/fray",
            "get gs://bucket/fray/cluster.json: HTTP 403: the caller does not have GET access; the credentials need "
            "the right storage.objects.get",
        ),
    ],
)
def test_a_bucket_that_is_not_there_or_not_allowed(denied: list[str], root: str, message: str, tmp_path: Path) -> None:
    with gcs_emulator(Emulator(denied=frozenset(denied))) as server:
        assert last_error_line(["ps"], tmp_path, FRAY_CLUSTER_SPEC=root, **server.environment) == message
