"""Specs and sizes: any input is either a job or an error that names the field."""

from __future__ import annotations

import contextlib
import difflib
import math
import re
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import example, given, strategies as st

from fray_coordinator.protocol.scheduling import shape_of
from fray_layouts.bounds import MAX_ATTEMPTS
from fray_layouts.errors import InvalidInput
from fray_layouts.index_keys import PendingKey
from fray_layouts.object_keys import JobIds, JobKeys
from fray_layouts.spec import HealthCheckSpec, JobSpec
from fray_layouts.spec_parsing import parse_spec
from fray_layouts.units import SMALLEST_BARE_SIZE, format_bytes, parse_bytes, parse_seconds

MINIMAL: dict[str, Any] = {"name": "hello", "entrypoint": {"command": ["echo", "hi"]}}

keys = st.sampled_from([field.name for field in msgspec.structs.fields(JobSpec)]) | st.text(max_size=8)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)


def with_(path: str, value: Any) -> dict[str, Any]:
    """The minimal spec with one field set."""
    spec: dict[str, Any] = {**MINIMAL}
    *folders, last = path.split(".")
    here = spec
    for folder in folders:
        here[folder] = dict(here.get(folder, {}))
        here = here[folder]
    here[last] = value
    return spec


def complaint(spec: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as error:
        parse_spec(spec)
    assert len(str(error.value)) < 700, "an error is one readable line"
    return error.value


def accepted_is_sound(spec: JobSpec) -> None:
    """Check the properties of every accepted spec that the rest of the system relies on."""
    assert msgspec.json.decode(msgspec.json.encode(spec), type=JobSpec) == spec
    for name in filter(None, (spec.name, spec.id, spec.namespace, spec.pool, spec.parent)):
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name)
        assert ".." not in name
    given_id = JobIds.given(spec.namespace, spec.name, spec.id) if spec.id else JobIds.fresh(spec.name, 1e9, "abcdef")
    assert JobIds.checked(given_id) == given_id
    entry = PendingKey(spec.pool, spec.priority, 1e9, given_id, MAX_ATTEMPTS, shape_of(spec)).key()
    for part in (*entry.split("/"), *JobKeys.key(given_id).split("/")):
        assert len(part) <= 255, "a key that no store can hold"
    assert PendingKey.parse(entry) is not None


@given(st.binary(max_size=60) | anything.map(msgspec.json.encode))
@example(b'{"name": "a", "entrypoint": {"command": ["x"]}, "grace": 1e999}')
def test_any_bytes_are_a_job_or_a_complaint(data: bytes) -> None:
    with contextlib.suppress(InvalidInput):
        accepted_is_sound(parse_spec(data))


@given(st.dictionaries(keys, anything, max_size=5))
@example({"grace": math.inf})
@example({"grace": math.nan})
@example({"timeout": math.inf})
@example({"resources": {"memory": "9" * 400}})
@example({"resources": {"memory": 10**300}})
@example({"resources": {"device": {"kind": "tpu", "variant": "v" * 128, "count": 10**50}}})
@example({"name": "n" * 128, "id": "i" * 128})
@example({"name": "K"})  # the Kelvin sign, which lower-cases to k
@example({"entrypoint": {"command": ["x", "\ud800"]}})
@example({"environment": {"env_vars": {"A": "\udcff"}}})
@example({"environment": {"env_vars": {1: 2}}})
@example({1: 2})
@example({"resources": {"cpu": math.nan}})
@example({"health_check": {"port": 80, "interval": math.inf}})
def test_any_mapping_is_a_job_or_a_complaint(changes: dict[Any, Any]) -> None:
    with contextlib.suppress(InvalidInput):
        accepted_is_sound(parse_spec({**MINIMAL, **changes}))


@given(st.text(max_size=20))
@example("a/b")
@example("a~b")
@example("a..b")
@example("..")
@example("a\n")
@example("٣")
@example("ſ")
def test_no_name_that_could_leave_its_folder_is_accepted(name: str) -> None:
    for field in ("name", "namespace", "pool", "id", "parent"):
        with contextlib.suppress(InvalidInput):
            accepted_is_sound(parse_spec(with_(field, name)))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", "a/b"),
        ("user", "a\nb"),
        ("user", "a\n"),
        ("user", "x" * 129),
        ("name", "x" * 10_000),
        ("name", ""),
        ("id", "a~b"),
        ("resources.cpu", -1),
        ("resources.memory", "lots"),
        ("resources.memory", -5),
        ("resources.device.kind", "fpga"),
        ("resources.device.count", 0),
        ("resources.device.count", 1.5),
        ("resources.device.count", 0.0005),
        ("replicas", 10_001),
        ("priority", 500),
        ("timeout", 0),
        ("grace", -1.0),
        ("max_retries_failure", -1),
        ("health_check.port", 0),
        ("environment.packages", ["numpy"]),
        ("naem", "x"),
        ("resources.gpus", 1),
    ],
)
def test_a_wrong_value_is_named_with_its_field(path: str, value: Any) -> None:
    error = complaint(with_(path, value))
    assert error.field == path
    assert error.remedy


@pytest.mark.parametrize(
    ("path", "value"),
    [("name", 5), ("resources.cpu", "two"), ("entrypoint.command", "echo hi"), ("timeout", "1x"), ("replicas", 1.5)],
)
def test_a_wrong_type_is_named_with_its_field(path: str, value: Any) -> None:
    assert complaint(with_(path, value)).field == path


@pytest.mark.parametrize(
    ("field", "spec", "words"),
    [
        ("command", {"command": "echo hi"}, '{"command": ["sh", "-c", "..."]}'),
        ("command", {"command": ["echo", "hi"]}, '{"command": [...]}'),
        ("entrypoint", {"entrypoint": "true"}, '{"command": ["..."]}'),
        ("entrypoint.command", {"entrypoint": {"command": "echo hi"}}, '["sh", "-c", "..."]'),
        ("entrypoint.command", {"entrypoint": {"command": ["python a/b.py"]}}, '["sh", "-c", "..."]'),
        ("entrypoint.command", {"entrypoint": {"command": ["$HOME/run", "x"]}}, '["sh", "-c", "..."]'),
    ],
)
def test_a_command_as_others_spell_it_is_answered_with_ours(field: str, spec: dict[str, Any], words: str) -> None:
    error = complaint({"name": "a", **spec})
    assert error.field == field
    assert words in error.remedy


@pytest.mark.parametrize("folder", ["/etc", "../out", "a//b", "a/./b", "a/", "a\0"])
def test_a_job_starts_inside_of_its_workspace(folder: str) -> None:
    workspace = {"blob": f"blobs/2026-11/{0:064x}", "folder": folder}
    error = complaint({"name": "a", "entrypoint": {"command": ["x"]}, "environment": {"workspace": workspace}})
    assert (error.field, error.remedy) == (
        "environment.workspace.folder",
        "give a path in the workspace, such as jobs/a",
    )


@pytest.mark.parametrize("missing", ["name", "entrypoint"])
def test_a_missing_field_is_named(missing: str) -> None:
    spec = {key: value for key, value in MINIMAL.items() if key != missing}
    assert complaint(spec).field == missing


def test_a_misspelt_field_gets_the_right_spelling() -> None:
    assert "did you mean memory" in str(complaint(with_("resources.memroy", 1)))


def test_ram_and_memory_are_the_same_thing() -> None:
    assert parse_spec(with_("resources.ram", "2GB")).resources.memory == 2 * 10**9
    both = with_("resources", {"ram": "1GB", "memory": "1GB"})
    assert complaint(both).field == "resources.ram"


@pytest.mark.parametrize(
    "wrong",
    [
        {"environment": {"env_vars": {"TOKEN": "hunter2"}, "secret_env_vars": {"TOKEN": "hunter2"}}},
        {"environment": {"secret_env_vras": {"TOKEN": "hunter2"}}},
        {"secret_env_vars": {"TOKEN": "hunter2"}},
        {"environment": {"secret_env_vars": {"TOKEN=hunter2": ""}}},
        {"environment": {"secret_env_vars": {"TOKEN": "hunter2\0"}}},
        {"environment": {"secret_env_vars": {"TOKEN": ["hunter2"]}}},
        {"environment": {"secret_env_vars": ["TOKEN=hunter2"]}},
        {"environment": "TOKEN=hunter2"},
        {"environment": {"packages": "hunter2"}},
    ],
)
def test_secrets_are_never_in_a_complaint(wrong: dict[str, Any]) -> None:
    assert "hunter2" not in str(complaint({**MINIMAL, **wrong}))
    torn = msgspec.json.encode({**MINIMAL, **wrong})[:-1]
    assert "hunter2" not in str(complaint(torn))
    assert "hunter2" not in str(complaint(b"[" + torn + b"}]"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"x" * 10**6: 1},
        {"name": "x" * 10**7},
        {"name": {str(number): "x" * 1000 for number in range(10**4)}},
        {"entrypoint": [["x"] * 10**6] * 10},
        {"resources": {"cpu": "9" * 10**6}},
        {"timeout": 10**5000},
        {"entrypoint": {"command": {"x" * 10**6: 1}}},
    ],
    ids=lambda wrong: next(iter(wrong))[:20],
)
def test_an_error_quotes_only_the_beginning_of_a_large_value(wrong: dict[Any, Any]) -> None:
    with mock.patch("difflib.SequenceMatcher.set_seq1", lambda self, text: bounded(text) and set_seq1(self, text)):
        complaint({**MINIMAL, **wrong})


set_seq1 = difflib.SequenceMatcher.set_seq1


def bounded(text: str) -> bool:
    assert len(text) <= 100
    return True


@pytest.mark.parametrize("pattern", ["", "/", "/etc/**", "..", "../x", "a/../b", "a//b", "./a", "a\0", "x" * 1001])
def test_outputs_lie_below_the_working_directory(pattern: str) -> None:
    assert complaint(with_("outputs", ["fine/**", pattern])).field == "outputs[1]"


@pytest.mark.parametrize("names", [["a b"], [""], ["http", "HTTP"], ["a-b", "a.b"], ["x"] * 17, "http", [80]])
def test_ports_have_names_with_variables_of_their_own(names: Any) -> None:
    assert complaint(with_("ports", names)).field.partition("[")[0] == "ports"


def test_outputs_are_a_list_and_no_long_one() -> None:
    for wrong in ("checkpoints", ["x"] * 101):
        assert complaint(with_("outputs", wrong)).field == "outputs"


@pytest.mark.parametrize("entrypoint", [{}, {"command": []}, {"command": ["x"], "callable": {"pickle": "eA=="}}])
def test_an_entrypoint_is_a_command_or_a_callable(entrypoint: dict[str, Any]) -> None:
    assert complaint(with_("entrypoint", entrypoint)).field == "entrypoint"


def test_only_a_command_has_a_standard_input() -> None:
    entrypoint = {"callable": {"pickle": "eA=="}, "stdin": "blobs/x"}
    assert complaint(with_("entrypoint", entrypoint)).field == "entrypoint.stdin"


def test_a_child_of_a_job_with_the_longest_name_can_name_its_parent() -> None:
    longest = parse_spec(with_("name", "n" * 128))
    parent = JobIds.fresh(longest.name, 1e9, "abcdef")
    assert parse_spec(with_("parent", parent)).parent == parent


def test_the_longest_names_and_the_largest_shape_fit_every_store() -> None:
    device = {"kind": "gpu", "variant": "v" * 32, "count": 10**6}
    resources = {"cpu": 99_999.999, "memory": 2**53, "disk": 2**53, "device": device, "preemptible": False}
    accepted_is_sound(parse_spec({**MINIMAL, "name": "n" * 128, "id": "i" * 6, "resources": resources}))


@given(st.integers(SMALLEST_BARE_SIZE, 2**60))
@example(0)
def test_a_number_of_bytes_is_itself(size: int) -> None:
    assert parse_bytes("f", size) == size == parse_bytes("f", str(size)) or size > 2**53


@pytest.mark.parametrize("size", [2, "16", " 16 ", "2.5", 64_000, SMALLEST_BARE_SIZE - 1])
@pytest.mark.parametrize("field", ["resources.memory", "resources.disk", "log_limit"])
def test_a_small_number_without_a_unit_is_no_size(field: str, size: int | str) -> None:
    error = complaint(with_(field, size))
    number = str(size).strip()
    assert error.field == field
    assert error.remedy == f"that is {int(float(number))} bytes; write {number}GB or {number}MB"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *((90, 90), (1.5, 1.5), ("90", 90), (" 1.5 ", 1.5), ("45s", 45), ("10m", 600), ("2h", 7200), ("1h30m", 5400)),
        *(("1h 30m", 5400), ("1d", 86_400), ("1.5h", 5400), ("10 min", 600), ("2 hours", 7200), ("500ms", 0.5)),
    ],
)
def test_durations_as_people_write_them(text: float | str, seconds: float) -> None:
    assert parse_seconds("f", text) == seconds
    for field in ("timeout", "pending_timeout", "grace"):
        assert getattr(parse_spec(with_(field, text)), field) == seconds
    check = parse_spec(with_("health_check", {"port": 1, "interval": text, "timeout": text, "grace": text}))
    assert check.health_check == HealthCheckSpec(port=1, interval=seconds, timeout=seconds, grace=seconds)


@pytest.mark.parametrize("wrong", ["", "soon", "10x", "m", "10m5", "5m1h", "-5", "1e3", "1h1h", [600]])
def test_what_is_no_duration_says_how_to_write_one(wrong: object) -> None:
    for field in ("timeout", "health_check.grace"):
        error = complaint(with_(field, wrong))
        assert (error.field, error.remedy) == (field, "give seconds, or a duration such as 10m or 1h30m")


def test_an_attempt_without_a_limit_may_say_so() -> None:
    assert parse_spec(with_("timeout", None)).timeout is None


@given(st.text(max_size=20))
@example("9" * 400)
@example("1m" * 200)
def test_any_text_is_a_duration_or_a_complaint(text: str) -> None:
    with contextlib.suppress(InvalidInput):
        assert parse_seconds("timeout", text) >= 0


@pytest.mark.parametrize(
    ("text", "size"),
    [("128m", 128 * 10**6), ("2GB", 2 * 10**9), ("512MiB", 512 * 2**20), ("1.5 GiB", 3 * 2**29), ("1kb", 1000)],
)
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    assert parse_bytes("f", text) == size


@given(st.text(max_size=20))
@example("9" * 400)
@example("1e9")
@example("-1")
def test_any_text_is_a_size_or_a_complaint(text: str) -> None:
    with contextlib.suppress(InvalidInput):
        assert parse_bytes("resources.memory", text) >= 0


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1536, "1.5 kB"),
        (128 * 10**6, "128 MB"),
        (999_960_000, "1 GB"),
        (80 * 10**9, "80 GB"),
        (3 * 10**12, "3000 GB"),
    ],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert format_bytes(size) == text
