"""Pools in files: any file is either a pool or an error that names the field."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, strategies as st

import fray_layouts
from fray_layouts.errors import InvalidInput
from fray_layouts.pool_file import PoolToSet, parse_fray_file, parse_pool
from fray_layouts.records import CommandSettings, ProvisioningSpec, Resources

WHEEL = "gs://b/fray_cluster-0.1.0-py3-none-any.whl#sha256=" + 64 * "a"
TPU: dict[str, Any] = {
    "provider": "tpu",
    "machine_type": "v5litepod-16",
    "zones": ["us-east5-a", "europe-west4-b"],
    "tpu": {"package": WHEEL},
}
CLOUD_RUN: dict[str, Any] = {"provider": "cloud_run", "zones": ["us-central1"], "cloud_run": {"image": "an/image"}}
COMMAND: dict[str, Any] = {"provider": "command", "command": {"list": ["ls"], "create": ["mk"], "delete": ["rm"]}}
LOCAL: dict[str, Any] = {"provider": "local"}
SCHEMA = json.loads(Path(fray_layouts.__file__).parents[1].joinpath("schemas/fray-file.json").read_bytes())

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)


@pytest.mark.parametrize(
    "pool", [TPU, CLOUD_RUN, COMMAND, LOCAL, {**TPU, "spot": True, "tpu": {"project": "p", "image": "i"}}]
)
def test_each_provider_has_pools_and_the_editor_accepts_them(pool: dict[str, Any]) -> None:
    document = {"pools": {"one": pool}}
    assert parse_fray_file(document)["one"].provisioning.provider == pool["provider"]
    jsonschema.Draft202012Validator(SCHEMA).validate(document)


def test_all_that_a_pool_says_is_kept() -> None:
    written = {
        **COMMAND,
        "min": 1,
        "max": 4,
        "idle_seconds": 60,
        "max_hourly_cost": 12.5,
        "hourly_cost": 3,
        "labels": {"disk": "ssd"},
        "capacity": {"cpu": 1.5, "memory": "8GB", "device": {"kind": "gpu", "variant": "H100", "count": 8}},
        "environments": [{"workspace": ".", "extras": ["train"]}],
    }
    jsonschema.Draft202012Validator(SCHEMA).validate({"pools": {"one": written}})
    pool = parse_pool(written)
    assert pool.provisioning == ProvisioningSpec(
        provider="command",
        min=1,
        max=4,
        idle_seconds=60.0,
        max_hourly_cost=12.5,
        hourly_cost=3.0,
        labels={"disk": "ssd"},
        capacity=Resources(cpu=1500, memory=8 * 10**9, device="gpu-h100", device_count=8),
        command=CommandSettings(list=["ls"], create=["mk"], delete=["rm"]),
    )
    assert pool.environments is not None
    assert (pool.environments[0].workspace, pool.environments[0].extras) == (".", ["train"])


@pytest.mark.parametrize(
    ("pool", "field", "remedy"),
    [
        ({}, "provider", "the field is missing and has no default; add it"),
        ({"provider": "aws"}, "provider", "there are local"),
        ({"provider": "Cloud-Run"}, "provider", "did you mean cloud_run?"),
        ({**LOCAL, "maximum": 3}, "maximum", "there is no such field; did you mean max"),
        ({**LOCAL, "tpu": {"zone": "a"}}, "tpu.zone", "there is no such field; the fields here are project"),
        ({**LOCAL, "zones": ["us-east5-a"]}, "zones", "a local pool is on this machine; leave them out"),
        ({**LOCAL, "spot": True}, "spot", "leave it out"),
        ({**LOCAL, "tpu": {"project": "p"}}, "tpu", "settings of provider tpu, and the pool has local"),
        ({**LOCAL, "min": 3, "max": 2}, "min", "it is above max, which is 2"),
        ({**LOCAL, "min": -1}, "min", "give a number of at least 0"),
        ({**LOCAL, "max": "4"}, "max", "give a whole number"),
        ({**LOCAL, "idle_seconds": -5}, "idle_seconds", "give a number of at least 0"),
        ({**LOCAL, "hourly_cost": -1}, "hourly_cost", "at least 0"),
        ({**LOCAL, "max_hourly_cost": 0}, "max_hourly_cost", "above 0"),
        ({**LOCAL, "labels": {"": "x"}}, "labels", "a label has a name"),
        ({**LOCAL, "capacity": {"memory": "8 gigs"}}, "capacity.memory", "give bytes, or a size such as"),
        ({**LOCAL, "capacity": {"cores": 8}}, "capacity.cores", "there is no such field"),
        ({**LOCAL, "capacity": {"device": {"kind": "fpga"}}}, "capacity.device.kind", "cpu, gpu and tpu"),
        ({**LOCAL, "capacity": {"device": {"kind": "gpu", "count": 0.5}}}, "capacity.device.count", "whole devices"),
        ({**LOCAL, "environments": {"extras": []}}, "environments", "give a list"),
        ({**LOCAL, "environments": [{"extra": []}]}, "environments[0].extra", "did you mean extras"),
        ({**TPU, "zones": "us-east5-a"}, "zones", "give a list, even for one entry"),
        ({**TPU, "zones": []}, "zones", "give zones in order of preference"),
        ({**TPU, "zones": ["us-east5"]}, "zones", "a zone is a region and a letter"),
        ({**TPU, "zones": ["a-1", "a-1"]}, "zones", "listed twice"),
        ({**TPU, "tpu": {}}, "tpu.package", "say how its hosts get Fray: build a wheel"),
        ({**TPU, "tpu": {"package": "fray-cluster==0.1.0"}}, "tpu.package", "or give tpu.image"),
        ({**TPU, "tpu": {"package": WHEEL[:-1]}}, "tpu.package", "its URL and hash"),
        ({**TPU, "tpu": {"package": WHEEL, "image": "i"}}, "tpu.package", "give one of the two"),
        ({"provider": "tpu", "zones": ["us-east5-a"]}, "machine_type", "give the type of its slices"),
        ({**TPU, "machine_type": "v5litepod-17"}, "machine_type", "there are v5litepod-1, "),
        ({**TPU, "command": {"list": [], "create": [], "delete": []}}, "command", "settings of provider command"),
        ({**CLOUD_RUN, "machine_type": "n1"}, "machine_type", "Cloud Run has none"),
        ({**CLOUD_RUN, "zones": []}, "zones", "give regions in order of preference"),
        ({**CLOUD_RUN, "zones": ["us-central1-a"]}, "zones", "Cloud Run has regions"),
        ({**CLOUD_RUN, "spot": True}, "spot", "leave it out"),
        ({**CLOUD_RUN, "cloud_run": {"image": ""}}, "cloud_run.image", "name a container"),
        ({**CLOUD_RUN, "cloud_run": {}}, "cloud_run.image", "the field is missing"),
        ({"provider": "cloud_run", "zones": ["us-central1"]}, "cloud_run", "give at least the image"),
        ({"provider": "command"}, "command", "give the programs"),
        ({**COMMAND, "command": {**COMMAND["command"], "list": []}}, "command.list", "a program and its arguments"),
        ({**COMMAND, "command": {**COMMAND["command"], "list": "ls -l"}}, "command.list", "give a list"),
        ({**COMMAND, "command": {**COMMAND["command"], "list": [True]}}, "command.list[0]", "give text, in quotes"),
        ({**COMMAND, "command": {**COMMAND["command"], "create": ["a\0"]}}, "command.create", "a program"),
    ],
)
def test_a_wrong_field_is_named_with_its_remedy(pool: dict[str, Any], field: str, remedy: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_fray_file({"pools": {"one": pool}})
    assert error.value.field == f"pools.one.{field}"
    assert remedy in error.value.remedy


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (None, "file"),
        (["a"], "file"),
        ({"pool": {"a": LOCAL}}, "pool"),
        ({"pools": []}, "pools"),
        ({"pools": {}}, "pools"),
        ({"pools": {"a": None}}, "pools.a"),
        ({"pools": {"a/b": LOCAL}}, "pools"),
        ({"pools": {7: LOCAL}}, "pools"),
    ],
)
def test_a_file_without_pools_is_refused_with_the_expected_content(document: object, field: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_fray_file(document)
    assert error.value.field == field


def test_text_under_an_unknown_name_is_not_repeated() -> None:
    with pytest.raises(InvalidInput) as error:
        parse_pool({**LOCAL, "password": "hunter2"})
    assert "hunter2" not in str(error.value)


@given(st.dictionaries(st.sampled_from(ProvisioningSpec.__struct_fields__) | st.text(max_size=6), anything))
def test_any_fields_are_a_pool_or_a_complaint(fields: dict[str, Any]) -> None:
    with contextlib.suppress(InvalidInput):
        pool = parse_pool({**LOCAL, **fields})
        assert isinstance(pool, PoolToSet)
        assert msgspec.json.decode(msgspec.json.encode(pool.provisioning), type=ProvisioningSpec) == pool.provisioning
