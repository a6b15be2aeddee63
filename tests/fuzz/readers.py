"""Every reader of bytes, with a good example of what it reads and the errors that it is documented to raise."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import zstandard

from fray.cli.commands.submit import read_jobs
from fray.cluster.pulling import pull_outputs
from fray.errors import NoOutputs
from fray.workspace.projects import parse_pyproject
from fray.workspace.selection import IgnoreRules
from fray_agents.environments.cache import EnvironmentFailed
from fray_agents.environments.packages import read_packages
from fray_agents.environments.workspace import unpack
from fray_agents.runner.exit_report import (
    bounded_exit,
    exit_fields,
    read_exception,
)
from fray_agents.tasks.process_task import _result_file
from fray_coordinator import fsck
from fray_coordinator.actors import rpc_secrets
from fray_coordinator.actors.checkpoints import open_log
from fray_coordinator.clock import SystemClock, system_random
from fray_coordinator.core import Core, core_on
from fray_coordinator.errors import BadRecord, Fenced, ParentNotRunning
from fray_coordinator.jobs import job_archive, lookup
from fray_coordinator.jobs.logs import read_logs
from fray_coordinator.jobs.stopping import stop
from fray_coordinator.jobs.submission import submit
from fray_coordinator.jobs.waiting import WatchedJobs
from fray_coordinator.queue.receipts import ReceiptLog
from fray_coordinator.reconcile import removal
from fray_coordinator.reconcile.removal import ArchiveKeeper
from fray_coordinator.store.buckets import classify_status
from fray_coordinator.store.http_client import HttpAnswer, IncomingAnswer
from fray_coordinator.store.interface import ANY, BadObject, Unknown
from fray_coordinator.store.memory import MemoryBackend, MemoryContents
from fray_coordinator.store.s3 import parse_error, parse_page
from fray_coordinator.store.store import Store
from fray_layouts import queue_records, records
from fray_layouts.errors import InvalidInput, Malformed
from fray_layouts.object_keys import (
    CLUSTER_KEY,
    AgentKeys,
    ArchiveKeys,
    CoordinatorKeys,
    EndpointKey,
    JobKeys,
    MachineKeys,
    NameKeys,
    PoolKeys,
    ReservationKeys,
    SecretKeys,
)
from fray_layouts.queue_keys import QueueKeys, TaskKeys
from fray_layouts.queue_records import (
    QueueLease,
    QueueRecord,
    SegmentHeader,
    decode_segment,
    encode_segment,
)
from fray_layouts.spec import EnvironmentSpec, WorkspaceSpec
from fray_layouts.spec_parsing import parse_spec
from fray_layouts.work_keys import CheckpointKey, WorkKeys
from fray_rpc.errors import BadMessage
from fray_rpc.hints import read_hint
from fray_rpc.server.protocols import parse_path
from fray_rpc.wire.http_connection import RECEIVE_BYTES, MessageParser
from fray_rpc.wire.json_codec import parse_call
from tests.fuzz.examples import (
    AGENT,
    ARCHIVED,
    ENDPOINT,
    GANG,
    JOB,
    LOG,
    PASS,
    REQUEST,
    RESERVATION,
    RESPONSE,
    SPEC,
)
from tests.support.archives import directory, file, link, packed


@dataclass(frozen=True)
class Reader:
    """One reader.

    Attributes:
        name: what it reads.
        read: the function.
        raises: all errors that it may raise.
        example: bytes that it accepts.
    """

    name: str
    read: Callable[[bytes], Any]
    raises: tuple[type[Exception], ...]
    example: bytes


def _cluster_with(key: str, act: Callable[[Core], Awaitable[object]]) -> Callable[[bytes], object]:
    """A reader of the object `key` of a cluster by a service."""

    async def run(data: bytes) -> object:
        core = await _core()
        await core.store.put(key, data, ANY)
        return await act(core)

    return lambda data: _runner().run(run(data))


@functools.cache
def _runner() -> asyncio.Runner:
    return asyncio.Runner()


async def _core() -> Core:
    clock, rng = SystemClock(), system_random()
    backend = MemoryBackend("memory://fuzz", MemoryContents(), clock)
    return await core_on(Store(backend, clock, rng), None, clock, rng)


def _record(name: str, key: str, kind: type[records.Record], example: object) -> Reader:
    read = _cluster_with(key, lambda core: core.records.read(key, kind))
    return Reader(name, read, (BadRecord,), msgspec.json.encode(example))


def _job_named(job_id: str) -> records.JobRecord:
    return msgspec.convert({**JOB, "id": job_id}, records.JobRecord)


def _archived(name: str, raises: tuple[type[Exception], ...], act: Callable[[Core], Awaitable[object]]) -> Reader:
    """A service that reads the record of a job in the archive."""
    read = _cluster_with(ArchiveKeys.key("train-1"), act)
    return Reader(f"archived job, {name}", read, raises, msgspec.json.encode(ARCHIVED))


async def _move_again(core: Core) -> None:
    """A copy is there already, from a mover that died."""
    job = msgspec.convert(ARCHIVED, records.JobRecord)
    await core.records.write(JobKeys.key(job.id), records.JobRecord, job, None)
    await job_archive.archive(core, "train-1")


async def _sweep(core: Core) -> None:
    """Retention has ended."""
    keeper = ArchiveKeeper(core)
    with (
        mock.patch.object(removal, "is_archived_record_due", return_value=True),
        mock.patch.object(removal, "retention_seconds", return_value=-1e9),
    ):
        await keeper.run()
    assert not keeper.problems.keys() - {ArchiveKeys.key("train-1")}


async def _submit_again(core: Core) -> None:
    await submit(core, [parse_spec(json.dumps({**SPEC, "id": "train-1"}).encode())])


async def _submit_child(core: Core) -> None:
    with contextlib.suppress(ParentNotRunning):  # as nearly all archived jobs
        await submit(core, [parse_spec(json.dumps({**SPEC, "parent": "train-1"}).encode())])


def _with_outputs() -> records.JobRecord:
    kept = records.KeptOutputs(key=WorkKeys.outputs("train-1", 2, 0))
    return msgspec.structs.replace(_job_named("train-1"), status="succeeded", outputs=kept)


def _answer(data: bytes) -> HttpAnswer:
    async def received() -> HttpAnswer:
        answer = IncomingAnswer(1000, lambda size: None)
        answer.feed(data)
        answer.end(None)
        return await answer.received

    return asyncio.run(received())


def _messages(requests: bool, data: bytes) -> int:
    framing, count = MessageParser(requests, max_body=1000), 0
    for start in range(0, len(data), RECEIVE_BYTES):
        framing.feed(data[start : start + RECEIVE_BYTES])
        while framing.next() is not None:
            count += 1
    return count


def _packages(name: str) -> Callable[[bytes], Any]:
    """Reads a file that states packages, of a project whose other files are in order."""
    others = {"pyproject.toml": b'[project]\nname = "p"\ndependencies = ["a"]\n', "limits.txt": b"a\n"}

    def read(data: bytes) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            for other, content in {**others, name: data}.items():
                Path(folder, other).write_bytes(content)
            workspace = WorkspaceSpec(blob=f"blobs/2026-01/{'0' * 64}", dependencies=name)
            return read_packages(EnvironmentSpec(workspace=workspace), Path(folder))

    return read


def _file(read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """A reader of a file that a task writes."""

    def run(data: bytes) -> object:
        path = _folder() / "left"
        path.write_bytes(data)
        return read(path)

    return run


def _unpacked(tar: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=_folder()) as place:
        unpack(zstandard.compress(tar), Path(place))


@functools.cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="fray-fuzz-"))


def _exit_of(path: Path) -> records.AttemptExit:
    """The exit of an attempt, as in its job's record, whose process wrote the file as its error."""
    end = bounded_exit(exit_fields(status=1 << 8, error=read_exception(str(path))))
    told = json.dumps(end, ensure_ascii=False).encode()
    assert len(told) < EXIT_BYTES
    return msgspec.json.decode(told, type=records.AttemptExit)


EXIT_BYTES = 500_000
"""Bytes; more than the exit of any attempt may have in its job's record."""

_QUEUE = QueueKeys.of("lab", "work", 1)


def _last_words(data: bytes) -> None:
    end = bounded_exit(exit_fields(status=1 << 8, stderr=data))
    assert msgspec.convert(end, records.AttemptExit).kind == "exited"
    assert "\n" not in end["message"]


READERS = [
    _record("job", JobKeys.key("train-1"), records.JobRecord, JOB),
    _record("agent", AgentKeys.key("host-1"), records.AgentRecord, AGENT),
    _record(
        "pool of agents",
        PoolKeys.record("default"),
        records.AgentPoolRecord,
        {"environments": [{"extras": ["tpu"], "pip_packages": ["einops"], "workspace": {"blob": "blobs/2026-01/0"}}]},
    ),
    _record("reservation", ReservationKeys.key("r-1"), records.ReservationRecord, RESERVATION),
    _record("plan", PoolKeys.plan("default"), records.PoolPlan, {"owners": {"host-1": ["jobs/train-1.json"]}}),
    _record(
        "machine",
        MachineKeys.key("default", "m-1"),
        records.MachineRecord,
        {"pool": "default", "name": "m-1", "state": "up", "hosts": 2, "batch": "m-1", "batch_size": 3},
    ),
    _record(
        "pool's machines",
        PoolKeys.record("default"),
        records.AgentPoolRecord,
        {"provisioning": {"provider": "tpu", "machine_type": "v5litepod-16", "zones": ["a-b1-c"], "min": 1, "max": 2}},
    ),
    _record(
        "scaler",
        CoordinatorKeys.scaler,
        records.ScalerRecord,
        {"holder": "host-1", "pools": {"default": {"machines": 1, "zones": {"z": {"kind": "quota", "until": 1.8e9}}}}},
    ),
    _record(
        "exit of a replica",
        WorkKeys.exit("train-1", 2, 0),
        records.ReplicaExit,
        {
            "agent": "host-1",
            "host": "host",
            "exit": {"kind": "success"},
            "ended_at": 1.8e9,
            "outputs": {"key": "k", "parts": 1, "size": 3, "files": 1},
        },
    ),
    _record("settings", CLUSTER_KEY, records.ClusterSettings, {"cluster_id": "c", "pass_interval": 7.5}),
    _record("archived job", ArchiveKeys.key("train-1"), records.JobRecord, ARCHIVED),
    _archived("found", (BadRecord,), lambda core: lookup.find_job(core, "train-1")),
    _archived("listed", (), lambda core: lookup.all_jobs(core, {})),
    _archived("of many", (), lambda core: lookup.read_jobs(core, ["train-1"], {})),
    _archived("waited for", (BadRecord,), lambda core: WatchedJobs(core, ["train-1"]).poll()),
    _archived("asked to stop", (BadRecord,), lambda core: stop(core, "train-1", "late")),
    _archived("submitted again", (BadRecord, InvalidInput), _submit_again),
    _archived("named as a parent", (BadRecord,), _submit_child),
    _archived("moved again", (BadRecord,), _move_again),
    _archived("removed", (), _sweep),
    _archived("checked", (), fsck.check),
    _record("gang", JobKeys.key("train-1"), records.JobRecord, GANG),
    _record("pass", CoordinatorKeys.reconciler, records.ReconcilerRecord, PASS),
    _record("endpoint", EndpointKey("lab", "actor", "actor-1").key(), records.EndpointRecord, ENDPOINT),
    _record("name", NameKeys.key("lab", "actor", "actor"), records.NameRecord, {"job": "train-1", "attempt": 2}),
    _record("queue settings", _QUEUE.settings, QueueRecord, {"quarantine": 60.0, "max_deliveries": 5}),
    _record(
        "queue lease",
        _QUEUE.lease("4991mcc5rxrg"),
        QueueLease,
        {"owner": "o", "done": "3", "failures": {"0": 1}, "dead_lettered_at": {"1": 1.8e9}},
    ),
    Reader(
        "receipt",
        _cluster_with(
            _QUEUE.receipt_at("k7w2m9p4", 1.8e9, "0" * 16),
            lambda core: ReceiptLog(core.store, core.records, core.rng, _QUEUE).names("4991mcc5rxrg", "k7w2m9p40"),
        ),
        (),
        msgspec.json.encode({"done": {"k7w2m9p40": ["4991mcc5rxrg"]}}),
    ),
    _record(
        "pool", TaskKeys.of("lab", "work", 1).pool, queue_records.PoolRecord, {"created_at": 1.8e9, "jobs": ["train-1"]}
    ),
    Reader(
        "keys",
        _cluster_with(SecretKeys.rpc, rpc_secrets.rpc_keys),
        (BadRecord,),
        msgspec.json.encode({"keys": [{"id": "k", "secret": "AAAA" * 8, "created_at": 1.8e9}]}),
    ),
    Reader(
        "log chunk",
        _cluster_with(WorkKeys.log("train-1", 2, 0, 1), lambda core: read_logs(core, _job_named("train-1"))),
        (BadRecord,),
        LOG,
    ),
    Reader(
        "outputs",
        _cluster_with(WorkKeys.outputs("train-1", 2, 0), lambda core: pull_outputs(core, _with_outputs(), _folder())),
        (NoOutputs,),
        b'{"files":[{"path":"a/b","executable":true},{"path":"c"}],"part_bytes":7,"left_out":[{"path":"d","why":"e"}]}',
    ),
    Reader(
        "checkpoint",
        _cluster_with(CheckpointKey("train-1", "actor", 1).key(), lambda core: open_log(core, "train-1", "actor", 3)),
        (BadRecord, Fenced),
        b'{"attempt":2,"writer":"w","fence":true}\nstate',
    ),
    Reader(
        "segment",
        decode_segment,
        (Malformed,),
        encode_segment(SegmentHeader(encoding="json", sizes=[1, 2]), [b"1", b"22"]),
    ),
    Reader("dropped spec", parse_spec, (InvalidInput,), json.dumps(SPEC).encode()),
    Reader("request", functools.partial(_messages, True), (BadMessage,), REQUEST),
    Reader("response", functools.partial(_messages, False), (BadMessage,), RESPONSE),
    Reader("hint", read_hint, (BadMessage,), b'{"hint":"submitted"}'),
    Reader("call in JSON", parse_call, (Malformed,), b'{"args":[1],"kwargs":{"a":"b"},"client":"c","number":1}'),
    Reader("path of a call", parse_path, (Malformed,), b"/v1/actors/store/methods/add"),
    Reader(
        "pool's outcomes",
        queue_records.decode_outcomes,
        (Malformed,),
        queue_records.encode_outcomes([queue_records.TaskOutcome("task", "value", 1, b"pickle")]),
    ),
    Reader(
        "error of a callable",
        _file(_exit_of),
        (),
        b'{"kind":"exception","message":"ValueError: x","exception":"ValueError","traceback":"...","data":"eA=="}',
    ),
    *(
        Reader(f"a project's {name}", _packages(name), (EnvironmentFailed,), example)
        for name, example in (
            ("uv.lock", b'[[package]]\nname = "p"\n[package.metadata]\nrequires-dist = [{ name = "a" }]\n'),
            ("pyproject.toml", b'[project]\nname = "p"\ndependencies = ["a"]\n[build-system]\nrequires = ["b"]\n'),
            ("requirements.txt", b"-r requirements.txt\n-c limits.txt # of all\na>=1 \\\n,<2\n./b\n"),
        )
    ),
    Reader(
        "what a task said last",
        _last_words,
        (),
        b'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: no\n'
        b'Fatal Python error: Aborted\n\nCurrent thread 0x7f (most recent call first):\n  File "a.py", line 1 in f\n',
    ),
    Reader("result of a command", _file(lambda path: _result_file(path, "bytes")), (), b'{"loss":0.5,"steps":[1,2]}'),
    Reader(
        "workspace",
        _unpacked,
        (EnvironmentFailed,),
        zstandard.decompress(packed(file("src/a.py", b"print()"), directory("b"), link("c", "src"))),
    ),
    Reader("answer of a store", _answer, (Unknown, BadObject), b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
    Reader(
        "listing of S3",
        parse_page,
        (ValueError,),
        b'<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        b"<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated><NextContinuationToken>n</NextContinuationToken>"
        b"<Contents><Key>a%20b</Key><ETag>e</ETag></Contents></ListBucketResult>",
    ),
    Reader("error of S3", parse_error, (), b"<Error><Code>SlowDown</Code><Region>eu-west-1</Region></Error>"),
    Reader(
        "refusal of a store",
        lambda data: classify_status(400, data.decode(errors="replace"), "right", data[:20].decode(errors="replace")),
        (),
        b"<Error><Code>RequestTimeout</Code><Message>Your socket was idle</Message></Error>",
    ),
]
"""Readers of objects that strangers may have written; their cost is bounded too."""

OWN = [
    Reader(
        "job file",
        lambda data: read_jobs(data.decode(errors="replace"), "job.yaml"),
        (InvalidInput,),
        b"name: train\nentrypoint:\n  command: [python, train.py]\n",
    ),
    Reader(
        "project file",
        lambda data: parse_pyproject(data, Path("pyproject.toml")),
        (InvalidInput,),
        b'[project]\nname = "a"\nrequires-python = ">=3.11"\ndynamic = ["dependencies"]\n[tool.poetry]\nb = 1\n',
    ),
    Reader(
        "ignore file",
        lambda data: IgnoreRules(data).verdict(b"a/b.log", False),
        (InvalidInput,),
        b"# data\n/data/\n*.log\n!keep.log\ncheckpoint-[0-9]/**\n",
    ),
]
"""Readers of input that people give to their own commands."""
