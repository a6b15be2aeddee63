"""The time from a submission to the start of its attempt, with and without a hint to the agent, at two poll intervals.

Agents poll a folder every 0.05 s and a bucket every 1 s. The agents have no other work, and the jobs are submitted at
random times.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import time
from pathlib import Path

from harness import PYTHON, arguments, report, say, scratch, spread
from msgspec.structs import replace

from fray import Entrypoint, JobRequest, StorageCluster
from fray_coordinator.core import LOCAL_SETTINGS, open_core

NO_OP = JobRequest("noop", Entrypoint.from_binary("true"))


async def make(root: str, poll_interval: float) -> None:
    """A root whose agents poll at that interval."""
    core = await open_core(root, replace(LOCAL_SETTINGS, poll_interval=poll_interval, pass_interval=0.5))
    await core.store.close()


def starts(root: str, count: int, told: bool) -> list[float]:
    """Seconds from submission to start, of jobs one at a time."""
    command = [PYTHON, "-m", "fray", "agent", "--root", root] + ([] if told else ["--no-inbound"])
    agent = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        with StorageCluster(root) as cluster:
            cluster.wait(cluster.launch(NO_OP))
            time.sleep(6.0)  # until the pass has seen the agent, and this program has read that
            taken = []
            for _ in range(count):
                time.sleep(random.uniform(0.5, 1.5))
                info = cluster.wait(cluster.launch(NO_OP), raise_on_failure=True)
                assert info.start_time is not None
                assert info.submit_time is not None
                taken.append(info.start_time - info.submit_time)
            return taken
    finally:
        agent.send_signal(signal.SIGTERM)
        agent.wait(30)


def run(directory: Path, quick: bool) -> None:
    count = 3 if quick else 40
    figures = {}
    for poll in (0.05, 1.0):
        for told in (True, False):
            root = str(directory / f"{poll}-{told}")
            asyncio.run(make(root, poll))
            taken = spread(starts(root, count, told))
            figures[f"poll_{poll:g}_s_{'told' if told else 'not_told'}"] = taken
            say(f"looks every {poll:g} s, {'told' if told else 'not told'}: {taken}")
    report("hints", figures)


if __name__ == "__main__":
    options = arguments(__doc__)
    with scratch() as place:
        run(place, options.quick)
