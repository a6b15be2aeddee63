"""A pytest plugin: `pytest -p tests.simulation.broken_tests --broken VARIANT TEST` runs a test with a variant."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def is_red(test: str, variant: str) -> tuple[bool, str]:
    """Run a test with a variant, in a process of its own; return whether it fails, and its output."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.simulation.broken_tests", "--broken", variant, test]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    return run.returncode == 1, run.stdout


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--broken", default="", help="the broken variant of the code to run tests with")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Apply the variant only to the test's call, because the fixtures need sound code."""
    from tests.simulation.strength import VARIANTS

    variant = str(item.config.getoption("--broken"))
    with VARIANTS.applied(variant):
        return (yield)
