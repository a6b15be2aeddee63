"""Shared by Ray's sides of the benches: a local Ray, and a process that answers each line with a line of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

os.environ["RAY_AUTH_MODE"] = "disabled"  # otherwise Ray leaves a token in the home directory
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # its address is 127.0.0.1, and nothing listens elsewhere

import ray


def answers() -> TextIO:
    """The stream for the answers. Ray itself prints to stdout, so from now on stdout goes to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out


@contextlib.contextmanager
def running(**options: Any) -> Iterator[Any]:
    """Ray on this machine, in a directory of its own; what `ray.init` returned."""
    directory = tempfile.mkdtemp(prefix="ray-")
    try:
        yield ray.init(**{"include_dashboard": False, "log_to_driver": False, "_temp_dir": directory, **options})
    finally:
        ray.shutdown()
        shutil.rmtree(directory, ignore_errors=True)


def serve(side: Callable[[Any], Callable[[str], Any]], **options: Any) -> None:
    """Start Ray, say so, and answer every line.

    Args:
        side: gets the result of `ray.init`, prepares, and returns the function that answers a line.
        options: of `ray.init`.
    """
    out, begun = answers(), time.monotonic()
    with running(**options) as head:
        answer = side(head)
        greeting = {"version": ray.__version__, "start_s": time.monotonic() - begun}
        print(json.dumps(greeting), file=out, flush=True)
        for line in sys.stdin:
            print(json.dumps(answer(line.strip())), file=out, flush=True)
