"""Names of objects, and what they are made of."""

from __future__ import annotations

import hashlib
import zlib
from typing import Any

from msgspec.structs import replace

from fray_coordinator.protocol.job_identity import record_of_drop
from fray_coordinator.protocol.queue_segments import dead_letter_name
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.store.file_locks import STRIPES
from fray_coordinator.store.memory import digest
from fray_layouts.index_keys import ChildKey, PendingKey
from fray_layouts.key_encoding import encode_time, is_id, is_name
from fray_layouts.object_keys import AgentKeys, ArchiveKeys, BlobKeys, EndpointKey, JobIds, KeptBlobKey, NameKeys
from fray_layouts.queue_keys import QueueKeys, SegmentName, TaskKeys
from fray_layouts.records import JobRecord
from fray_layouts.spec_parsing import parse_spec
from fray_layouts.work_keys import CheckpointKey, InboxKeys, WorkKeys
from tests.vectors.form import NOW, File, base64_of

COMMAND = {"command": ["true"]}


def _times() -> File:
    times = [0.0, 0.001, 1.0, NOW, NOW + 0.1234, NOW + 0.0625, NOW + 0.1875, 35_184_372_088.831]
    return File(
        "input: seconds since the epoch. expected: their nine digits in a key; half a millisecond is "
        "rounded to the even one",
        {f"{time} s": (time, encode_time(time)) for time in times},
    )


def _spellings() -> File:
    words = ["a", "A-b_c.d", "run-7", "-a", "a-", "_a", "a_", "a..b", ".a", "a.", "a b", "a/b", "a~b", "", "ä", "a\n"]
    words += ["n" * 128, "n" * 129, "n" * 144, "n" * 145]
    return File(
        "input: a text. expected: whether it can be a `name` that a person gives, and whether it can be "
        "the `id` of a job or an agent",
        {repr(word) if len(word) < 20 else f"{len(word)} letters": (word, _may_be(word)) for word in words},
    )


def _may_be(word: str) -> dict[str, bool]:
    return {"name": is_name(word), "id": is_id(word)}


def _job_ids() -> File:
    own = {
        "the words": {"namespace": "lab", "name": "train", "id": "monday"},
        "hyphens": {"namespace": "a-b", "name": "c", "id": "d-e"},
        "hyphens elsewhere": {"namespace": "a", "name": "b-c", "id": "d-e"},
    }
    cases: dict[str, Any] = {
        f"an id of one's own: {case}": (words, JobIds.given(words["namespace"], words["name"], words["id"]))
        for case, words in own.items()
    }
    drops = {
        "a drop on GCS": {"key": "inbox/train.json", "version": "1767225600123456", "updated": NOW},
        "a drop on S3": {"key": "inbox/train.json", "version": '"9bb58f26192e4ba00f01e2e7b136bbd8"', "updated": NOW},
        "a drop on local files": {
            "key": InboxKeys.staged("inbox/train.json", NOW + 0.25, "0k7zzz"),
            "version": digest(b'{"name": "train"}'),
            "updated": NOW + 0.25,
        },
    }
    spec = parse_spec({"name": "train", "entrypoint": COMMAND, "namespace": "train"})
    for case, drop in drops.items():
        cases[case] = {"name": "train", **drop}, record_of_drop(**drop, spec=spec).id  # type: ignore[arg-type]
    return File("input: the parts of a job's id. expected: the id", cases)


def _pending() -> File:
    specs: dict[str, dict[str, Any]] = {
        "by default": {},
        "cores are rounded up, sizes down": {"resources": {"cpu": 0.0015, "memory": 2_097_151, "disk": 3_145_727}},
        "priority": {"priority": -500, "pool": "big"},
        "an accelerator": {"resources": {"cpu": 4, "device": {"kind": "gpu", "variant": "H100", "count": 8}}},
        "a part of a GPU": {"resources": {"device": {"kind": "gpu", "count": 0.125}}},
        "any variant": {"resources": {"device": {"kind": "tpu", "count": 4}}},
        "a cpu is no accelerator": {"resources": {"device": {"kind": "cpu", "variant": "amd"}}},
        "not preemptible, an actor": {"resources": {"preemptible": False}, "actor": True},
    }
    cases = {}
    for number, (case, fields) in enumerate(specs.items(), 1):
        spec = {"name": "train", "entrypoint": COMMAND, "namespace": "train", **fields}
        job_id = JobIds.fresh("train", NOW, "0123zz")
        record = JobRecord(id=job_id, spec=parse_spec(spec), status="pending", submitted_at=NOW, attempt=number)
        given = {"id": job_id, "attempt": number, "submitted_at": NOW, "spec": spec}
        cases[case] = given, entry_of(record).key()
        if case == "by default":
            above = ["driver-0-1", "train-0-2"]
            cases["a grandchild"] = {**given, "ancestors": above}, entry_of(replace(record, ancestors=above)).key()
    return File("input: a pending job's record. expected: the key of its entry in the index", cases)


def _shapes() -> File:
    keys = [
        "pending/default/49919fbtbc00-a-1~1~c1000m0d0",
        "pending/default/49919fbtbc00-a-1~1~c1000m0d0og8gpu-h100",
        "pending/default/49919fbtbc00-a-1~1~c1000m0d0g0.5gpu",
        "pending/default/49919fbtbc00-a-1~1~c1000m0d0g0.50gpu",
        "pending/default/49919fbtbc00-a-1~01~c1000m0d0",
        "pending/default/49919fbtbc00-a-1~0~c1000m0d0",
        "pending/default/49919fbtbl00-a-1~1~c1000m0d0",
        "pending/default/49919fbtbc00-a-1~1~c1000m0d0ao",
        "pending/default/49919fbtbc00-a-1~1~c1000m0d0~0f9c2a",
        "pending/default/49919fbtbc00-a-1~1~c1000m0d0~0F9C2A",
        "pending/default/49919fbtbc00-a-1~1~c1000m0d0~0f9c2a~0f9c2a",
        "pending/default/",
        "pending/default/.keep",
    ]
    return File(
        "input: a key below pending/. expected: whether it is the key of an entry; other keys are left alone",
        {key: (key, PendingKey.parse(key) is not None) for key in keys},
    )


def _agent_id(host: str) -> tuple[Any, str]:
    return {"host": host, "time": NOW, "six": "0k7abc"}, AgentKeys.fresh(host, NOW, "0k7abc")


def _keys() -> File:
    queue, tasks = QueueKeys.of("lab", "prompts", 3), TaskKeys.of("lab", "ranking", 1)
    segment = SegmentName(NOW + 0.001, 33, "0k7abc", 250)
    made = {
        "agent id": _agent_id("node 7.example"),
        **{f"agent id of {host[:10]!r}": _agent_id(host) for host in ("_h.", "-" * 3, "ü-1-", f"{'h' * 59}.{'i' * 9}")},
        "log chunk": ({"job": "a-1", "attempt": 2, "number": 13}, WorkKeys.log("a-1", 2, 0, 13)),
        "result": ({"job": "a-1", "attempt": 2}, WorkKeys.result("a-1", 2, 0)),
        "manifest of outputs": ({"job": "a-1", "attempt": 2, "part": 0}, WorkKeys.outputs("a-1", 2, 0)),
        "part of outputs": (
            {"job": "a-1", "attempt": 2, "part": 7},
            WorkKeys.output_part(WorkKeys.outputs("a-1", 2, 0), 7),
        ),
        "checkpoint": ({"job": "a-1", "actor": "store", "number": 7}, CheckpointKey("a-1", "store", 7).key()),
        "archived job": ({"archived": "train-19fbtbc000123zz"}, ArchiveKeys.key("train-19fbtbc000123zz")),
        "archived job with an id of one's own": (
            {"archived": "train-monday-0k7abcde"},
            ArchiveKeys.key("train-monday-0k7abcde"),
        ),
        "child": ({"parent": "a-1", "attempt": 2, "child": "b-1"}, ChildKey("a-1", 2, "b-1").key()),
        "endpoint": (
            {"namespace": "lab", "name": "store", "actor_id": "a-1"},
            EndpointKey("lab", "store", "a-1").key(),
        ),
        "name": ({"namespace": "lab", "kind": "actor", "name": "store"}, NameKeys.key("lab", "actor", "store")),
        "blob": (
            {"time": NOW - 1, "content": "a"},
            BlobKeys.key(NOW - 1, hashlib.sha256(b"a").hexdigest()),
        ),
        "blob that an archived job needs": (
            {"time": NOW, "kept": "blobs/2026-01/" + "0" * 64},
            KeptBlobKey(BlobKeys.month(NOW), "blobs/2026-01/" + "0" * 64).key(),
        ),
        "rejection": ({"key": "inbox/a~b.json", "version": '"9b-b5"'}, InboxKeys.rejected("inbox/a~b.json", '"9b-b5"')),
        "taken in": (
            {"key": "inbox/a~b.json", "time": NOW, "six": "0k7abc"},
            InboxKeys.staged("inbox/a~b.json", NOW, "0k7abc"),
        ),
        "queue settings": ({"namespace": "lab", "name": "prompts", "incarnation": 3}, queue.settings),
        "segment": (
            {"time": NOW + 0.001, "order": 33, "token": "0k7abc", "items": 250, "below": queue.prefix},
            queue.segment(str(segment)),
        ),
        "lease of a segment": ({"segment": str(segment), "below": queue.prefix}, queue.lease(str(segment))),
        "large item": ({"segment": str(segment), "item": 249, "below": queue.prefix}, queue.large(str(segment), 249)),
        "finished segments": (
            {"time": NOW, "six": "0k7abc", "below": queue.prefix},
            queue.finished_at(NOW, "0k7abc"),
        ),
        "receipt": (
            {"receipt": "k7w2m9p4", "time": NOW, "six": "0k7abc", "below": queue.prefix},
            queue.receipt_at("k7w2m9p4", NOW, "0k7abc"),
        ),
        "outcomes of a pool": ({"time": NOW, "six": "0k7abc", "below": tasks.prefix}, tasks.outcome(NOW, "0k7abc")),
    }
    return File("input: the parts of a key or an id. expected: the key or id", made)


def _dead_letters() -> File:
    segment = str(SegmentName(NOW, 0, "0k7abc", 4))
    cases = {}
    for time, item in ((NOW + 5, 0), (NOW + 5, 3), (NOW + 5.001, 1055)):
        cases[f"item {item}, {time - NOW:g} s later"] = (
            {"segment": segment, "item": item, "time": time},
            str(dead_letter_name(time, segment, item)),
        )
    return File(
        "input: an item, and the time in `dead_lettered_at`. expected: the name of the segment that is its dead letter",
        cases,
    )


def _local_files() -> File:
    bodies = [b"", b"{}", "Füße\n".encode()]
    keys = ["cluster.json", "jobs/train-19fbtbc000123zz.json", "pools/größer/doorbell"]
    cases: dict[str, Any] = {
        f"version of {len(body)} bytes": ({"base64": base64_of(body)}, digest(body)) for body in bodies
    }
    cases |= {f"lock of {key}": ({"key": key}, f".fray/locks/{zlib.crc32(key.encode()) % STRIPES:02x}") for key in keys}
    return File(
        "on local files. input: a content or a key. expected: the version of the content, or the lock of the key",
        cases,
    )


FILES = {
    "times": _times,
    "spellings": _spellings,
    "job-ids": _job_ids,
    "pending-entries": _pending,
    "pending-keys": _shapes,
    "keys": _keys,
    "dead-letters": _dead_letters,
    "local-files": _local_files,
}
