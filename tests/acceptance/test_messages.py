"""Typical mistakes of the first day, each with all of the text that a person gets for it.

A text says what is wrong, why, and what to do. Whoever changes one reads it here as that person does.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fray import (
    Entrypoint,
    InvalidInput,
    JobFailed,
    JobRequest,
    LocalCluster,
    ResourceConfig,
    StorageClient,
    StorageCluster,
)
from fray.cli import cli
from fray.errors import ActorUnavailableError
from fray.pool import WorkerPool
from fray.queue import MemoryQueue
from tests.support.gcs_emulator import Emulator
from tests.support.servers import gcs_emulator
from tests.support.shell import Shell
from tests.support.waiting import wait_until


def told(text: str, **names: object) -> str:
    """A text with the random part of ids, and what `names` are for, replaced."""
    for name, value in names.items():
        text = text.replace(str(value), name)
    text = re.sub(r"-1[a-z0-9]{14}\b", "-ID", text)  # first, for "0x" may be within an id
    return re.sub(r"\b0x[0-9a-f]+|(?<=worker-)[0-9a-f]{8}\b|(?<=lease )\S+(?=:)", "0x", text).strip()


def said(words: list[str], place: Path, **environ: str) -> str:
    """The last line of what a command that fails says."""
    with chdir(place):
        done = CliRunner(env={"FRAY_CLUSTER_SPEC": None, **environ}).invoke(cli, words)
    assert done.exit_code
    return done.stderr.splitlines()[-1].removeprefix("Error: ").removeprefix("fray: ")


TYPED = [
    ("cancel zebra", "there is no command 'cancel'; did you mean `fray stop`?"),
    ("sumbit job.yaml", "there is no command 'sumbit'; did you mean `fray submit`?"),
    ("ps", "no cluster is named; give --root ROOT or set FRAY_CLUSTER_SPEC"),
    (
        "run --root ray:auto -- true",
        "commands work on a cluster in storage, and ray:auto is none; submit there in Python, by current_client(), or "
        "give --root ROOT: agents of such a cluster may be jobs there",
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
        "/proc/fray can carry no cluster, as `fray doctor` says: /proc/fray cannot be made there: No such file or "
        "directory; give a folder of a disk; put this right, or give another root. --unfit-root joins it anyway",
    ),
    (
        "agent --root PLACE --pool ../it",
        "--pool: '../it' is not accepted; use letters, digits, '-', '_' and '.', with a letter or digit at both ends "
        "and without '..'",
    ),
    (
        "run -it -- bash",
        "a job has no terminal: it runs on another host, perhaps later, perhaps again. What is piped goes along "
        "(`fray run -- cat < FILE`), and what the job prints is shown here; to look around on a host, log in there",
    ),
    (
        "run -- 'cd code && make'",
        "entrypoint.command: ['cd code && make'] is not accepted; its first part is the program alone; a line for a "
        'shell is ["sh", "-c", "..."]',
    ),
    (
        "run --memory lots -- true",
        "resources.memory: 'lots' is not accepted; give bytes, or a size such as 512MiB or 2GB",
    ),
    ("run --gpus many -- true", "--gpus: 'many' is not accepted; give a count, or kind:count such as h100:8"),
    ("run --env TOKEN -- true", "--env: 'TOKEN' is not accepted; it is not set here; write NAME=VALUE"),
    (
        "run --detach -- true",
        "a private cluster ends with this command; give --root ROOT to leave a job running",
    ),
    (
        "submit FILE 'command: python train.py'",
        "command: '...' is not accepted; a program and its arguments are "
        '"entrypoint": {"command": ["sh", "-c", "..."]}',
    ),
    (
        "submit FILE '{name: train, entrypoint: python train.py}'",
        "entrypoint: '...' is not accepted; a program and its arguments are "
        '"entrypoint": {"command": ["sh", "-c", "..."]}',
    ),
    (
        "submit FILE '{name: train, entrypoint: {command: [ls]}, resources: {cpus: 2}}'",
        "resources.cpus: 2 is not accepted; there is no such field; did you mean cpu",
    ),
    (
        "submit FILE '{entrypoint: {command: [ls]}}'",
        "name: None is not accepted; the field is missing and has no default; add it",
    ),
    (
        "submit FILE '{name: my job, entrypoint: {command: [ls]}}'",
        "name: 'my job' is not accepted; use letters, digits, '-', '_' and '.', with a letter or digit at both ends "
        "and without '..'",
    ),
]
"""What is typed where there is no cluster. After FILE comes what it holds."""


@pytest.mark.parametrize(("words", "message"), TYPED, ids=lambda text: text[:40])
def test_what_is_typed_wrong(words: str, message: str, tmp_path: Path) -> None:
    typed, file, content = words.replace("PLACE", str(tmp_path)).partition("FILE ")
    parts = shlex.split(typed)
    environ = {}
    if file:
        (tmp_path / "job.yaml").write_text(shlex.split(content)[0])
        parts.append("job.yaml")
        environ = {"FRAY_CLUSTER_SPEC": str(tmp_path / "root")}
    assert told(said(parts, tmp_path, **environ), PLACE=tmp_path) == message


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
        "exited: program './train.sh' is not in the folder where the job starts; take its own along (--workspace, "
        "EnvironmentConfig(workspace=...)) or give a full path",
    ),
    ("run -- python -c 'import sys; sys.exit(\"bad config\")'", "exited: exit code 1: bad config"),
    (
        "run -- python -c 'import numpyy'",
        "exited: exit code 1: ModuleNotFoundError: No module named 'numpyy'",
    ),
    (
        f"run -- python -c '{SEGFAULT}'",
        "signalled: killed by SIGSEGV: Segmentation fault in native code, called at <string>, line N in <module>",
    ),
    ("run --timeout 0.1 -- sleep 60", "timeout: ran longer than its timeout of 0.1 s (killed by SIGTERM)"),
    (
        "run --memory 50MB -- python -c 'x = b\"x\" * 10**9; import time; time.sleep(60)'",
        "out-of-memory: it used more memory than its limit of 50 MB: peak N MB, largest process python (pid N) with "
        "N MB; ask for more memory (killed by SIGKILL)",
    ),
]
"""What fails on an agent, and the reason that stands in the last line, in `fray ps` and in `fray status`."""


@pytest.mark.parametrize(("words", "reason"), FAILED, ids=lambda text: text[:40])
def test_what_fails_says_why(words: str, reason: str, shell: Shell) -> None:
    last = said(shlex.split(words), shell.root.parent, FRAY_CLUSTER_SPEC=str(shell.root))
    _, _, why = last.partition(" failed: ")
    assert re.sub(r"\b(peak|with|pid|line) [\d,]+", r"\1 N", why) == reason


def test_what_cannot_run_says_what_is_short(shell: Shell) -> None:
    asks = ["--pool gpu", "--gpus h100:8", "--cpu 1"]
    first = shell.detached("--name", "first", "--", "sleep", "1000")
    wait_until(lambda: first in shell.json("agents")[0]["holdings"])  # as its heartbeat tells
    jobs = [shell.detached(*ask.split(), "--", "true") for ask in asks]
    (agent,) = shell.json("agents")
    waiting = {job["id"]: told(*job["waiting"], AGENT=agent["id"]) for job in shell.json("ps") if job["waiting"]}
    assert [waiting[job] for job in jobs] == [
        "no live agent in pool gpu; start one with `fray agent --pool gpu`; there are agents in pool default",
        "no live agent of pool default could ever run it: AGENT (gpu-h100: 8 wanted, none here); ask for less, or "
        "start an agent that has it",
        "no agent can take it now: AGENT (1 job there; cpu: 1 core wanted, 0 free)",
    ]
    shell("stop", first, *jobs)


OF_JOBS = [
    ("status nothing", "there is no job nothing under file://ROOT; `fray ps --all` lists those that exist"),
    ("stop zeb", "job: 'zeb' is not accepted; it means JOB; give the whole id to stop it, as nobody can be asked here"),
    (
        "stop",
        "name the jobs to stop, or choose them by options, such as --name 'sweep-*'; see fray stop --help",
    ),
    (
        "result zebra",
        "job JOB has no result; only a callable returns one, or a command that writes the file FRAY_RESULT names",
    ),
    (
        "pull zebra",
        "job JOB keeps no outputs; name them when it is launched: JobRequest(outputs=[...]), or outputs in a job's "
        "file",
    ),
    (
        "retry LIONS",
        "job: 'LIONS' is not accepted; only what has ended is submitted once more: it is pending; stop it or wait "
        "for its end",
    ),
    ("logs -f --tail 3 zebra", "--tail and --follow do not go together; give one of them"),
    ("drain ../it", "agent: '../it' is not accepted; give the id of an agent, as `fray agents` shows it"),
    ("drain nothing", "there is no live agent nothing under file://ROOT; `fray agents` lists those there are"),
    (
        "queue push work hello",
        "item: 'hello' is not accepted; write JSON; a text needs double quotes, inside the shell's own",
    ),
]
"""What is asked of jobs: zebra has ended, and LIONS waits."""


def test_what_is_asked_in_vain(shell: Shell) -> None:
    job = shell.detached("--name", "zebra", "--", "true")
    lions = shell.detached("--name", "lions", "--pool", "other", "--", "true")
    shell.until_status(job, "succeeded")
    for words, message in OF_JOBS:
        typed = shlex.split(words.replace("LIONS", lions))
        answer = said(typed, shell.root.parent, FRAY_CLUSTER_SPEC=str(shell.root))
        assert told(answer, JOB=job, LIONS=lions, ROOT=shell.root) == message
    shell("stop", lions)


def test_a_file_that_stays_here_is_told(shell: Shell) -> None:
    (shell.root.parent / "train.py").write_text("print(1)")
    done = shell("run", "--detach", "--", "python", "train.py")
    assert done.stderr == (
        "fray: train.py stays here: this folder is no project (it has no pyproject.toml, uv.lock or .git), so "
        "nothing goes along; --workspace . takes this folder along\n"
    )


def train(steps: int = 1) -> int:
    return 2 * steps


def job(*args: Any, **more: Any) -> JobRequest:
    return JobRequest("train", *args, **more)


class Counter:
    def __init__(self, weights: str = "") -> None:
        self.weights = Path(weights).read_text() if weights else ""


def launch_in_a_thread(_: StorageCluster) -> None:
    with LocalCluster(use_processes=False) as cluster:
        cluster.launch(train)  # type: ignore[arg-type]


def use_a_pool_that_was_shut_down(nobody: StorageCluster) -> None:
    with WorkerPool(nobody, 1) as pool:
        pass
    pool.submit(train)


def acknowledge_twice(nobody: StorageCluster) -> None:
    queue = MemoryQueue[int]()
    queue.push(1)
    lease = queue.pop()
    assert lease is not None
    lease.done()
    lease.done()


WRITTEN: list[tuple[Callable[[StorageCluster], object], str]] = [
    (
        lambda c: c.launch(job(Entrypoint.from_callable(train(3)))),  # type: ignore[arg-type]
        "InvalidInput: entrypoint.callable: 6 is not accepted; give the function itself, and its arguments by args=: "
        "from_callable(train, args=(3,))",
    ),
    (
        lambda c: c.launch(job("python train.py")),
        "InvalidInput: entrypoint: 'python train.py' is not accepted; give a function, "
        "Entrypoint.from_callable(function, args=(...)) or Entrypoint.from_binary(program, [...])",
    ),
    (
        lambda c: c.launch(job(Entrypoint.from_binary("echo", "hello"))),
        "InvalidInput: entrypoint.args: 'hello' is not accepted; give a list of them, also of one: args=[\"value\"]",
    ),
    (
        lambda c: c.launch(job(Entrypoint.from_callable(train, args=(threading.Lock(),)))),
        "InvalidInput: entrypoint.args[0]: <unlocked _thread.lock object at 0x> is not accepted; it cannot be pickled "
        "(cannot pickle '_thread.lock' object); make it inside the job instead",
    ),
    (
        lambda c: c.launch(job(train, {"cpu": 2})),
        "InvalidInput: resources: {'cpu': 2} is not accepted; give a ResourceConfig",
    ),
    (
        lambda c: c.launch(job(train, ResourceConfig(ram="lots"))),
        "InvalidInput: resources.memory: 'lots' is not accepted; give bytes, or a size such as 512MiB or 2GB",
    ),
    (
        lambda c: StorageCluster("gs:/bucket/fray").list_jobs(),
        "InvalidInput: root: 'gs:/bucket/fray' is not accepted; use gs://bucket/prefix, s3://bucket/prefix, "
        "file:///path, a plain path, or memory://name",
    ),
    (
        lambda c: c.poll("nothing"),
        "JobNotFound: there is no job nothing under memory://messages; `fray ps --all` lists those that exist",
    ),
    *(
        (
            mistake,
            "InvalidInput: request: <function train at 0x> is not accepted; give a JobRequest: "
            'JobRequest("name", Entrypoint.from_callable(train))',
        )
        for mistake in (
            lambda c: c.launch(train),
            lambda c: StorageClient(c).submit(train),  # type: ignore[arg-type]
            launch_in_a_thread,
        )
    ),
    (
        lambda c: c.launch(Entrypoint.from_binary("ls")),  # type: ignore[arg-type]
        "InvalidInput: request: BinaryEntrypoint(command='ls', args=()) is not accepted; give a JobRequest: "
        'JobRequest("name", Entrypoint.from_binary(program, [...]))',
    ),
    (
        lambda c: c.launch([]),  # type: ignore[arg-type]
        "InvalidInput: request: [] is not accepted; give one JobRequest; launch_many launches several",
    ),
    (
        lambda c: c.launch_many(7),  # type: ignore[arg-type]
        "InvalidInput: requests: 7 is not accepted; give a list of JobRequests; launch(request) launches one",
    ),
    (
        lambda c: c.launch_many([job(train), 7]),  # type: ignore[list-item]
        "InvalidInput: requests[1]: 7 is not accepted; give a JobRequest: "
        'JobRequest("name", Entrypoint.from_callable(function))',
    ),
    (
        lambda c: c.poll([]),  # type: ignore[arg-type]
        "InvalidInput: job_id: [] is not accepted; give the id of one job, as launch returned it",
    ),
    (
        lambda c: c.wait([7]),  # type: ignore[list-item]
        "InvalidInput: job_id[0]: 7 is not accepted; give the id of one job, as launch returned it",
    ),
    (
        lambda c: WorkerPool(2),  # type: ignore[arg-type]
        "InvalidInput: cluster: 2 is not accepted; a number of workers is num_workers=..., a cluster is "
        "LocalCluster() or StorageCluster(root)",
    ),
    (
        lambda c: MemoryQueue[int]().done(1),  # type: ignore[arg-type]
        "InvalidInput: lease: 1 is not accepted; give the lease that pop returned (not its item), or a list of leases",
    ),
    (use_a_pool_that_was_shut_down, "PoolClosed: pool worker-0x was shut down; make another one"),
    (
        acknowledge_twice,
        "UnknownLease: lease 0x: The lease was done or released before, ran out, was purged, or is not of this "
        "queue; its item is as it was.",
    ),
]
"""What is written in Python, on a cluster without agents."""


@pytest.mark.parametrize(("mistake", "message"), WRITTEN)
def test_what_is_written_wrong(mistake: Callable[[StorageCluster], object], message: str) -> None:
    with StorageCluster("memory://messages") as nobody, pytest.raises(Exception) as raised:  # noqa: PT011 its text is
        mistake(nobody)
    assert told(f"{type(raised.value).__name__}: {raised.value}") == message


def test_what_is_given_instead_of_an_id() -> None:
    with StorageCluster("memory://messages") as nobody:
        launched = nobody.launch(job(train))
        given = [job(train), nobody.poll(launched), StorageClient(nobody).submit(job(train))]
        ways: list[Callable[[Any], object]] = [
            *(nobody.wait, nobody.poll, nobody.result, nobody.logs, nobody.usage, nobody.terminate),
            lambda job: nobody.wait([launched, job]),
            lambda job: asyncio.run(nobody.wait_async(job)),
        ]
        remedies = set()
        for way in ways:
            for value in given:
                with pytest.raises(InvalidInput, match=r"^job_id(\[1\])?: ") as raised:
                    way(value)
                remedies.add(raised.value.remedy)
    assert remedies == {
        "launch it first, and give the id that launch returns",
        "give its id: JobInfo.job_id",
        "give its id: JobHandle.job_id",
    }


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
        assert said(["ps"], tmp_path, FRAY_CLUSTER_SPEC=root, **server.environment) == message


def test_a_time_out_says_what_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (
        "fray_coordinator.jobs.waiting",
        "fray_coordinator.jobs.waiting_reasons",
        "fray.actor.address",
        "fray.pool.diagnosis",
    ):
        monkeypatch.setattr(f"{module}.WARN_AFTER", 0.1)
    nobody_there = "no live agent in pool default; start one with `fray agent --pool default`"
    with StorageCluster("memory://messages") as nobody:
        launched, client = nobody.launch(job(train)), StorageClient(nobody)
        future = client.create_actor(Counter, name="counter").count.remote()
        task = WorkerPool(nobody, 1).submit(train)

        def told_by(wait: Callable[..., object]) -> str:
            """The error once it has its reason, which is looked for while something waits."""
            return wait_until(lambda: said if nobody_there in (said := told(str(error_of(wait)))) else None)

        def error_of(wait: Callable[..., object]) -> BaseException:
            with pytest.raises(TimeoutError) as raised:
                wait(timeout=1)
            return raised.value

        with ThreadPoolExecutor() as threads:
            ended = list(threads.map(told_by, [partial(nobody.wait, launched), future.result, task.result]))
        for job_id in [info.job_id for info in nobody.list_jobs()]:
            nobody.terminate(job_id)
        assert isinstance(future.exception(200), ActorUnavailableError)
    assert ended == [
        f"0 of 1 jobs done, 1 waiting after 1 s (train-ID): {nobody_there}",
        f"no result after 1 s: actor 'counter' (counter-0-ID) has not started: {nobody_there}",
        f"no result after 1 s: 0 of 1 tasks done, 0 of 1 workers up (1 pending ({nobody_there}); "
        "`fray status worker-0x-0-ID` tells more)",
    ]


def test_what_a_job_or_actor_raises_arrives_with_what_to_do() -> None:
    def imports() -> None:
        import numpyy  # type: ignore[import-not-found]  # noqa: F401

    with LocalCluster() as cluster:
        with pytest.raises(JobFailed) as failed:
            cluster.result(cluster.launch(job(imports)))
        with pytest.raises(Exception) as ended:  # noqa: PT011
            StorageClient(cluster).create_actor(Counter, "nowhere/weights", name="counter").count()
    first, *_, last = told(str(failed.value)).splitlines()
    assert first == "job train-ID failed at attempt 1: exception: ModuleNotFoundError: No module named 'numpyy'"
    assert last == (
        "module 'numpyy' is missing here: if it is of the project, take that along by "
        'EnvironmentConfig(workspace="auto") or a folder; if it is of a package, name that in pip_packages='
    )
    first, *_ = told(str(ended.value)).splitlines()
    assert first == (
        "actor 'counter' (counter-0-ID) has ended: job counter-0-ID failed at attempt 1: exception: FileNotFoundError: "
        "[Errno 2] No such file or directory: 'nowhere/weights'"
    )
