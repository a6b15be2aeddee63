"""Records whose fields contradict one another: they are refused by the name of the field, and unknown words are not."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from fray_agents.provisioning.scaler import Scaler
from fray_coordinator import fsck
from fray_coordinator.protocol.scaling.provisioning import ScalingScope
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.store.interface import ANY
from fray_layouts import codec, records
from fray_layouts.bounds import MAX_BUNDLES, MAX_MACHINES
from fray_layouts.errors import Malformed
from fray_layouts.object_keys import AgentKeys, JobKeys, MachineKeys, PoolKeys, ReservationKeys
from fray_layouts.records import (
    AgentPoolRecord,
    AgentRecord,
    CheckedStruct,
    JobRecord,
    MachineRecord,
    OutputManifest,
    PoolPlan,
    ReplicaExit,
    ReservationRecord,
)
from fray_layouts.work_keys import WorkKeys
from tests.support.scripted_agents import job_now, join, launch
from tests.support.scripted_members import gang, gathering, members_of
from tests.support.virtual import Cluster

MEMBER = {"agent": "a", "bundles": [0]}
GANG: dict[str, Any] = {
    "id": "j",
    "status": "gathering",
    "spec": {"name": "j", "entrypoint": {"command": ["x"]}, "replicas": 2},
    "placement": {"round": 1, "members": [MEMBER]},
}
RESERVATION: dict[str, Any] = {
    "id": "r",
    "kind": "reservation",
    "parts": [{"gang": {"count": 2}}],
    "low": 1,
    "state": "held",
    "placement": {"round": 1, "members": [MEMBER]},
}
PAST = {"attempt": 2, "agent": "", "host": "", "started_at": 1, "ended_at": 1, "exit": {"kind": "lost"}}
AGENT: dict[str, Any] = {"id": "a", "host": "h", "pool": "default"}
MACHINE: dict[str, Any] = {"pool": "p", "name": "m"}
POOL: dict[str, Any] = {"provisioning": {"provider": "local", "max": 2}}
MANIFEST: dict[str, Any] = {"files": [{"path": "a/b"}, {"path": "c"}]}
EXIT: dict[str, Any] = {"agent": "a", "host": "h", "exit": {"kind": "success"}, "ended_at": 1.0}


def members(*given: dict[str, Any]) -> dict[str, Any]:
    return {"placement": {"round": 1, "members": list(given)}}


CONTRADICTIONS: list[tuple[type[msgspec.Struct], dict[str, Any], dict[str, Any], str]] = [
    (JobRecord, GANG, members({"agent": "a", "bundles": [7]}), "placement.members[0].bundles: 7"),
    (JobRecord, GANG, members({"agent": "a", "bundles": [0, 0]}), "placement.members[0].bundles: 0"),
    (JobRecord, GANG, members(MEMBER, {"agent": "b", "bundles": [0]}), "placement.members[1].bundles: 0"),
    (JobRecord, GANG, members(MEMBER, {"agent": "a", "bundles": [1]}), "placement.members[1].agent: 'a'"),
    (JobRecord, GANG, members({**MEMBER, "ports": {"p": 65536}}), "placement.members[0].ports.p: 65536"),
    (JobRecord, GANG, members({**MEMBER, "ports": {"p": 0}}), "placement.members[0].ports.p: 0"),
    (
        JobRecord,
        GANG,
        members({**MEMBER, "slice": {"id": "s", "type": "t", "index": 2, "hosts": 2}}),
        "placement.members[0].slice.index: 2",
    ),
    (JobRecord, GANG, {"status": "pending"}, "status: 'pending'"),
    (JobRecord, GANG, {"spec": {**GANG["spec"], "replicas": 1}}, "status: 'gathering'"),
    (JobRecord, GANG, {"spec": {**GANG["spec"], "slices": 3}}, "spec.slices: 3"),
    (JobRecord, GANG, {"parent": {"job": "j", "attempt": 1}}, "parent.job: 'j'"),
    (JobRecord, GANG, {"ancestors": ["a", "j"]}, "ancestors: 'j'"),
    (JobRecord, GANG, {"ancestors": ["a", "a"]}, "ancestors: ['a', 'a']"),
    (ReservationRecord, RESERVATION, {"ancestors": ["r"]}, "ancestors: 'r'"),
    (JobRecord, GANG, {"retry_of": "j"}, "retry_of: 'j'"),
    (
        JobRecord,
        GANG,
        {"history": [PAST]},
        "history[0].attempt: 2",
    ),
    (JobRecord, GANG, {"outputs": {"key": "k", "parts": 2, "size": 1}}, "outputs.parts: 2"),
    (JobRecord, GANG, {"outputs": {"key": "k", "parts": 2**53, "size": 2**53}}, "outputs.parts: 9007199254740992"),
    (ReplicaExit, EXIT, {"outputs": {"key": "k", "parts": 1}}, "outputs.parts: 1"),
    (ReservationRecord, RESERVATION, {"low": 10**12}, "low: 1000000000000"),
    (ReservationRecord, RESERVATION, {"low": 3}, "low: 3"),
    (ReservationRecord, RESERVATION, {"same": "rack"}, "same"),
    (ReservationRecord, RESERVATION, {"parts": []}, "low: 1"),
    (ReservationRecord, RESERVATION, {"parts": [{"gang": {"count": MAX_BUNDLES}}] * 2}, "parts: '20000 bundles'"),
    (ReservationRecord, RESERVATION, {"parts": [{"gang": {"count": 2, "slices": 4}}]}, "parts[0].gang.slices: 4"),
    (ReservationRecord, RESERVATION, {"parts": [{"gang": {}, "job": "j"}] * 2}, "parts: ['j', 'j']"),
    (ReservationRecord, RESERVATION, {"pool": "~r"}, "pool: '~r'"),
    (ReservationRecord, RESERVATION, members({"agent": "a", "bundles": [2]}), "placement.members[0].bundles: 2"),
    (PoolPlan, {"owners": {"a": ["jobs/j.json"]}}, {"owners": {"a": ["agents/b.json"]}}, "owners.a: 'agents/b.json'"),
    (AgentRecord, AGENT, {"slice": {"id": "s", "type": "t", "index": 1}}, "slice.index: 1"),
    (AgentRecord, AGENT, {"holdings": {"j": {"attempt": 1, "bundles": [0, 0]}}}, "holdings.j.bundles: [0, 0]"),
    (MachineRecord, MACHINE, {"hosts": 10**12}, "hosts: 1000000000000"),
    (MachineRecord, MACHINE, {"hosts": 0}, "hosts: 0"),
    (MachineRecord, MACHINE, {"batch": "m", "batch_size": MAX_MACHINES + 1}, "batch_size: 10001"),
    (MachineRecord, MACHINE, {"batch_size": 2}, "batch: ''"),
    (AgentPoolRecord, POOL, {"provisioning": {"provider": "local", "min": 3, "max": 2}}, "provisioning.min: 3"),
    (AgentPoolRecord, POOL, {"provisioning": {"provider": "local", "max": 10**12}}, "provisioning.max: 1000000000000"),
    (OutputManifest, MANIFEST, {"files": [{"path": "c"}, {"path": "c"}]}, "files: '2 files'"),
    (OutputManifest, MANIFEST, {"files": [{"path": "c"}, {"path": "c/d/e"}]}, "files: 'c/d/e'"),
    (OutputManifest, MANIFEST, {"files": [{"path": "../c"}]}, "files: '../c'"),
    (OutputManifest, MANIFEST, {"files": [{"path": "/c"}]}, "files: '/c'"),
    (OutputManifest, MANIFEST, {"part_bytes": 0}, "part_bytes: 0"),
]
"""Kind, a good record, the fields that contradict it, and the beginning of the error."""


@pytest.mark.parametrize(("kind", "good", "odd", "named"), CONTRADICTIONS, ids=[each[3] for each in CONTRADICTIONS])
def test_a_contradiction_is_refused_by_the_name_of_its_field(
    kind: type[msgspec.Struct], good: dict[str, Any], odd: dict[str, Any], named: str
) -> None:
    codec.decode(json.dumps(good).encode(), kind)
    with pytest.raises(Malformed) as refused:
        codec.decode(json.dumps({**good, **odd}).encode(), kind)
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "record"),
    [
        (JobRecord, {**GANG, "status": "paused"}),
        (ReservationRecord, {**RESERVATION, "state": "paused", "kind": "lease"}),
        (AgentRecord, {**AGENT, "state": "parked", "holdings": {"j": {"attempt": 1, "phase": "moving"}}}),
        (MachineRecord, {**MACHINE, "state": "parked", "provider": "other"}),
    ],
)
def test_a_word_of_a_newer_version_is_no_contradiction(kind: type[msgspec.Struct], record: dict[str, Any]) -> None:
    read = codec.decode(json.dumps(record).encode(), kind)
    assert json.loads(codec.encode(read.record, read.raw)).items() >= record.items()


KINDS = list(dict.fromkeys(kind for kind, *_ in CONTRADICTIONS))


def test_every_record_class_with_a_check_is_in_the_table() -> None:
    kinds = {kind for kind in vars(records).values() if isinstance(kind, type) and issubclass(kind, CheckedStruct)}
    assert {kind for kind in kinds if kind.check is not CheckedStruct.check} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_check_of_its_class_a_contradiction_is_read(
    kind: type[msgspec.Struct], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So each class has a row that fails when its check is left out."""
    monkeypatch.setattr(kind, "check", CheckedStruct.check)
    read = 0
    for _, good, odd, _ in (row for row in CONTRADICTIONS if row[0] is kind):
        with suppress(Malformed):
            codec.decode(json.dumps({**good, **odd}).encode(), kind)
            read += 1
    assert read


LIES_AT: dict[type[msgspec.Struct], str] = {
    JobRecord: JobKeys.key("j"),
    ReplicaExit: WorkKeys.exit("j", 1, 0),
    OutputManifest: WorkKeys.outputs("j", 1, 0),
    ReservationRecord: ReservationKeys.key("r"),
    PoolPlan: PoolKeys.plan("default"),
    AgentRecord: AgentKeys.key("z"),
    MachineRecord: MachineKeys.key("p", "m"),
    AgentPoolRecord: PoolKeys.record("p"),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_record_that_contradicts_itself_harms_only_itself(cluster: Cluster, kind: type[msgspec.Struct]) -> None:
    """Passes, gangs, scalers and claims go on beside it, and `fray fsck` names it."""
    found = await gathering(cluster, "a", "b")
    agent, user = await join(cluster, "c"), found.core
    _, good, odd, _ = next(row for row in CONTRADICTIONS if row[0] is kind)
    await user.store.put(LIES_AT[kind], json.dumps({**good, **odd}).encode(), ANY)
    together = await gang(found)
    await launch(user)
    await found.step()
    await Reconciler(user, "p").try_pass()
    await Scaler(user, "s", ScalingScope(every=True)).run_once()
    assert len(members_of(await job_now(user, together.id))) == 2
    ended = await agent.end(await agent.claim())
    assert ended is not None
    assert ended.status == "succeeded"
    named = {problem.key for problem in await fsck.check(user)}
    assert LIES_AT[kind] in named or kind is PoolPlan, "fsck names it; a plan was written anew"
