"""What docs/client.md shows runs as it stands, and every public name is on it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fray.client
import fray.types
import fray.v2

PAGE = Path(__file__).parents[2] / "docs" / "client.md"


def test_the_examples_run(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FRAY_")}
    ran = subprocess.run([sys.executable, str(program)], env=environ, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("module", [fray.client, fray.v2])
def test_every_public_name_is_on_the_page(module: object) -> None:
    words = set(re.findall(r"\w+", PAGE.read_text()))
    names: list[str] = module.__all__  # type: ignore[attr-defined]
    ours = [name for name in names if name not in ("ActorGroup", "ActorHandle", "ActorMethod")]  # on docs/actors.md
    assert [name for name in ours if name not in words] == []
