"""Keys: built keys are parsed again, list order is the schedule, and odd keys are ignored."""

from __future__ import annotations

import math
import string

import pytest
from hypothesis import example, given, strategies as st

from fray_coordinator.store.interface import check_key
from fray_layouts.errors import InvalidInput
from fray_layouts.index_keys import ChildKey, PendingKey, Shape
from fray_layouts.key_encoding import decode_time, encode_time
from fray_layouts.object_keys import AgentKeys, BlobKeys, EndpointKey, JobIds, JobKeys, KeptBlobKey, NameKeys, PoolKeys
from fray_layouts.queue_keys import QueueKeys, TaskKeys, owner_of
from fray_layouts.work_keys import CheckpointKey, InboxKeys, WorkKeys

MIB = 1024 * 1024
times = st.floats(min_value=0, max_value=30_000_000_000, allow_nan=False)
words = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,20}[A-Za-z0-9])?", fullmatch=True).filter(
    lambda word: ".." not in word
)
mebibytes = st.integers(0, 2**40).map(lambda n: n * MIB)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    device = draw(st.sampled_from(["", "gpu", "gpu-h100", "tpu-v5litepod-16"]))
    count = draw(st.integers(1, 512)) if device else 0
    cpu, flags = st.integers(0, 10**8), st.booleans()
    return Shape(draw(cpu), draw(mebibytes), draw(mebibytes), device, count, draw(flags), draw(flags))


@st.composite
def entries(draw: st.DrawFn) -> PendingKey:
    return PendingKey(
        pool=draw(words),
        priority=draw(st.integers(-500, 499)),
        time=decode_time(encode_time(draw(times))),
        job=draw(words),
        attempt=draw(st.integers(1, 10**6)),
        shape=draw(shapes()),
    )


@given(times)
@example(1.001)
@example(1763726400.123)
def test_a_time_survives_its_digits_to_the_millisecond(seconds: float) -> None:
    digits = encode_time(seconds)
    assert len(digits) == 9
    assert abs(decode_time(digits) - seconds) <= 0.001


@given(st.integers(0, 32**9 - 1))
@example(1001)
def test_digits_survive_being_read_as_a_time(milliseconds: int) -> None:
    assert decode_time(encode_time(milliseconds / 1000)) == milliseconds / 1000


@given(times, times)
def test_text_order_of_times_is_time_order(one: float, other: float) -> None:
    early, late = sorted((one, other))
    assert encode_time(early) <= encode_time(late)


@given(entries())
def test_an_entry_is_read_from_its_key(entry: PendingKey) -> None:
    assert PendingKey.parse(entry.key()) == entry


@given(entries(), entries())
def test_entries_list_by_priority_and_then_by_time(one: PendingKey, other: PendingKey) -> None:
    other = PendingKey(one.pool, other.priority, other.time, other.job, other.attempt, other.shape)
    first, second = sorted((one, other), key=lambda e: (-e.priority, e.time))
    if (first.priority, first.time) != (second.priority, second.time):
        assert first.key().encode() < second.key().encode()


def test_jobs_that_fill_a_host_fit_there_as_their_keys_say_too() -> None:
    shape = Shape(cpu=1, memory=2 * 10**9, disk=10**9, device="", device_count=0, on_demand=False)
    parsed = PendingKey.parse(PendingKey("p", 0, 1.0, "j", 1, shape).key())
    assert parsed is not None
    assert 4 * 10**9 - 2 * MIB < 2 * parsed.shape.memory <= 4 * 10**9
    assert 10**9 - MIB < parsed.shape.disk <= 10**9


def built_again(key: str) -> list[object]:
    """The keys that all areas build from their parsed parts of this key."""
    found: list[object] = [
        (parsed := PendingKey.parse(key)) and parsed.key(),
        (child := ChildKey.parse(key)) and child.key(),
        (checkpoint := CheckpointKey.parse(key)) and checkpoint.key(),
        (endpoint := EndpointKey.parse(key)) and endpoint.key(),
        (job := JobKeys.parse(key)) and JobKeys.key(job),
        (agent := AgentKeys.parse(key)) and AgentKeys.key(agent),
        (name := NameKeys.parse(key)) and NameKeys.key(*name),
        (pool := PoolKeys.parse_doorbell(key)) and PoolKeys.doorbell(pool),
        (pool := PoolKeys.parse_record(key)) and PoolKeys.record(pool),
        (month := BlobKeys.parse(key)) and f"blobs/{month}/{key[-64:]}",
        (kept := KeptBlobKey.parse(key)) and kept.key(),
        (work := WorkKeys.parse(key)) and f"{WorkKeys.prefix(work[0])}{key.split('/', 2)[2]}",
        (number := WorkKeys.parse_log(key)) and f"{key[:-8]}{number:08d}",
        (aside := InboxKeys.parse_aside(key)) and InboxKeys.aside(*aside, key.rpartition("~")[2]),
    ]
    queue = QueueKeys.around(key) or QueueKeys()
    found += [
        (large := queue.parse_large(key)) and queue.large(*large),
        (segment := queue.parse(key)) and (queue.lease if segment[1] else queue.segment)(segment[0]),
        key if InboxKeys.is_rejection(key) else None,
        key if InboxKeys.is_drop(key) else None,
    ]
    return [each for each in found if each]


SEGMENT = "1mcc5rm00000abcdef-3"
BUILT = [
    PendingKey("default", 0, 1.0, "j-1", 1, Shape(1000, 2**30, 0, "gpu-h100", 8, True, True)).key(),
    PendingKey("p", -500, 1.0, "j-1", 12, Shape(0, 0, 0, "", 0, False)).key(),
    *("children/p-1/1/c-1", "jobs/j-1.json", "agents/host-1.json", "names/ns/queue/q.json", "pools/default/doorbell"),
    "pools/default/pool.json",
    *("actors/ns/a/j-1-2.json", "work/j-1/1/0/log-00000001", "work/j-1/12/0/result"),
    *("work/j-1/checkpoints/actor/000000000001", "blobs/2026-01/" + 64 * "a", "inbox/a b.json"),
    "blobs/kept/2026-03/2026-01/" + 64 * "a",
    *("inbox/rejected/a.0af1.json", "inbox/aside/a~0af1~abcdefgh"),
    QueueKeys.of("ns", "q", 1).segment(SEGMENT),
    QueueKeys.of("ns", "q", 1).dead_letters.lease(SEGMENT),
    QueueKeys.of("ns", "q", 1).large(SEGMENT, 2),
]
ODD_PARTS = ["", "/", ".", "..", "~", "\n", "\0", "\r", "\x7f", "0", "-", "²", "٣", "ſ", "\ud800", ".json"]
ODD_PARTS += ["a" * 300, "9" * 5000]


@pytest.mark.parametrize("key", BUILT)
def test_a_built_key_is_parsed_to_its_parts(key: str) -> None:
    assert key in built_again(key)


@st.composite
def keys_that_were_tampered_with(draw: st.DrawFn) -> str:
    """One of our keys, cut, doubled, or with an insertion."""
    key = draw(st.sampled_from(BUILT))
    begin, end = sorted(draw(st.tuples(*[st.integers(0, len(key))] * 2)))
    return key[:begin] + draw(st.sampled_from(ODD_PARTS) | st.text(max_size=3)) + key[end:]


@given(keys_that_were_tampered_with() | st.text(max_size=60))
@example("pending/default/499ilouilou1-j~1~c1m1d1")  # letters that the digits leave out
@example("pending/default/499000000001-j~²~c1m1d1")  # a digit to Python, not to int()
@example("pending/default/٤٩٩000000001-j~1~c1m1d1")
@example("pending/default/499000000001-j~1~c١m1d1")
@example("pending/default/499000000001-j~01~c1m1d1")
@example("pending/default/499000000001-a\nb~1~c1m1d1")
@example("children/p/²/c")
@example("pending/default/499000000001-~1~c1m1d1")
@example(f"queues/ns/q~1/segments/{SEGMENT}")
def test_a_parsed_key_is_built_again_identically_and_fits_every_store(key: str) -> None:
    for again in built_again(key):
        assert again == key
        check_key(key)
    if (owner := owner_of(key)) is not None:
        assert key.startswith((QueueKeys.of(*owner).prefix, TaskKeys.of(*owner).prefix))


FOLDERS = ["blobs", "blobs/2020-01", "jobs", "inbox", "pending/default", "children", "children/a/1", "agents"]
FOLDERS += [
    "actors/a/b",
    "inbox/rejected",
    "inbox/aside",
    "names/a/job",
    "pools/a",
    "queues/n/q~1/segments",
    "work/x-1",
]
FOREIGN = ["blobs/notes.txt", "jobs/a/b.json", "jobs/a.tmp", "jobs/a", "jobs/a\n.json", "agents/a\n.json", "x/a.json"]
FOREIGN += ["inbox/a\nb.json", "actors/a/b/c\n.json", "children/a/1/b\n", "names/a/thing/b.json", "actors/a//c.json"]
FOREIGN += [f"jobs/{145 * 'a'}.json", f"inbox/{251 * 'a'}.json", "work/j-1/0/0/result", "work/j-1/1/0/log-1"]
FOREIGN += ["blobs/kept/2020-01/" + 64 * "a", "blobs/kept/2020-01/2020-13/" + 64 * "a"]
FOREIGN += ["blobs/2020-13/" + 64 * "a", "blobs/2020-12/" + 63 * "a", "work/j/checkpoints/a/b/000000000001"]


@pytest.mark.parametrize("key", [*(f"{folder}/" for folder in FOLDERS), *FOREIGN])
def test_folder_markers_and_foreign_objects_are_ignored(key: str) -> None:
    assert built_again(key) == []


@pytest.mark.parametrize("seconds", [-1.0, 32**9 / 1000, 1e306, math.inf, math.nan])
def test_a_time_that_no_name_can_hold_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidInput, match="seconds since the epoch"):
        encode_time(seconds)


@given(words, st.integers(1, 10**6), words)
def test_a_child_is_read_from_its_key(parent: str, attempt: int, child: str) -> None:
    entry = ChildKey(parent, attempt, child)
    assert ChildKey.parse(entry.key()) == entry


@given(words)
def test_job_and_agent_keys_give_their_ids(name: str) -> None:
    assert JobKeys.parse(JobKeys.key(name)) == name
    assert AgentKeys.parse(AgentKeys.key(name)) == name


@given(words, times, times)
def test_job_ids_of_one_name_sort_by_time(name: str, one: float, other: float) -> None:
    early, late = sorted((one, other))
    if encode_time(early) != encode_time(late):
        assert JobIds.fresh(name, early, "zzzzzz") < JobIds.fresh(name, late, "000000")


@pytest.mark.parametrize("text", ["", "../x", "a/b", "a~b", "a..b", "-a", "a b", "a\n", "x" * 145])
def test_invalid_job_ids_are_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidInput) as error:
        JobIds.checked(text, "parent")
    assert error.value.field == "parent"


@pytest.mark.parametrize(
    ("key", "is_drop"),
    [
        ("inbox/a.json", True),
        ("inbox/ä b.json", True),
        ("inbox/.a.json", False),
        ("inbox/a.json.tmp", False),
        ("inbox/rejected/a.1.json", False),
        ("inbox/aside/a~1~x", False),
    ],
)
def test_only_visible_json_files_are_drops(key: str, is_drop: bool) -> None:
    assert InboxKeys.is_drop(key) is is_drop


def test_a_name_that_cannot_be_dropped_again_was_not_moved_aside() -> None:
    assert InboxKeys.parse_aside("inbox/aside/.hidden~0af1~abcdefgh") is None


def test_the_name_of_a_file_moved_aside_tells_its_old_name() -> None:
    assert InboxKeys.parse_aside(InboxKeys.aside("inbox/my~job.json", 'W/"ab-1"', "token")) == ("my-job", "Wab-1")


@given(st.text(string.printable + "ä€", min_size=1, max_size=245))
def test_names_made_of_a_drop_fit_every_store(name: str) -> None:
    key = f"inbox/{name}.json"
    for made in (InboxKeys.rejected(key, "v" * 64), InboxKeys.aside(key, "v" * 64, "t" * 8)):
        assert len(made.rsplit("/", 1)[1].encode()) <= 255


@given(st.text(max_size=80))
def test_an_agent_id_can_be_made_of_any_host_name(host: str) -> None:
    agent = AgentKeys.fresh(host, 1.0, "abcdef")
    assert AgentKeys.parse(AgentKeys.key(agent)) == agent
    assert set(agent) <= set(string.ascii_letters + string.digits + "-")
