"""The facts besides resources that an agent finds on its host."""

import os
import sys
from pathlib import Path

import pytest

from fray_agents.host.capacity import discover_software, find_pythons, find_uv
from fray_runtime.pickling import OWN_PYTHON

ELF = b"\x7fELF"


def interpreter(path: Path, content: bytes = ELF) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755)
    return path


def environ(home: Path) -> dict[str, str]:
    return {"PATH": f"{home / 'bin'}{os.pathsep}{home / 'absent'}", "HOME": str(home)}


def test_interpreters_are_found_on_the_path_and_where_uv_keeps_its_own(tmp_path: Path) -> None:
    on_path = interpreter(tmp_path / "bin/python3.77")
    managed = interpreter(tmp_path / ".local/share/uv/python/cpython-3.78.1-linux-x86_64-gnu/bin/python3.78")
    interpreter(tmp_path / ".local/share/uv/python/pypy-3.79.1-linux-x86_64-gnu/bin/python3.79")
    assert find_pythons(environ(tmp_path)) == {OWN_PYTHON: sys.executable, "3.77": str(on_path), "3.78": str(managed)}


def test_interpreters_that_cannot_build_environments_are_left_out(tmp_path: Path) -> None:
    interpreter(tmp_path / "bin/python3.77", b"#!/bin/sh\nexec pyenv\n")
    interpreter(tmp_path / "bin/python3.10")
    interpreter(tmp_path / "bin/python3.78-config")
    interpreter(tmp_path / "bin/python3.79").chmod(0o644)
    (tmp_path / "bin/python3.80").mkdir()
    assert find_pythons(environ(tmp_path)) == {OWN_PYTHON: sys.executable}


def test_versions_are_published_in_order_where_there_is_uv(tmp_path: Path) -> None:
    for name in ("python3.100", "python3.77", "uv"):
        interpreter(tmp_path / "bin" / name)
    assert discover_software(environ(tmp_path)).pythons == [OWN_PYTHON, "3.77", "3.100"]


def test_without_uv_no_environment_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / "scripts"))
    assert find_uv(environ(tmp_path)) is None
    assert discover_software(environ(tmp_path)).pythons == []
    found = interpreter(tmp_path / "bin/uv")
    assert find_uv(environ(tmp_path)) == str(found)
