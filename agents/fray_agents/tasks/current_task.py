"""The task, process or thread, in which this code runs: its environment, and the function to call when it must end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Protocol

from fray_agents.threads import end_process, start_thread


class ThreadedTask(Protocol):
    """A task in a thread, as seen by its own code."""

    def call_on_stop(self, call: Callable[[], None]) -> None:
        """Call `call` on a stop, instead of interrupting the thread."""


thread_environ: ContextVar[Mapping[str, str] | None] = ContextVar("fray_task_environ", default=None)
thread_task: ContextVar[ThreadedTask | None] = ContextVar("fray_thread_task", default=None)
"""Set in the thread of a task, and unset in a process of its own."""


def task_environ() -> Mapping[str, str]:
    """The environment of the task in which this code runs: the thread's if it is one, else the process's."""
    return thread_environ.get() or os.environ


def on_stop(call: Callable[[], None]) -> None:
    """Call `call`, in another thread, when the task in which this code runs is asked to end.

    Without this, SIGTERM ends a process, and a stop interrupts a thread. It works in the task's main thread only; in
    other threads it does nothing.
    """
    task = thread_task.get()
    if task is not None:
        task.call_on_stop(call)
        return
    if threading.current_thread() is not threading.main_thread():
        return
    signals: SimpleQueue[int] = SimpleQueue()  # a signal handler may call its `put` at any point
    signal.signal(signal.SIGTERM, lambda number, frame: signals.put(number))
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    start_thread(lambda: call() if signals.get() else None, "fray-stop", end_process)
