"""Received arrays that use shared memory change as little as arrays in memory of their own."""

from __future__ import annotations

import gc
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

from fray_rpc.wire import buffers, shared_memory
from fray_rpc.wire.buffers import Buffer
from fray_rpc.wire.serialization import Payload, pack, unpack
from fray_rpc.wire.shared_memory import SegmentReceiver, SegmentSender

SIZE = 600_000


def filled(value: int, size: int = SIZE) -> bytes:
    return bytes([value]) * size


class Pair:
    """Both ends of a connection that carries large buffers."""

    def __init__(self) -> None:
        self.sender, self._receiver = SegmentSender(), SegmentReceiver(os.open("/dev/null", os.O_RDONLY))

    def transfer(self, buffer: Buffer) -> memoryview:
        """A buffer as the receiver gets it."""
        reference = self.sender.send(buffer)
        assert reference is not None, "no segment is left"
        self._receiver.add(self.sender.new_descriptors())
        self.sender.finish()
        return self._receiver.take(reference)

    def array(self, value: int) -> np.ndarray:
        """An array that uses such a buffer."""
        return np.frombuffer(self.transfer(filled(value)), np.uint8)

    def segments(self) -> int:
        """How many segments the sender has."""
        return len(self.sender._segments)


@pytest.fixture
def pair() -> Iterator[Pair]:
    gc.collect()  # what earlier tests received
    yield Pair()
    gc.collect()
    buffers._return_unused()
    assert not buffers._borrowed, "something still uses a received buffer"


@pytest.fixture
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """An eighth of the memory that a connection may use, for tests that use all of it."""
    monkeypatch.setattr(shared_memory, "MAX_SHARED_BYTES", shared_memory.MAX_SHARED_BYTES // 8)
    monkeypatch.setattr(buffers, "MAX_BORROWED_BYTES", buffers.MAX_BORROWED_BYTES // 8)


little_memory = pytest.mark.usefixtures("_little_memory")


def in_a_child(check: Callable[[], bool]) -> Callable[[], bool]:
    """Fork; the child waits for the returned function to be called, which returns what `check` returned there."""
    told, tell = os.pipe()
    pid = os.fork()
    if not pid:
        with suppress(BaseException):
            os.read(told, 1)
            os._exit(0 if check() else 1)
        os._exit(2)

    def answer() -> bool:
        os.write(tell, b"!")
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(told)
        os.close(tell)
        assert code in (0, 1)
        return code == 0

    return answer


USES: dict[str, Callable[[memoryview], memoryview | np.ndarray]] = {
    "the buffer": lambda buffer: buffer,
    "a slice": lambda buffer: buffer[10:20],
    "another type": lambda buffer: buffer.cast("I"),
    "an array": lambda buffer: np.frombuffer(buffer, np.float32),
    "a view of an array": lambda buffer: np.frombuffer(buffer, np.uint8)[5:10].reshape(5, 1).T,
}


@pytest.mark.parametrize("use", USES)
def test_a_segment_is_used_again_only_when_nothing_uses_its_memory(pair: Pair, use: str) -> None:
    buffer = pair.transfer(filled(1))
    first = USES[use](buffer)
    if first is not buffer:
        buffer.release()  # succeeds, although the array still uses the memory
    second = pair.transfer(filled(2))
    assert set(bytes(first)) == {1}
    assert pair.segments() == 2
    del buffer, first
    buffers._return_unused()
    third = pair.transfer(filled(3))
    assert pair.segments() == 2
    assert set(second) == {2}
    assert set(third) == {3}


def test_an_unpickled_array_may_be_changed_and_is_not_copied(pair: Pair) -> None:
    sent = pack(np.ones(SIZE))
    array = unpack(Payload(sent.data, [pair.transfer(sent.buffers[0])]))
    assert len(buffers._borrowed) == 1
    array += 1
    other = pair.array(7)
    assert (array == 2).all()
    assert (other == 7).all()
    del array, other


@little_memory
def test_who_keeps_arrays_gets_further_ones_as_copies(pair: Pair) -> None:
    size = buffers.MAX_BORROWED_BYTES // 8 - buffers.DATA_OFFSET
    kept = [
        pair.transfer(filled(value, size))
        for value in range(2 * shared_memory.MAX_SHARED_BYTES // (size + buffers.DATA_OFFSET))
    ]
    assert len(buffers._borrowed) == 8
    assert pair.segments() == 9
    assert all(buffer[0] == buffer[-1] == value for value, buffer in enumerate(kept))


def test_small_arrays_and_those_beyond_a_number_are_copied(pair: Pair) -> None:
    small = [pair.transfer(filled(value, buffers.MIN_BORROWED_BYTES - 1)) for value in range(100)]
    assert (len(buffers._borrowed), pair.segments()) == (0, 1)
    kept = [pair.transfer(filled(value)) for value in range(100)]
    assert (len(buffers._borrowed), pair.segments()) == (buffers.MAX_BORROWED_SEGMENTS, 33)
    assert all(buffer[0] == buffer[-1] == value for value, buffer in enumerate(kept))
    assert all(buffer[0] == buffer[-1] == value for value, buffer in enumerate(small))


def test_a_kept_array_does_not_keep_a_much_larger_segment(pair: Pair) -> None:
    pair.transfer(filled(1, 50 * SIZE))
    buffers._return_unused()
    kept = pair.transfer(filled(2))
    assert sum(len(one.memory) for one in buffers._borrowed) < 4 * SIZE
    assert set(kept) == {2}


@little_memory
def test_a_large_buffer_takes_the_place_of_returned_small_segments(pair: Pair) -> None:
    most = shared_memory.MAX_SHARED_BYTES
    size = most // 32
    for value in range(3):
        kept = [pair.transfer(filled(value, size - buffers.DATA_OFFSET)) for _ in range(15)]
        assert {buffer[-1] for buffer in kept} == {value}
        del kept
        buffers._return_unused()
        assert pair.sender.send(bytes(most)) is None
        assert pair.segments() > 14, "a buffer that is too large takes nothing"
        large = pair.transfer(filled(9, most - size))
        assert large[0] == large[-1] == 9
        del large
        buffers._return_unused()


def test_a_segment_that_could_not_be_made_counts_on_neither_side(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "eventfd", lambda *flags: os.open("/no/such/file", os.O_RDONLY))
        assert pair.sender.send(filled(1)) is None
    assert set(pair.transfer(filled(2))) == {2}


def test_a_buffer_in_a_cycle_of_objects_stays_as_it_was_until_their_last_methods_have_run(pair: Pair) -> None:
    seen: list[set[int]] = []

    class Last:
        def __init__(self, buffer: memoryview) -> None:
            self.buffer, self.itself = buffer, self

        def __del__(self) -> None:
            pair.transfer(filled(2))
            pair.transfer(filled(3))
            seen.append(set(self.buffer))

    Last(pair.transfer(filled(1)))
    gc.collect()
    assert seen == [{1}]


def test_arrays_that_are_kept_through_many_forks_use_a_bounded_number_of_descriptors(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffers, "MAX_BORROWED_SEGMENTS", 6)
    before, kept = len(os.listdir("/proc/self/fd")), []
    for value in range(2 * buffers.MAX_BORROWED_SEGMENTS):
        kept.append(pair.transfer(filled(value)))
        assert in_a_child(lambda: True)()
    assert len(buffers._borrowed) == buffers.MAX_BORROWED_SEGMENTS
    assert len(os.listdir("/proc/self/fd")) - before < 3 * buffers.MAX_BORROWED_SEGMENTS
    assert all(buffer[0] == buffer[-1] == value for value, buffer in enumerate(kept))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_segment_that_cannot_be_made_private_leaves_the_others_their_own(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, make_private = pair.array(1), pair.array(2), buffers._make_private

    def fails_once(memory: mmap.mmap, file: buffers.OwnedDescriptor) -> None:
        if memory is buffers._borrowed[0].memory:
            raise OSError("no memory")
        make_private(memory, file)

    def change() -> bool:
        second[:] = 9
        return True

    with monkeypatch.context() as patched:
        patched.setattr(buffers, "_make_private", fails_once)
        assert in_a_child(change)()
    assert (second == 2).all()
    assert (first == 1).all()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_segment_that_cannot_be_made_private_is_not_returned_while_a_child_uses_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: object) -> None:
        raise OSError("no memory")

    arrays = [pair.array(1)]
    with monkeypatch.context() as patched:
        patched.setattr(buffers, "_make_private", fails)
        child = in_a_child(lambda: bool((arrays[0] == 1).all()))
    arrays.clear()
    buffers._return_unused()
    assert set(pair.transfer(filled(2))) == {2}
    assert child()


def test_a_connection_that_closes_leaves_the_arrays_that_it_brought() -> None:
    pair = Pair()
    array = pair.array(1)
    del pair
    gc.collect()
    assert (array == 1).all()


def test_a_childs_array_stays_as_it_was_when_its_parents_is_gone(pair: Pair) -> None:
    arrays = [pair.array(1)]
    child = in_a_child(lambda: bool((arrays[0] == 1).all()))
    arrays.clear()
    assert set(pair.transfer(filled(2))) == {2}
    assert child()


def test_parent_and_child_do_not_see_each_others_changes(pair: Pair) -> None:
    array = pair.array(1)
    seen, see = os.pipe()

    def changed_and_unchanged() -> bool:
        array[:10] = 3
        os.write(see, b"!")
        return bool((array[10:] == 1).all())

    child = in_a_child(changed_and_unchanged)
    array[10:20] = 2
    assert child()
    assert os.read(seen, 1)
    assert (array[10:20] == 2).all()
    assert (array[:10] == 1).all()
    os.close(seen)
    os.close(see)


def test_a_childs_end_returns_nothing_of_its_parents(pair: Pair) -> None:
    arrays = [pair.array(1)]

    def free() -> bool:
        arrays.clear()
        return True

    assert in_a_child(free)()
    assert set(pair.transfer(filled(2))) == {2}
    assert (arrays[0] == 1).all()


@little_memory
def test_segments_that_a_fork_made_private_count_no_longer(pair: Pair) -> None:
    most = 2 * shared_memory.MAX_SHARED_BYTES // buffers.MAX_BORROWED_BYTES
    for value in range(2 * most):
        kept = pair.transfer(filled(value, buffers.MAX_BORROWED_BYTES - buffers.DATA_OFFSET))
        assert len(buffers._borrowed) == 1
        assert in_a_child(lambda: True)()
        assert kept[0] == kept[-1] == value
        del kept
    assert pair.segments() == 1


def test_no_segment_is_borrowed_between_the_preparation_of_a_fork_and_the_fork(pair: Pair) -> None:
    with ThreadPoolExecutor(1) as beside:
        buffers._before_fork()
        try:
            receiving = beside.submit(pair.transfer, filled(1))
            with pytest.raises(TimeoutError):
                receiving.result(0.2)
        finally:
            buffers._lock.release()
        assert set(receiving.result()) == {1}
        del receiving


def test_threads_that_receive_while_another_one_forks_get_what_was_sent() -> None:
    wrong: list[int] = []
    ended = threading.Event()

    def receive(value: int) -> None:
        pair, arrays = Pair(), []
        while not ended.is_set():
            value = (value + 1) % 250
            arrays.append((value, pair.array(value)))
            wrong.extend(value for value, array in arrays if not (array == value).all())
            del arrays[:-3]

    threads = [threading.Thread(target=receive, args=(first,)) for first in (0, 100)]
    for thread in threads:
        thread.start()
    kept = Pair().array(251)
    try:
        children = [in_a_child(lambda: bool((kept == 251).all())) for _ in range(12)]
        assert all(child() for child in children)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert not wrong
