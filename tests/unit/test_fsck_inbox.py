"""fsck: files in the inbox that become no job, and foreign objects beside Fray's."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from fray_coordinator import fsck
from fray_coordinator.core import Core, open_core
from fray_coordinator.store.interface import ANY, Listed, Refused
from fray_layouts.object_keys import CoordinatorKeys
from fray_layouts.records import AgentRecord, ReconcilerRecord
from fray_layouts.work_keys import InboxKeys
from tests.support.damage import LONG, a_job, an_agent, everything
from tests.support.virtual import Cluster, StoreConnection

SPEC = b'{"name": "quick", "entrypoint": {"command": ["true"]}}'
DROP = InboxKeys.key("x")


async def a_pass_by(core: Core, agent: str, problems: dict[str, str] | None = None) -> None:
    """The agent has just ended a pass."""

    def renewed(now: ReconcilerRecord | None) -> ReconcilerRecord:
        found = now or ReconcilerRecord()
        return replace(found, holder=agent, progress=found.progress + 1, problems=problems or {})

    await core.records.update(CoordinatorKeys.reconciler, ReconcilerRecord, renewed)


async def drop(core: Core, data: bytes = SPEC) -> None:
    await core.store.put(DROP, data, ANY)


async def test_a_good_drop_waits_for_an_agent(core: Core) -> None:
    await drop(core)
    await core.clock.sleep(LONG)
    assert await fsck.check(core) == []


@pytest.mark.parametrize(
    ("data", "words"), [(b"{", "JSON"), (b'{"name": "x"}', "entrypoint"), (SPEC.replace(b"qui", b"/"), "name")]
)
async def test_a_drop_that_can_become_no_job_is_told_before_an_agent_rejects_it(
    core: Core, data: bytes, words: str
) -> None:
    await drop(core, data)
    assert await fsck.check(core) == [], "it may be half-written"
    await core.clock.sleep(LONG)
    [problem] = await fsck.check(core)
    assert problem.key == DROP
    assert "it cannot become a job" in problem.what
    assert words in problem.what
    assert "rejects it" in problem.remedy
    before = await everything(core)
    await fsck.repair(core)
    assert await everything(core) == before


async def test_a_drop_that_lies_for_long_while_an_agent_makes_passes_is_told_with_the_reason(core: Core) -> None:
    await an_agent(core, "live", started_at=core.now())
    await drop(core)
    await core.clock.sleep(LONG)
    await a_pass_by(core, "live", {DROP: "the store refuses it"})
    [problem] = await fsck.check(core)
    assert problem.key == DROP
    assert "neither admitted nor rejected it (the store refuses it)" in problem.what
    assert "drop it again" in problem.remedy


async def by_an_agent_that_has_just_come(core: Core) -> None:
    await core.records.update(
        "agents/live.json", AgentRecord, lambda agent: replace(agent, started_at=core.now()) if agent else None
    )
    await a_pass_by(core, "live")


async def by_an_agent_whose_pass_takes_long(core: Core) -> None:
    await a_pass_by(core, "live")
    await core.clock.sleep(60.0)


async def by_a_person(core: Core) -> None:
    await a_pass_by(core, "once-x")


@pytest.mark.parametrize(
    "made",
    [by_an_agent_that_has_just_come, by_an_agent_whose_pass_takes_long, by_a_person],
    ids=lambda made: made.__name__,
)
async def test_a_drop_is_not_late_while_the_passes_may_be_on_their_way_to_it(core: Core, made: object) -> None:
    assert callable(made)
    await an_agent(core, "live", started_at=core.now())
    await drop(core)
    await core.clock.sleep(LONG)
    await made(core)
    assert await fsck.check(core) == []


@pytest.mark.parametrize("key", ["inbox/job.txt", "inbox/JOB.JSON", "inbox/deeper/x.json", "inbox/aside/x"])
async def test_a_file_that_agents_never_look_at_is_told(core: Core, key: str) -> None:
    await core.store.put(key, SPEC, ANY)
    [problem] = await fsck.check(core)
    assert problem.key == key
    assert "becomes no job" in problem.what
    assert "rename it" in problem.remedy


async def test_a_rejection_a_file_aside_and_one_on_its_way_are_in_order(core: Core) -> None:
    for key in (InboxKeys.rejected(DROP, "v"), InboxKeys.aside(DROP, "v", "token"), "inbox/.x.json.part"):
        await core.store.put(key, b"{", ANY)
    await core.clock.sleep(LONG)
    assert await fsck.check(core) == []


async def test_a_file_that_cannot_be_read_is_told(cluster: Cluster) -> None:
    class Refusing(StoreConnection):
        async def _pass(self, verb: str, key: str) -> None:
            await super()._pass(verb, key)
            if (verb, key) == ("get", DROP):
                raise Refused("permission denied")

    core = await with_connection(cluster, Refusing)
    await drop(core)
    [problem] = await fsck.check(core)
    assert problem.key == DROP
    assert "nobody can admit this file" in problem.what
    assert "permission denied" in problem.what
    assert "the right to read it" in problem.remedy


async def with_connection(cluster: Cluster, kind: type[StoreConnection]) -> Core:
    core = await cluster.core()
    cluster.connections[0].__class__ = kind
    return core


# --- beside everything that is Fray's ------------------------------------------------------------------------------


async def test_foreign_keys_are_reported_once_each_and_left_alone(core: Core) -> None:
    theirs = ["Jobs/x", "a/1", "a/2", "jobs", "jobs0", "jobs~", "results/2026/x", "zz.txt", "\U0001f600/x"]

    await a_job(core)
    for number in range(250):
        await core.store.put(f"blobs/2999-01/{number:064x}", b"", ANY)
    for key in [*theirs, "doctor/token/x", "blobs/~/x", "blobs/\U0001f600/x"]:
        await core.store.put(key, b"garbage", ANY)
    await core.clock.sleep(LONG)
    before = await everything(core)
    for _ in range(2):
        first, second, *troubles = await fsck.check(core)
        assert (first.key, second.key) == ("blobs/~/x", "blobs/\U0001f600/x")
        assert [t.key for t in troubles] == [
            "Jobs/", "a/", "jobs", "jobs0", "jobs~", "results/", "zz.txt", "\U0001f600/"
        ]  # fmt: skip
        assert all("does not belong to Fray" in t.what and "move it out of this root" in t.remedy for t in troubles)
        await fsck.repair(core)
    assert await everything(core) == before


async def test_frays_own_keys_are_not_listed_twice(cluster: Cluster) -> None:
    core = await cluster.core()
    for number in range(5000):
        await core.store.put(f"blobs/2999-01/{number:064x}", b"", ANY)
    cluster.connections[0].asked.clear()
    assert await fsck.check(core) == []
    assert len([key for verb, key in cluster.connections[0].asked if (verb, key) == ("list", "")]) <= 4


async def test_fsck_judges_the_rest_if_it_may_not_list_the_whole_root(cluster: Cluster) -> None:
    class Refusing(StoreConnection):
        async def list(self, prefix: str, after: str | None, limit: int | None, versions: bool) -> list[Listed]:
            if not prefix:
                raise Refused("lost+found: permission denied")
            return await super().list(prefix, after, limit, versions)

    core = await with_connection(cluster, Refusing)
    await core.store.put("jobs/readme.txt", b"", ANY)
    told = {problem.key: problem.what for problem in await fsck.check(core)}
    assert told.keys() == {"/", "jobs/readme.txt"}
    assert "lost+found: permission denied" in told["/"]


async def test_folders_of_others_stay_on_local_files(tmp_path: Path) -> None:
    core = await open_core(tmp_path.as_uri())
    empty = tmp_path / "theirs" / "empty"
    empty.mkdir(parents=True)
    os.utime(empty, (time.time() - 86400,) * 2)
    (tmp_path / "theirs" / "x").write_text("")
    assert [problem.key for problem in await fsck.check(core)] == ["theirs/"]
    assert empty.exists()
    await core.store.close()
