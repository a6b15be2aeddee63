"""Nothing installs Fray by its name: there is no release, and whoever registered the name would own those machines."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
NAME = "fray" + "-cluster"

_BY_NAME = re.compile(
    rf"(install|add|tool|uvx|pipx|--with)\b[^\n]*(?<![/\w-]){NAME}(?![\w-])|{NAME}(\[[\w,]*\]|[=<>~!]=)"
)
"""An installation by name, or a requirement with extras or a version."""

_ALLOWED = {
    "pyproject.toml": "the project's own extras, which pip takes from the project itself",
    "tests/acceptance/test_first_day.py": "with --no-index",
    "tests/unit/test_pool_file.py": "what a pool refuses",
    "tests/unit/test_deploy.py": "what a host refuses",
    "tests/unit/test_never_from_an_index.py": "this file",
}


def test_no_file_installs_fray_by_name() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True).stdout
    found = set()
    for name in filter(None, listed.decode().split("\0")):
        path = REPOSITORY / name
        if path.is_file() and not path.is_symlink() and _BY_NAME.search(path.read_text(errors="replace")):
            found.add(name)
    assert found <= _ALLOWED.keys()


def test_installations_by_name_are_recognised() -> None:
    for text in (
        f"pip install {NAME}",
        f"pip install -r rest.txt {NAME}",
        f"pip install '{NAME}[s3]'",
        f"uv tool install {NAME}",
        f'"{NAME}[agent,gcs,s3]"',
        f"{NAME}==0.1.0",
    ):
        assert _BY_NAME.search(text), text
    for text in (f'name = "{NAME}"', f"labels: {{{NAME}: x}}", 'pip install ".[s3]"', f'version("{NAME}")'):
        assert not _BY_NAME.search(text), text
