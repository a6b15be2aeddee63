"""Real processes of actors' jobs: they crash, and their agent starts them again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.support.agents import (
    agents,
    job,
    launch,
    lines,
    quick_core,
)
from tests.support.processes import is_alive
from tests.support.waiting import eventually

NOTES_ITS_PID = """
import os, time
print(os.environ["FRAY_ATTEMPT"], os.environ["FRAY_BIND_HOST"], os.getpid(), file=open({notes!r}, "a"))
time.sleep(600)
"""


async def test_a_killed_actor_is_started_again_on_its_host_and_its_agent_goes_on_holding_it(tmp_path: Path) -> None:
    notes = tmp_path / "notes"

    async def started(count: int) -> list[str]:
        """Attempt, address to bind and process id, as the last of `count` attempts recorded them."""
        return await eventually(lambda: lines(notes)[-1].split() if len(lines(notes)) == count else None)

    async with quick_core(tmp_path / "root") as core:
        with agents(core.root, tmp_path / "work"):
            job_id = await launch(core, NOTES_ITS_PID.format(notes=str(notes)), actor=True, max_retries_failure=5)
            attempt, bind, pid = await started(1)
            assert (attempt, bind) == ("1", "127.0.0.1")
            os.kill(int(pid), signal.SIGKILL)
            attempt, _, again = await started(2)
            assert attempt == "2"
            assert not is_alive(int(pid))
            assert is_alive(int(again))
            after = await job(core, job_id)
    assert (after.status, after.attempt, after.failures) == ("running", 2, 1)
    assert after.lease is not None
    assert [(past.agent, past.exit.kind) for past in after.history] == [(after.lease.agent, "signalled")]
