"""Programs of users under type checkers: typical use of every public name, the examples, and the pages' programs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mypy import api

from tests.support import second_names
from tests.support.pages import PAGES, program

pytestmark = pytest.mark.slow

TOP = Path(__file__).parents[2]
PROGRAMS = TOP / "tests" / "acceptance" / "user_programs"
EXAMPLES = [folder for folder in sorted((TOP / "examples").iterdir()) if list(folder.glob("*.py"))]
NOT_INSTALLED = [TOP / "examples" / "data_processing", TOP / "examples" / "gang" / "train.py"]
"""Need Zephyr and JAX, which are not installed here: a strict checker would call all that comes of them unknown."""
_KNOWING = "\n# pyright: reportOptionalMemberAccess=false, reportOptionalContextManager=false\n"


def test_programs_are_clean_under_mypy(tmp_path: Path) -> None:
    config = tmp_path / "mypy.ini"
    config.write_text(
        "[mypy]\nstrict = true\n[mypy-zephyr.*,fsspec.*,cloudpickle.*,jax.*]\nignore_missing_imports = true\n"
    )
    said = {}
    for folder in (PROGRAMS, *EXAMPLES):
        files = map(str, sorted(folder.glob("*.py")))
        told, errors, status = api.run([f"--config-file={config}", f"--cache-dir={tmp_path}", *files])
        if status:
            said[folder.name] = told + errors
    assert not said


@pytest.mark.timeout(400)
def test_programs_are_clean_under_pyright(tmp_path: Path) -> None:
    """Strict for programs that are there for their types; the examples use libraries that are not strictly typed, and
    programs of pages know that what they have just made is there."""
    (tmp_path / "second_names.py").write_text("".join(_second_names()))
    for page in PAGES:
        (tmp_path / f"page_{page.stem}.py").write_text(program(page) + _KNOWING)
    local = [{"root": str(folder)} for folder in EXAMPLES]
    config = {
        "include": [str(PROGRAMS), *map(str, EXAMPLES), str(tmp_path)],
        "exclude": list(map(str, NOT_INSTALLED)),
        "strict": [str(PROGRAMS)],
        "typeCheckingMode": "standard",
        "executionEnvironments": [*local, {"root": str(TOP)}],
    }
    assert _pyright(config, tmp_path) == []


def _second_names() -> Iterator[str]:
    """A program that imports every second name that exists, together with the name that it stands for."""
    for dotted in {name for pair in second_names.pairs() for name in pair}:
        module, _, name = dotted.rpartition(".")
        yield f"from {module} import {name}\n"


def _pyright(config: dict[str, Any], folder: Path) -> list[str]:
    """The messages of basedpyright, which is pyright with its JavaScript in the wheel."""
    path = folder / "pyrightconfig.json"
    path.write_text(json.dumps(config))
    command = [sys.executable, "-m", "basedpyright", "-p", str(path), "--pythonpath", sys.executable, "--outputjson"]
    told = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    assert told["summary"]["filesAnalyzed"] >= 40
    found = told["generalDiagnostics"]
    return [f"{Path(one['file']).name}:{one['range']['start']['line'] + 1}: {one['message']}" for one in found]
