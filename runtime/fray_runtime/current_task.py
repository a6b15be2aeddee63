"""The task, process or thread, in which this code runs: its environment, its notes for the agent, and its end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, Protocol

from fray_runtime.threads import end_process, start_thread
from fray_runtime.variables import read_variable

PRIVATE_VAR = "FRAY_PRIVATE"
"""Variable of the tasks of a private cluster, with its `PrivateMode`: everything that they launch runs there too."""

PrivateMode = Literal["", "real", "simulated"]
"""Whether a cluster is private, and what it does with demands that this machine cannot meet: "" is no private cluster,
"real" refuses them, and "simulated" runs the job without them."""

TASK_DIR_VAR = "FRAY_TASK_DIR"
"""Variable with the path of the task's directory; it also identifies the task to which a process belongs."""

CHILDREN_MARKER = "children"
"""Name of a file in FRAY_TASK_DIR whose existence says that the task submitted children."""

ENDPOINTS_FILE = "endpoints"
"""Name of a file in FRAY_TASK_DIR with the keys of endpoints that the task published; its agent removes these."""


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


def private_mode() -> PrivateMode:
    """The mode of the private cluster whose task runs this code; "" if none does."""
    mode = read_variable(PRIVATE_VAR, task_environ())
    return "" if not mode else "simulated" if mode == "simulated" else "real"


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


def note_endpoint(task_dir: str, key: str) -> None:
    """Record, before it is published, that the task publishes an endpoint under `key`, so that the agent removes it."""
    with open(Path(task_dir, ENDPOINTS_FILE), "a", encoding="utf-8") as file:
        file.write(f"{key}\n")


def noted_endpoints(listed: bytes) -> list[str]:
    """Keys of the endpoints that a task may have published, from the content of its endpoints file."""
    return listed.decode(errors="replace").split("\n")[:-1]
