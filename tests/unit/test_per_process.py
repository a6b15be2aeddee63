"""Values that each process makes for itself."""

from __future__ import annotations

import os
import threading

from fray_coordinator.per_process import PerProcess


def test_a_forked_child_makes_its_own_value_and_leaves_its_parents_unchanged() -> None:
    numbers: PerProcess[list[int]] = PerProcess(list)
    numbers.value.append(1)
    child = os.fork()
    if child == 0:
        numbers.value.append(2)
        os._exit(numbers.value != [2])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert numbers.value == [1]


def test_a_lock_that_was_held_during_a_fork_is_free_in_the_child() -> None:
    lock = PerProcess(threading.Lock)
    with lock.value:
        child = os.fork()
        if child == 0:
            os._exit(not lock.value.acquire(blocking=False))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert lock.value.locked()
