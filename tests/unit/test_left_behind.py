"""Processes that tests start end with the tests."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tests.support.left_behind import ends_what_it_starts
from tests.support.shell import Shell


def test_the_processes_of_a_failing_test_end_with_it(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "root")
    with ends_what_it_starts():
        lives_on = shell.start("--help")
        with suppress(AssertionError), ends_what_it_starts():
            started = shell.start("agent")
            raise AssertionError("as a test does that fails")
        assert started.returncode is not None
        assert lives_on.returncode is None
