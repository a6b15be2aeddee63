"""The table of docs/security.md: each module that runs something, loads code or uses credentials has its row there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.pages import ROOT
from tests.support.sources import trees

_PROGRAMS = {
    *("run", "Popen", "call", "check_call", "check_output"),  # of subprocess
    *("create_subprocess_exec", "create_subprocess_shell", "subprocess_exec", "subprocess_shell"),
    *("start_process", "start_bound_process"),
    *("system", "popen", "execv", "execve", "execvp", "execvpe", "posix_spawn", "posix_spawnp", "spawnv", "spawnve"),
}
_FROM = {"run": "subprocess", "call": "subprocess", "system": "os", "popen": "os"}
"""Names that many other things have, too: they count only as attributes of this module."""
_CODE = {"exec", "eval", "run_module", "run_path", "import_module", "__import__"}
_CREDENTIALS = {"find_access", "get_session", "AuthorizedSession"}
_NAMES = {
    *(_PROGRAMS - {"run", "call"} | _CODE | _CREDENTIALS),
    *("subprocess", "pickle", "cloudpickle", "Unpickler", "google", "webbrowser", "urlopen"),
}
"""One of these names stands in every module in which `uses` finds something."""


def uses(tree: ast.Module) -> Iterator[str]:
    """What a module does that the table must name: "program", "pickle", "code", "credentials" or "browser"."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        name = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
        owner = called.value.id if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) else ""
        if name in _PROGRAMS and _FROM.get(name, owner) == owner:
            yield "program"
        elif name in ("loads", "load", "Unpickler") and (owner in ("pickle", "cloudpickle") or name == "Unpickler"):
            yield "pickle"
        elif name in _CODE:
            yield "code"
        elif name in _CREDENTIALS or ast.unparse(called) == "google.auth.default":
            yield "credentials"
        elif owner == "webbrowser" or name == "urlopen":
            yield "browser"


def found() -> dict[str, set[str]]:
    """By module, what it does that the table must name."""
    return {name: what for name, tree in trees(_NAMES) if (what := set(uses(tree)))}


def rows() -> dict[str, set[str]]:
    """By module, what the page says that it does."""
    page = (ROOT / "docs/security.md").read_text()
    section = page.split("## Who runs what")[1].split("\n## ")[0]
    said: dict[str, set[str]] = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("| \n").split("|")]
        if len(cells) == 5:
            for module in re.findall(r"`([\w/]+\.py)`", cells[4]):
                said.setdefault(module, set()).add(cells[0])
    return said


def test_every_use_has_a_row_and_every_row_a_use() -> None:
    assert found() == rows()


@pytest.mark.parametrize(
    ("text", "use"),
    [
        ("subprocess.run(['x'])", "program"),
        ("await start_process('x')", "program"),
        ("os.execvpe('x', [], {})", "program"),
        ("pickle.loads(b'')", "pickle"),
        ("importlib.import_module(name)", "code"),
        ("google.auth.default()", "credentials"),
        ("webbrowser.open(url)", "browser"),
    ],
)
def test_a_new_use_is_recognised(text: str, use: str) -> None:
    assert [*uses(ast.parse(text))] == [use]
    assert any(name in text for name in _NAMES)


def test_other_calls_are_none() -> None:
    text = "sync.run(x); json.loads(x); self._call(x); scaler.run(); yaml.safe_load(x); platform.system()"
    assert [*uses(ast.parse(text))] == []
