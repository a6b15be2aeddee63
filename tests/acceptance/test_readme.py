"""What README.md shows in Python runs as it stands; what needs Zephyr is run by `make zephyr`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
BLOCKS = [block for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL) if "zephyr" not in block]
PRINTED = ["[1, 2]\n", "easy\nhard\n", "".join(f"{number}\n" for number in range(10)) + "[1, 2, 3]\n"]


@pytest.mark.parametrize(("block", "printed"), [*zip(BLOCKS, PRINTED, strict=True)], ids=["jobs", "actors", "queues"])
def test_the_example_prints_what_it_should(block: str, printed: str, tmp_path: Path) -> None:
    for name in ("hosts", "passwd"):
        (tmp_path / name).write_text("line\n" * (1 if name == "hosts" else 2))
    script = tmp_path / "example.py"
    script.write_text(block.replace("/etc/", f"{tmp_path}/").replace("/tmp/work", f"{tmp_path}/work"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FRAY_")}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.stdout == printed, done.stderr
