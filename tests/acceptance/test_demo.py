"""The demo with small numbers: real agents, a real SIGKILL, a real plot, and no files or processes left behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

DEMO = Path(__file__).parents[2] / "examples" / "demo" / "main.py"
FILES, SHARDS = 48, 12


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def said(place: Path) -> str:
    """The output of a small run."""
    (place / "tmp").mkdir()
    command = [sys.executable, str(DEMO), "--files", str(FILES), "--shards", str(SHARDS), "--output", "pictures"]
    environment = {**os.environ, "TMPDIR": str(place / "tmp"), "COLUMNS": "120"}
    ran = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_the_work_finishes_although_an_agent_is_killed_with_work_in_its_hands(said: str) -> None:
    assert re.search(r"killed \w+ with SIGKILL; shards in its hands: [1-9]", said)
    assert re.search(r"\w+'s death was noticed after \d+\.\d s; shards that begin anew: [1-9]", said)
    assert f"{SHARDS} of {SHARDS} shards are done" in said


def test_every_file_is_counted_once(said: str) -> None:
    modules = re.search(r"^(\d+) modules with", said, re.MULTILINE)
    unparsed = re.search(r"Files that do not parse:\s+(\d+)", said)
    assert modules is not None
    assert unparsed is not None
    assert int(modules[1]) + int(unparsed[1]) == FILES


def test_it_tells_the_ranking_the_time_and_the_bill(said: str) -> None:
    assert re.search(r"^ *1\. \w+ +\d+ +[\d,]+ +\d+ +\d+% +\d+", said, re.MULTILINE)
    assert re.search(rf"splitting {FILES} files +\d+\.\d s", said)
    bill = dict(re.findall(r"^ (\w[^$]*?) {2,}([\d,]+ .*\$\d\.\d{4})", said, re.MULTILINE))
    writes = {who: int(figures.split()[0].replace(",", "")) for who, figures in bill.items()}
    total = writes.pop("in all")
    assert len(writes) == 5
    assert total == sum(writes.values()) > 3 * SHARDS, "an entry and a record by the submitter, a claim and an end each"


def test_the_plot_is_where_it_says(said: str, place: Path) -> None:
    plot = place / "pictures" / "standard-library.png"
    assert f"The plot is in {plot}" in said
    assert plot.read_bytes().startswith(b"\x89PNG\r\n")


def test_nothing_is_left_behind(said: str, place: Path) -> None:
    assert list((place / "tmp").iterdir()) == []
    mine = f"TMPDIR={place}".encode()
    left = [process.name for process in Path("/proc").iterdir() if process.name.isdigit() and mine in _environ(process)]
    assert left == []


def _environ(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:  # it has ended, or is another user's
        return b""
