"""A task on a disk that becomes full: what it printed is kept, and its end says who has filled it.

Where this user may not mount a small disk, the tests of the parts judge: of the log, of the limits, of the agent.
"""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fray_agents.runner.limits import Limits
from tests.chaos.disks import may_mount, small_disk
from tests.support.tasks import end_of, lines_of, run, sh

FILL = "echo begins; head -c 100000000 /dev/zero > {}; yes out | head -c 300000; echo more; sleep 600"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with ExitStack() as stack:
        if may_mount():
            stack.enter_context(small_disk(tmp_path))
        yield tmp_path


@pytest.mark.parametrize(
    ("file", "kind", "message"),
    [
        ("big", "limit-exceeded", "it filled the disk of its host: 67 MB of 67 MB are in its work directory"),
        ("../../big", "host-failed", "this job's work directory has 0 MB; remove what is there, also what jobs left"),
    ],
)
def test_the_output_is_kept_and_the_end_names_the_process_that_filled_the_disk(
    disk: Path, file: str, kind: str, message: str
) -> None:
    if not may_mount():
        return
    end, log = asyncio.run(run(sh(disk / "task", FILL.format(file))))
    assert end.exit.kind == kind
    assert message in end.exit.message
    assert lines_of(log)[0] == b"begins"
    assert log.endswith(b"\n")
    assert end.exit.log_chunks


@pytest.mark.parametrize(
    ("file", "kind"),
    [("big", "limit-exceeded"), ("../../big", "host-failed")],
)
def test_a_task_that_fills_the_disk_and_ends_at_once_has_not_succeeded_without_its_output(
    disk: Path, file: str, kind: str
) -> None:
    if not may_mount():
        return
    end, log = asyncio.run(run(sh(disk / "task", f"head -c 100000000 /dev/zero > {file}; echo KEEP; exit 0")))
    assert end.exit.kind == kind
    assert b"KEEP" in lines_of(log) or "bytes of its output are lost" in end.exit.message


def test_a_limit_that_is_exceeded_just_before_the_end_counts(tmp_path: Path) -> None:
    limits = Limits(disk=10**6)
    end = end_of(sh(tmp_path, "head -c 5000000 /dev/urandom > big; exit 0", limits=limits))
    assert end.exit.kind == "limit-exceeded"
    assert "more disk than its limit of 1 MB: 5 MB" in end.exit.message
