"""The JSON Schemas in the repository are generated from the records, and match the objects that the services write."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import fray_layouts
from fray_agents.agent.leases import Leases
from fray_agents.agent.membership import Heartbeat, Membership
from fray_coordinator.core import Core, open_core
from fray_coordinator.jobs.claiming import Claimed, try_claim
from fray_coordinator.jobs.commit import end_attempt
from fray_coordinator.jobs.notifications import post_mail
from fray_coordinator.jobs.stopping import stop
from fray_coordinator.jobs.submission import submit
from fray_coordinator.protocol.commit import AttemptEnd
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.store.interface import ABSENT
from fray_layouts import schemas
from fray_layouts.records import (
    AgentRecord,
    AttemptExit,
    ClusterSettings,
    Holding,
    JobRecord,
    JobResult,
    Resources,
    ResourceUsage,
)
from fray_layouts.spec import EnvironmentSpec, JobSpec, ResourceSpec
from fray_layouts.spec_parsing import parse_spec

CHECKED_IN = Path(fray_layouts.__file__).parents[1] / "schemas"
EVERYTHING: dict[str, Any] = {
    "name": "everything",
    "id": "once",
    "entrypoint": {"command": ["true"]},
    "resources": {
        "cpu": 0.5,
        "ram": "1GB",
        "disk": 10_000_000,
        "device": {"kind": "gpu", "variant": "h100", "count": 8},
    },
    "environment": {"env_vars": {"A": "1"}, "secret_env_vars": {"B": "2"}},
    "timeout": 60,
    "pending_timeout": 3600.5,
    "priority": -3,
    "namespace": "lab",
    "pool": "big",
    "health_check": {"path": "/live", "port": 8080},
    "ports": ["http"],
    "outputs": ["checkpoints/**"],
    "log_limit": 2 * 10**9,
}
PLACES = {
    "cluster.json": "cluster",
    "jobs/": "job",
    "agents/": "agent",
    "pending/": "pending-entry",
    "children/": "child-entry",
    "coordinator/reconciler.json": "reconciler",
    "pools/": "doorbell",
    "inbox/rejected/": "rejection",
}


def checked_in(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads((CHECKED_IN / f"{name}.json").read_bytes()))


def test_the_files_match_the_records() -> None:
    found = {path.name: path.read_bytes() for path in CHECKED_IN.iterdir()}
    assert found == dict(schemas.files()), "run `make schemas` and commit what it changes"


@pytest.mark.parametrize("name", sorted(schemas.SCHEMAS))
def test_each_file_is_a_schema_that_describes_its_fields(name: str) -> None:
    schema = json.loads((CHECKED_IN / f"{name}.json").read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    assert all("Attributes" not in part["description"] for part in schema["$defs"].values())
    own = schema["$defs"][schemas.SCHEMAS[name].__name__]["properties"]
    if "op" in own:
        assert own["op"]["description"].startswith("id of the write that made this body")


def test_the_contract_names_every_kind_of_object_and_every_field_of_a_spec() -> None:
    text = "".join(page.read_text() for page in CHECKED_IN.parent.glob("*.md"))
    for name in schemas.SCHEMAS:
        assert f"Schema `{name}`" in text
    parts = schemas.schema("spec")["$defs"]
    fields = {field for part in parts.values() for field in part["properties"]}
    unnamed = {field for field in fields if not re.search(rf"[`.\"]{field}[`\"]", text)}
    assert unnamed == set()


def test_the_contract_has_a_row_for_each_field_of_a_spec_and_its_parts() -> None:
    table = (
        (CHECKED_IN.parent / "README.md").read_text().split("| field | type, default | meaning |")[1].split("\n\n")[0]
    )
    rows = {row.split("|")[1] for row in table.splitlines()[2:]}
    parts = {"resources": ResourceSpec, "environment": EnvironmentSpec}
    wanted = {f"{part}.{field}" for part, struct in parts.items() for field in struct.__struct_fields__}
    wanted |= set(JobSpec.__struct_fields__) - set(parts)
    named = {name for row in rows for name in re.findall("`([a-z_.]+)`", row)}
    assert wanted - named == {"slices", "same", "spread"}  # in the row of `replicas`


def test_the_objects_that_the_services_write_match_the_schemas() -> None:
    objects = asyncio.run(_a_little_of_everything())
    seen = set()
    for key, content in objects.items():
        name = next((name for place, name in PLACES.items() if key.startswith(place)), None)
        assert name is not None, f"{key} is described nowhere"
        checked_in(name).validate(content)
        seen.add(name)
    assert seen == set(PLACES.values())


def test_records_are_open_and_specs_are_closed() -> None:
    job = {"id": "a-1", "status": "hovering", "spec": {**EVERYTHING, "mood": "good"}, "colour": "blue"}
    checked_in("job").validate(job)
    spec = checked_in("spec")
    spec.validate(EVERYTHING)
    parse_spec(EVERYTHING)
    for wrong in (
        {**EVERYTHING, "mood": "good"},
        {**EVERYTHING, "resources": {"cores": 1}},
        {"name": "no-entrypoint"},
        {**EVERYTHING, "priority": "high"},
    ):
        assert not spec.is_valid(wrong)


async def _a_little_of_everything() -> dict[str, Any]:
    """A parent with a child, an end of each sort, a dropped file admitted and one rejected, an agent with mail."""
    core = await open_core("memory://schemas", ClusterSettings(inbox_patience=0.0))
    await core.store.put("inbox/good.json", json.dumps(EVERYTHING).encode(), ABSENT)
    await core.store.put("inbox/bad.json", b'{"name":', ABSENT)
    parent, failing, stopped = [each.job for each in await submit(core, [_spec("parent"), _spec("f"), _spec("s")])]
    heartbeat = _heartbeat(core)
    await heartbeat.register()
    await _claim(core, parent)
    await submit(core, [parse_spec({**EVERYTHING, "parent": parent.id, "id": "child"})])
    await end_attempt(core, await _claim(core, failing), "agent", _failure(), None)
    await _succeed(core)
    await stop(core, stopped.id, "no longer wanted")
    await post_mail(core, "agent")
    coordinator = Reconciler(core, "agent", lambda: heartbeat.member.beat)
    for _ in range(3):  # a file that does not parse is looked at twice
        await coordinator.try_pass()
    kept = [row.key for row in await core.store.list("") if row.key != "inbox/good.json"]
    objects = {key: await core.store.get(key) for key in kept}
    await core.store.close()
    return {key: json.loads(found.data) for key, found in objects.items() if found is not None}


def _spec(name: str) -> Any:
    return parse_spec({"name": name, "entrypoint": {"command": ["true"]}, "max_retries_failure": 1})


def _heartbeat(core: Core) -> Heartbeat:
    capacity = Resources(cpu=4000, memory=2**30, disk=2**30, device="gpu-h100", device_count=8)
    holdings = {"parent-1": Holding(attempt=1, phase="running", usage=ResourceUsage(cpu_seconds=0.5, memory=2**20))}
    record = AgentRecord(id="agent", host="host", pool="default", capacity=capacity, free=capacity, holdings=holdings)
    return Heartbeat(Membership(core, record, Leases(capacity)), lambda holdings: None, lambda: None)


async def _claim(core: Core, job: JobRecord) -> Any:
    claimed = await try_claim(core, entry_of(job), "agent", "host")
    assert isinstance(claimed, Claimed)
    return claimed.job


async def _succeed(core: Core) -> None:
    (submitted,) = await submit(core, [_spec("succeeding")])
    success = AttemptExit(kind="success", code=0, usage=ResourceUsage(cpu_seconds=1.5), log_chunks=2)
    result = JobResult(encoding="json", value={"answer": [42, None]}, size=21)
    await end_attempt(core, await _claim(core, submitted.job), "agent", AttemptEnd(success, result), None)


def _failure() -> AttemptEnd:
    return AttemptEnd(
        AttemptExit(kind="exception", message="ValueError: no", exception="ValueError", traceback="...", code=1)
    )
