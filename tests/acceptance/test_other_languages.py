"""Clients, agents, producers and consumers in Node that know only the storage contract, beside ours on one root."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fray.client import StorageClient
from fray.cluster import StorageCluster
from fray.queue import FileQueue
from fray.rpc import ActorServer
from fray_coordinator.core import Core, open_core
from fray_coordinator.jobs.stopping import stop
from fray_layouts.records import JobRecord
from tests.support import node, servers
from tests.support.actors import Counter
from tests.support.agents import (
    QUICK,
    agents,
    ended,
    launch,
    lines,
    on_cluster,
    running,
)
from tests.support.freezing import freeze
from tests.support.processes import is_alive
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

LAYOUTS = Path(__file__).parents[2] / "layouts"
POOL = "node"
"""Whose agent is in Node; the other pools' agents are ours."""


QUICKER = replace(QUICK, requeue_backoff=0.05, poll_interval=0.2)

locally = pytest.mark.parametrize("root", ["local"], indirect=True)
BUCKETS = [pytest.param(server, marks=pytest.mark.slow) for server in ("moto", "seaweed")]
in_a_bucket_too = pytest.mark.parametrize("root", ["local", BUCKETS[1]], indirect=True)
everywhere = pytest.mark.parametrize("root", ["local", *BUCKETS], indirect=True)


@pytest.fixture(scope="module")
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster with an agent in Python, which makes the passes, and one in Node. Both live at the end."""
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        address = str(folder / "root")
        if request.param != "local":
            server = stack.enter_context(getattr(servers, request.param)())
            for name, value in server.environment.items():
                patch.setenv(name, value)
            address = f"{server.root}/team/fray"
        asyncio.run(_create(address))
        stack.enter_context(agents(address, folder / "python"))
        ours = stack.enter_context(node.agent(address, POOL, folder / "node"))
        yield address
        assert node.leave(ours) == 0
        check = subprocess.run(
            [sys.executable, "-m", "fray", "fsck", "--root", address], capture_output=True, text=True
        )
        assert check.stdout == "no problems\n"


async def _create(root: str, **settings: Any) -> None:
    await (await open_core(root, replace(QUICKER, **settings))).store.close()


def submitted(root: str, script: str, **fields: Any) -> str:
    """The id of a job that the client in Node submits to our agents."""
    spec = {"name": "fromnode", "entrypoint": {"command": ["sh", "-c", script]}, "resources": {"cpu": 0.1}, **fields}
    return node.said(node.node("client.mjs", root, "submit", given=json.dumps(spec))).strip()


def test_these_programs_agree_with_the_test_vectors() -> None:
    told = json.loads(node.said(node.node("vectors.mjs", str(LAYOUTS))).splitlines()[-1])
    assert told["wrong"] == 0
    assert told["agree"] > 140


@everywhere
def test_a_client_in_node_submits_to_our_agents_and_reads_their_results(root: str) -> None:
    job = submitted(root, "echo out; echo err >&2; printf half; printf '{\"answer\": 42}' > $FRAY_RESULT")
    followed = node.node("client.mjs", root, "follow", job)
    assert followed.returncode == 0, followed.stderr
    assert followed.stdout == "out\nhalf"
    assert followed.stderr.startswith("err\n")
    assert json.loads(node.said(node.node("client.mjs", root, "result", job))) == {"answer": 42}


@in_a_bucket_too
def test_a_client_in_node_hears_of_failures_and_stops_jobs(root: str) -> None:
    failing = submitted(root, "echo why; exit 3", max_retries_failure=1)
    endless = submitted(root, "echo begun; sleep 1000", grace=0.1)
    waiting = submitted(root, "true", pool="nobody")

    with node.running(node.command("client.mjs", root, "follow", endless)) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "begun\n"
        node.said(node.node("client.mjs", root, "stop", endless, "enough"))
        assert following.wait(200) == 1
    node.said(node.node("client.mjs", root, "stop", waiting, "not needed"))
    followed = node.node("client.mjs", root, "follow", failing)

    assert (followed.returncode, followed.stdout) == (1, "why\nwhy\n")
    records = on_cluster(root, lambda core: all_ended(core, [failing, endless, waiting]))
    assert [record.status for record in records] == ["failed", "stopped", "stopped"]
    assert [record.exit and record.exit.message for record in records[1:]] == ["enough", "not needed"]


@locally
def test_an_own_id_is_submitted_once_from_both_sides(root: str) -> None:
    first = submitted(root, "true", id="monday", namespace="lab")
    assert submitted(root, "true", id="monday", namespace="lab") == first

    async def again(core: Core) -> str:
        fields = {"name": "fromnode", "id": "monday", "namespace": "lab", "resources": {"cpu": 0.1}, "grace": 10.0}
        return await launch(core, ["sh", "-c", "true"], **fields)

    assert on_cluster(root, again) == first
    spec = {"name": "fromnode", "id": "monday", "namespace": "lab", "entrypoint": {"command": ["false"]}}
    refused = node.node("client.mjs", root, "submit", given=json.dumps(spec))
    assert "runs something else" in refused.stderr


@locally
def test_an_agent_in_node_leaves_alone_what_it_cannot_do_and_where_it_is_not(root: str) -> None:
    wishes: list[dict[str, Any]] = [
        {"resources": {"zone": "mars"}},
        {"resources": {"regions": ["mars"]}},
        {"resources": {"labels": {"planet": "mars"}}},
        {"environment": {"docker_image": "planet:mars"}},
        {"environment": {"pip_packages": ["idna"]}},
        {"environment": {"python": ">=3.11"}},
        {"environment": {"workspace": {"blob": f"blobs/2026-01/{'0' * 64}"}}},
        {"ports": ["http"]},
        {"outputs": ["*.txt"]},
        {"health_check": {"port": 80}},
    ]

    async def seen(core: Core) -> list[str]:
        first = [await launch(core, ["true"], pool=POOL, priority=1, **wish) for wish in wishes]
        assert (await ended(core, await launch(core, ["true"], pool=POOL))).status == "succeeded"
        return [(await stop(core, each, "no such agent")).status for each in first]

    assert on_cluster(root, seen) == ["stopped"] * len(wishes)  # at once, so none was claimed


async def all_ended(core: Core, jobs: list[str]) -> list[JobRecord]:
    return await asyncio.gather(*(ended(core, job) for job in jobs))


@in_a_bucket_too
def test_an_agent_in_node_runs_our_jobs(root: str) -> None:
    """Jobs that succeed, are retried, are not found, exceed their deadline, are stopped, or print more than a chunk."""
    text = "".join(f"line {number} \u00e9\n" for number in range(8_000)) + "a long line " * 4000
    loud = """
import os
for number in range(8_000): print("line", number, "\u00e9")
print("a long line " * 4000, end="")
open(os.environ["FRAY_RESULT"], "w").write("[2]")
"""

    async def run(core: Core) -> list[JobRecord]:
        good = await launch(core, loud, pool=POOL)
        failing = await launch(core, "raise SystemExit(3)", pool=POOL, max_retries_failure=1)
        missing = await launch(core, ["no-such-program"], pool=POOL)
        late = await launch(core, "import time; time.sleep(1000)", pool=POOL, timeout=0.5)
        endless = await launch(core, "import time; time.sleep(1000)", pool=POOL)
        await running(core, endless)
        await stop(core, endless, "enough")
        return await all_ended(core, [good, failing, missing, late, endless])

    good, failing, missing, late, endless = on_cluster(root, run)
    told = [(job.status, job.attempt, *_kind_and_code(job)) for job in (failing, missing)]
    assert told == [("failed", 2, "exited", 3), ("failed", 1, "exited", 127)]
    assert (good.status, good.result and good.result.value) == ("succeeded", [2])
    assert (late.status, late.exit and late.exit.kind) == ("failed", "timeout")
    assert (endless.status, endless.exit and endless.exit.message) == ("stopped", "enough")
    log = subprocess.run(
        [sys.executable, "-m", "fray", "logs", "--root", root, good.id], capture_output=True, text=True
    )
    assert log.stdout == text


def _kind_and_code(job: JobRecord) -> tuple[str, int | None]:
    assert job.exit is not None
    return job.exit.kind, job.exit.code


@locally
def test_jobs_of_agents_in_node_that_are_killed_or_frozen_run_elsewhere(root: str, tmp_path: Path) -> None:
    """The killed agent's tasks have ended before. A frozen agent has not told its task's runner that it may go on."""
    starts = {pool: tmp_path / pool for pool in ("killed", "frozen")}
    code = """
import os, sys, time
with open(sys.argv[1], "a") as file: file.write(f"{os.getpid()}\\n")
while os.environ["FRAY_ATTEMPT"] == "1": time.sleep(0.01)
"""

    async def begin(core: Core) -> list[str]:
        jobs = [await launch(core, [sys.executable, "-c", code, str(starts[pool])], pool=pool) for pool in starts]
        for path in starts.values():
            await eventually(partial(_first, path))
        return jobs

    with contextlib.ExitStack() as stack:
        first = [stack.enter_context(node.agent(root, pool, tmp_path / f"{pool}-1")) for pool in starts]
        jobs = on_cluster(root, begin)
        killed, frozen = first
        killed.kill()
        freeze(frozen.pid)
        for pool in starts:
            stack.enter_context(node.agent(root, pool, tmp_path / f"{pool}-2"))
        records = on_cluster(root, lambda core: all_ended(core, jobs))
    for record, path in zip(records, starts.values(), strict=True):
        assert (record.status, record.attempt, record.preemptions) == ("succeeded", 2, 1)
        assert record.history[0].exit.kind == "lost"
        one, other = map(int, lines(path))
        assert not is_alive(one)
        assert one != other


async def _first(path: Path) -> list[str]:
    return lines(path)


@locally
def test_an_agent_in_node_that_leaves_gives_its_jobs_back(root: str, tmp_path: Path) -> None:
    async def begin(core: Core) -> str:
        job = await launch(
            core, "import os, time\nwhile os.environ['FRAY_ATTEMPT'] == '1': time.sleep(0.01)", pool="moving"
        )
        await running(core, job)
        return job

    with node.agent(root, "moving", tmp_path / "first") as leaving:
        job = on_cluster(root, begin)
        assert node.leave(leaving) == 0
    with node.agent(root, "moving", tmp_path / "second"):
        record = on_cluster(root, lambda core: ended(core, job))
    assert (record.status, record.attempt, record.preemptions) == ("succeeded", 2, 1)


@in_a_bucket_too
def test_producers_and_consumers_of_both_sides_share_a_queue(root: str) -> None:
    ours = [f"ours {number}" for number in range(300)] + ["x" * 100_000]
    theirs = [f"theirs {number}" for number in range(300)] + ["y" * 100_000]
    with FileQueue[str](root, name="shared", namespace="lab", encoding="json") as queue:
        queue.push_many(ours, batch=50)
        given = "".join(f"{json.dumps(item)}\n" for item in theirs)
        node.said(node.node("queue.mjs", root, "lab", "shared", "push", given=given))
        with node.running(node.command("queue.mjs", root, "lab", "shared", "pop", "--drain")) as consumer:
            taken: list[str] = []
            while leases := queue.pop_many(50):
                taken += [lease.item for lease in leases]
                queue.done(leases)
            assert consumer.stdout is not None
            printed = [json.loads(line) for line in consumer.stdout]
            assert consumer.wait(200) == 0
    assert sorted(taken + printed) == sorted(ours + theirs)


POISON = """
import { openCluster } from "./cluster.mjs";
import { Consumer } from "./consumer.mjs";
import { openQueue } from "./queue.mjs";

const queue = await openQueue(await openCluster(process.argv[1]), "lab", "poison");
const refuse = (item) => { if (item === "bad") throw new Error("no taste for it"); console.log(item); };
await new Consumer(queue).run(refuse, { drain: true });
"""


@locally
def test_an_item_that_fails_in_a_node_consumer_is_a_dead_letter_for_both(root: str) -> None:
    with FileQueue[str](root, name="poison", namespace="lab", encoding="json") as queue:
        queue.push_many(["good", "bad", "better"], batch=3)
        command = [node.NODE, "--input-type=module", "--eval", POISON, root]
        done = subprocess.run(command, cwd=node.FOLDER, capture_output=True, text=True, timeout=200)
        assert node.said(done) == "good\nbetter\n"
        (letter,) = queue.letters()
        assert (letter.item, letter.deliveries) == ("bad", 5)
        assert "no taste" in letter.reason
        assert queue.pop() is None


HOLD = """
import { openCluster } from "./cluster.mjs";
import { Consumer } from "./consumer.mjs";
import { openQueue } from "./queue.mjs";

const queue = await openQueue(await openCluster(process.argv[1]), "lab", "held");
const keep = (item) => new Promise(() => console.log(item));
await new Consumer(queue, 1).run(keep);
"""


@locally
def test_items_of_a_killed_consumer_in_node_come_back(root: str) -> None:
    with FileQueue[str](root, name="held", namespace="lab", encoding="json") as queue:
        queue.push_many(["one", "two"], batch=2)
        with node.running([node.NODE, "--input-type=module", "--eval", HOLD, root], node.FOLDER) as consumer:
            assert consumer.stdout is not None
            assert consumer.stdout.readline() == "one\n"
            assert queue.pop() is None
        taken: list[str] = []
        while len(taken) < 2:
            lease = queue.pop(wait=60)
            assert lease is not None
            with lease:
                taken.append(lease.item)
        assert taken == ["one", "two"]


CALLS = """
import { createInterface } from "node:readline";
import { Actor } from "./actor.mjs";
import { openCluster } from "./cluster.mjs";

const actor = new Actor(await openCluster(process.argv[1]), "lab", "counter");
for await (const line of createInterface({ input: process.stdin })) {
  const options = JSON.parse(line);
  console.log(await actor.call(options.method, options.args, {}, options).catch((error) => error.constructor.name));
}
await actor.close();
"""


@in_a_bucket_too
def test_a_caller_in_node_calls_an_actor_and_finds_it_again_after_it_died(root: str) -> None:
    with StorageCluster(root, namespace="lab") as cluster:
        counter = StorageClient(cluster).create_actor(Counter, name="counter")
        assert counter.add(1) == 1
        called = node.node("actor.mjs", root, "lab", "counter", "add", "[2]")
        assert node.said(called) == "3\n"
        called = node.node("actor.mjs", root, "lab", "counter", "add", "[]", '{"number": 4}')
        assert node.said(called) == "7\n"
        assert "LookupError: not here" in node.node("actor.mjs", root, "lab", "counter", "fail", '["not here"]').stderr

        command = [node.NODE, "--input-type=module", "--eval", CALLS, root]
        calls = [{"method": "add"}, {"method": "die"}, {"method": "add", "args": [5]}]
        given = "".join(f"{json.dumps(call)}\n" for call in calls)
        done = subprocess.run(command, input=given, cwd=node.FOLDER, capture_output=True, text=True, timeout=200)
        assert node.said(done) == "8\nCallInterrupted\n5\n"


def test_calls_from_node_are_encrypted_where_the_cluster_says_so(tmp_path: Path) -> None:
    root = str(tmp_path)
    asyncio.run(_create(root, encrypt=True))
    with StorageCluster(root, namespace="lab") as cluster:
        server = ActorServer(cluster)
        server.register("counter", Counter())
        server.serve_background()
        try:
            assert server.records["counter"].fingerprint
            assert node.said(node.node("actor.mjs", root, "lab", "counter", "add", "[2]")) == "2\n"
        finally:
            server.shutdown()
