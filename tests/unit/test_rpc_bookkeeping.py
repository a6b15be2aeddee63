"""A server's records of calls: each call runs once, outcomes are kept within bounds, ids longer."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import numpy as np
import pytest
from msgspec import structs

from fray_rpc.server.call_table import CallTable, ServedCall, ServerStream
from fray_rpc.wire.buffers import MIN_POOLED_BYTES, BufferPool
from fray_rpc.wire.messages import CallId, Reply, ReplyKind, Request
from fray_rpc.wire.serialization import Payload, pack, unpack
from fray_rpc.wire.shared_memory import SegmentReceiver, SegmentSender
from fray_runtime import pickling


class Caller:
    open = True

    def __init__(self) -> None:
        self.replies: list[tuple[int, int, bytes]] = []

    def reply(self, reply: Reply) -> None:
        self.replies.append((reply.id.sequence, reply.kind, bytes(reply.payload.data)))


def request(sequence: int, client: str = "c") -> Request:
    return Request(CallId(client, sequence), "actor", "method", Payload(b"arguments"))


def done(table: CallTable, record: ServedCall, data: bytes = b"result") -> None:
    table.complete(record, Reply(record.request.id, ReplyKind.VALUE, Payload(data)))


def test_a_repeated_call_joins_the_first_and_later_gets_the_stored_reply() -> None:
    table, first, second, third = CallTable(), Caller(), Caller(), Caller()
    (record,) = table.admit("c", 1, [request(1)], first)
    first.open = False
    assert table.admit("c", 1, [request(1)], second) == []
    done(table, record)
    assert (first.replies, second.replies) == ([], [(1, ReplyKind.VALUE, b"result")])
    assert table.admit("c", 1, [request(1)], third) == []
    assert third.replies == second.replies


def test_an_original_that_comes_later_than_its_repetition_does_not_take_the_reply_with_it() -> None:
    table, broken, new = CallTable(), Caller(), Caller()
    (record,) = table.admit("c", 1, [request(1)], new)
    assert table.admit("c", 1, [request(1)], broken) == []  # the server has not seen yet that its connection broke
    done(table, record)
    assert new.replies == [(1, ReplyKind.VALUE, b"result")]


def test_an_original_that_comes_later_than_its_repetition_does_not_take_the_stream_with_it() -> None:
    broken, new, table = Caller(), Caller(), CallTable()
    (record,) = table.admit("c", 1, [request(1)], new)
    record.stream = stream = ServerStream(record.request.id, [new], limit=4)
    stream.put(Payload(b"one"))
    stream.put(Payload(b"two"))
    table.admit("c", 1, [structs.replace(request(1), have=0, limit=4)], broken)
    stream.put(Payload(b"three"))
    broken.open = False
    stream.put(Payload(b"four"))
    assert [data for _, _, data in new.replies] == [b"one", b"two", b"three", b"four"]


def test_a_caller_that_resumes_a_stream_again_gets_each_item_once() -> None:
    first, again = Caller(), Caller()
    stream = ServerStream(CallId("c", 1), [first], limit=4)
    stream.put(Payload(b"one"))
    stream.put(Payload(b"two"))
    first.open = False
    stream.resume(again, have=1, limit=5)
    stream.resume(again, have=2, limit=5)
    stream.put(Payload(b"three"))
    assert [data for _, _, data in again.replies] == [b"two", b"three"]


def test_clients_do_not_share_ids() -> None:
    table, caller = CallTable(), Caller()
    assert len(table.admit("c", 1, [request(1)], caller)) == 1
    assert len(table.admit("d", 1, [request(1, "d")], caller)) == 1


def test_below_the_lowest_missing_reply_nothing_runs_again() -> None:
    table, caller = CallTable(), Caller()
    for record in table.admit("c", 1, [request(number) for number in (1, 2, 3)], caller):
        done(table, record)
    caller.replies.clear()
    assert table.admit("c", 3, [request(1), request(3)], caller) == []
    assert caller.replies == [(1, ReplyKind.RESULT_LOST, b""), (3, ReplyKind.VALUE, b"result")]


def test_over_the_bound_outcomes_go_oldest_first_and_ids_stay() -> None:
    table, caller = CallTable(max_bytes=1000), Caller()
    records = table.admit("c", 1, [request(number) for number in range(1, 12)], caller)
    for record in records:
        done(table, record, bytes(100))
    caller.replies.clear()
    assert table.admit("c", 1, [request(1), request(11)], caller) == []
    assert [(sequence, kind) for sequence, kind, _ in caller.replies] == [
        (1, ReplyKind.RESULT_LOST),
        (11, ReplyKind.VALUE),
    ]


def test_room_that_acknowledged_outcomes_took_is_free_again() -> None:
    table, caller = CallTable(max_bytes=1000), Caller()
    for number in range(1, 100):
        (record,) = table.admit("c", number, [request(number)], caller)
        done(table, record, bytes(900))
    caller.replies.clear()
    table.admit("c", 99, [request(99)], caller)
    assert caller.replies == [(99, ReplyKind.VALUE, bytes(900))]


def test_an_outcome_that_nobody_asks_for_any_more_takes_no_room() -> None:
    table, caller = CallTable(max_bytes=1000), Caller()
    (slow,) = table.admit("c", 1, [request(1)], caller)
    (quick,) = table.admit("c", 2, [request(2)], caller)
    done(table, slow, bytes(900))
    done(table, quick, bytes(900))
    caller.replies.clear()
    table.admit("c", 2, [request(2)], caller)
    assert caller.replies == [(2, ReplyKind.VALUE, bytes(900))]


def test_a_client_that_leaves_for_good_is_forgotten() -> None:
    table, caller = CallTable(max_bytes=1000), Caller()
    for number in range(100):
        (record,) = table.admit(f"c{number}", 1, [request(1, f"c{number}")], caller)
        done(table, record, bytes(900))
        table.client_left(f"c{number}", for_good=True)
    assert table._clients == {}


def test_a_call_of_another_channel_runs_though_this_one_is_further() -> None:
    table, caller = CallTable(), Caller()
    table.admit("new", 50, [request(50, "new")], caller)
    assert len(table.admit("new", 50, [request(7, "old")], caller)) == 1
    assert table.admit("new", 51, [request(7, "old")], caller) == []


def test_memory_is_given_out_again_only_once_no_array_lives_in_it() -> None:
    pool = BufferPool()
    size = 2 * MIN_POOLED_BYTES
    packed = pack(np.arange(size // 8))
    array = unpack(Payload(packed.data, [pool.copy(packed.buffers[0])]))
    view = memoryview(array)[10:20]
    address = array.ctypes.data

    def given() -> int:
        return np.frombuffer(pool.take(size), np.uint8).ctypes.data

    assert given() != address
    del array
    gc.collect()
    assert given() != address
    assert view.tolist() == list(range(10, 20))
    view.release()
    del view
    held = [np.frombuffer(pool.take(size), np.uint8) for _ in range(3)]
    assert address in [one.ctypes.data for one in held]
    assert len({one.ctypes.data for one in held}) == 3


def test_a_released_view_does_not_end_an_arrays_use_of_its_memory() -> None:
    pool = BufferPool()
    view = pool.take(MIN_POOLED_BYTES)
    array = np.frombuffer(view, np.uint8)
    view.release()
    address = array.ctypes.data
    assert np.frombuffer(pool.take(MIN_POOLED_BYTES), np.uint8).ctypes.data != address


def test_the_pool_keeps_no_more_than_its_bound() -> None:
    pool = BufferPool(max_bytes=10 * MIN_POOLED_BYTES)
    held = [pool.take(MIN_POOLED_BYTES + number) for number in range(30)]
    assert sum(len(block.memory) for block in pool._blocks) <= 10 * MIN_POOLED_BYTES
    assert len(held) == 30


def test_shared_segments_are_used_again_when_they_were_given_back() -> None:
    sender, receiver = SegmentSender(), SegmentReceiver(os.open("/dev/null", os.O_RDONLY))
    first = sender.send(b"a" * 500_000)
    second = sender.send(b"b" * 500_000)
    assert first is not None
    assert second is not None
    receiver.add(sender.new_descriptors())
    assert bytes(receiver.take(second)) == b"b" * 500_000
    third = sender.send(b"c" * 400_000)
    assert third is not None
    assert sender.new_descriptors() == []
    assert bytes(receiver.take(first)) == b"a" * 500_000
    assert bytes(receiver.take(third)) == b"c" * 400_000


def test_shared_memory_has_no_name_that_a_crash_would_leave_behind() -> None:
    sender = SegmentSender()
    assert sender.send(b"a" * 500_000) is not None
    descriptors = sender.new_descriptors()
    memory, pieces = (os.readlink(f"/proc/self/fd/{descriptor}") for descriptor in descriptors)
    assert memory.endswith("(deleted)")
    assert pieces == "anon_inode:[eventfd]"
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.mark.parametrize("module", ["asyncio", "ssl", "cryptography", "cloudpickle", "numpy"])
def test_a_server_of_small_calls_imports_no_heavy_module(module: str) -> None:
    code = f"import sys, fray_rpc; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("buffered", [False, True])
def test_code_of_another_python_is_refused_with_both_versions(monkeypatch: pytest.MonkeyPatch, buffered: bool) -> None:
    data = np.arange(4096) if buffered else None
    packed = pack((lambda number: number + 1, data))
    assert unpack(packed)[0](1) == 2
    assert bool(packed.buffers) is buffered
    theirs = pickling.OWN_PYTHON
    monkeypatch.setattr(pickling, "OWN_PYTHON", "3.99")
    with pytest.raises(
        pickling.PythonMismatch, match=rf"pickled by Python {theirs}, and Python 3\.99 cannot read it: run both"
    ):
        unpack(packed)
