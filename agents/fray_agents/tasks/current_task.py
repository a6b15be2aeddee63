"""The task that this code runs in, a process or a thread: its environment, and what is called when it must end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Protocol


class ThreadedTask(Protocol):
    """A task in a thread, as its own code sees it."""

    def call_on_stop(self, call: Callable[[], None]) -> None:
        """Have `call` called instead of interrupting the thread."""


thread_environ: ContextVar[Mapping[str, str] | None] = ContextVar("fray_task_environ", default=None)
thread_task: ContextVar[ThreadedTask | None] = ContextVar("fray_thread_task", default=None)
"""Set in the thread of a task; unset in a process's own."""


def task_environ() -> Mapping[str, str]:
    """The environment of the task that this code runs in: of its thread, else of the process."""
    return thread_environ.get() or os.environ


def on_stop(call: Callable[[], None]) -> None:
    """Have `call` called, in another thread, when the task that this code runs in is asked to end.

    Without this a process ends by SIGTERM, and a thread is interrupted. Only the task's main thread can ask for it; in
    others this does nothing.
    """
    task = thread_task.get()
    if task is not None:
        task.call_on_stop(call)
        return
    if threading.current_thread() is not threading.main_thread():
        return
    signals: SimpleQueue[int] = SimpleQueue()  # a signal handler may put into it, whatever it interrupts
    signal.signal(signal.SIGTERM, lambda number, frame: signals.put(number))
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    threading.Thread(target=lambda: call() if signals.get() else None, name="fray-stop", daemon=True).start()
