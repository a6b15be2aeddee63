"""The Python blocks of README.md and docs/: each page's are one program, which a test runs.

The blocks run in their order, in an empty directory. Those that need Zephyr or Ray say so after "python", and are run
by `make zephyr` and `make ray`. Tables of equivalents have a column "Fray", whose code is part of the program too, but
for commands and job files.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
NEEDS = ("", "zephyr", "ray", "iris")
MODULES = ("*.py", "*/__init__.py", "actor/named.py", "v2/*.py")
_FENCE = re.compile(r"```(.*)")


def program(page: Path, needs: str = "") -> str:
    """The blocks with that word, every line where it is on the page, so that a traceback tells its place."""
    lines: list[str] = []
    fence = None
    for line, equivalents in zip(page.read_text().splitlines(), _equivalents(page), strict=True):
        mark = _FENCE.fullmatch(line)
        if mark:
            fence = mark[1] if fence is None else None
        statements = "; ".join(code for code in equivalents if not code.startswith(NO_PYTHON)) if not needs else ""
        lines.append(line if not mark and fence == f"python {needs}".strip() else statements)
    return "\n".join(lines).rstrip()


NO_PYTHON = ("fray ", "{")
"""How commands and job files begin."""


def equivalents(page: Path) -> list[str]:
    """The code in the columns "Fray" of a page's tables, in their order."""
    return [code for codes in _equivalents(page) for code in codes]


def _equivalents(page: Path) -> list[list[str]]:
    """The code in the column "Fray" of each line."""
    found: list[list[str]] = []
    is_table = False
    for line in page.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        is_table = len(cells) > 3 and (is_table or cells[2] == "Fray")
        found.append(re.findall(r"`([^`]+)`", cells[2]) if is_table else [])
    return found


def described(page: Path) -> set[str]:
    """The names that the page's text has in backticks."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return {word for span in re.findall(r"`([^`]+)`", text) for word in re.findall(r"\w+", span)}


def run(source: str, page: Path, place: Path) -> str:
    """Run a program of a page in `place`; return its output. Raises AssertionError with its stderr if it fails."""
    script = place / f"{page.name}.py"
    script.write_text(source)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FRAY_")}
    ran = subprocess.run(
        [sys.executable, str(script)], env=environ, cwd=place, capture_output=True, text=True, timeout=100
    )
    assert ran.returncode == 0, f"{page.name}: {ran.stderr}"
    return ran.stdout


def used(source: str) -> set[str]:
    """The names that a program uses; importing one is not using it."""
    nodes = list(ast.walk(ast.parse(source)))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def public_names() -> dict[str, list[str]]:
    """`__all__` of the modules that users import, read from the sources: Zephyr's cannot be imported without Zephyr."""
    found = {}
    for path in sorted(path for pattern in MODULES for path in (ROOT / "fray").glob(pattern)):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
                found[module] = ast.literal_eval(node.value)
    del found["fray.cli"]  # nobody imports it; README.md and docs/operating.md are about its commands
    return found
