"""How long an agent repeats the uploads of an attempt that was stopped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from fray_agents.agent.held import HeldBundle
from fray_agents.agent.replica_runner import UploadRetries
from fray_agents.tasks.task_handle import TaskSpec
from fray_coordinator.core import Core
from fray_coordinator.errors import StoreError, StoreRefused, StoreUnavailable
from fray_coordinator.protocol.scheduling import shape_of
from fray_layouts.spec_parsing import parse_spec
from fray_layouts.states import ExitKind
from tests.support.fake_tasks import FakeTask

SPEC = {"name": "gang", "entrypoint": {"command": ["true"]}}
LOST, OUTAGE = StoreUnavailable("HTTP 500"), StoreUnavailable("HTTP 500")
LOST.others_answered = True
REFUSED = StoreRefused("HTTP 403")


async def requests_sent(
    core: Core, folder: Path, failures: Sequence[StoreError], stopped_during: int, seconds: float = 0.0
) -> int:
    """Upload something, and return how many requests were sent, negative if it was given up.

    Args:
        failures: of the first requests.
        stopped_during: the attempt is stopped while this request is under way; 0: before.
        seconds: how long the task runs on after that.
    """
    held, sent = HeldBundle(number=0, wants=shape_of(parse_spec(SPEC))), 0
    task = FakeTask(TaskSpec(folder, ["true"], None, {}, None, 1.0), folder, seconds, b"", None)
    if not seconds:
        task.kill()
    if not stopped_during:
        held.stop = (0.0, ExitKind.PREEMPTED)

    async def request() -> None:
        nonlocal sent
        sent += 1
        if sent == stopped_during:
            held.stop = (0.0, ExitKind.PREEMPTED)
        if sent <= len(failures):
            raise failures[sent - 1]

    try:
        await UploadRetries(core, held, task).keep_trying(request)
    except StoreError:
        return -sent
    return sent


@pytest.mark.parametrize(
    ("failures", "stopped_during", "sent"),
    [
        ([LOST], 0, 2),
        ([LOST, LOST], 0, -2),
        ([LOST, LOST], 1, 3),
        ([LOST, LOST, LOST], 1, -3),
        ([LOST, LOST, LOST, LOST], 3, 5),
        ([LOST] * 9, 99, 10),
        ([OUTAGE] * 9, 0, 10),
        ([REFUSED], 0, -1),
        ([REFUSED], 1, -1),
        ([REFUSED] * 9, 99, 10),
    ],
)
async def test_a_stopped_attempts_upload_ends_at_the_second_failure_of_requests_sent_since(
    core: Core, tmp_path: Path, failures: list[StoreError], stopped_during: int, sent: int
) -> None:
    assert await requests_sent(core, tmp_path, failures, stopped_during) == sent


async def test_the_log_of_a_task_that_still_ends_is_not_given_up(core: Core, tmp_path: Path) -> None:
    assert await requests_sent(core, tmp_path, [REFUSED, LOST, LOST], 0, seconds=600.0) == 4
