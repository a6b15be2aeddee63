"""The software of this host that jobs may ask for: versions of Python, uv, which builds environments with them, and a
container engine."""

import importlib.metadata
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

from fray_agents.host.container_engine import find_engine
from fray_agents.pickling import OWN_PYTHON
from fray_coordinator.variables import read_variable
from fray_layouts.records import Software

OLDEST_PYTHON = (3, 11)
"""The first version that Fray itself runs on; environments use no older one."""

_INTERPRETER = re.compile(r"python(3)\.(\d{1,3})")
_MANAGED = re.compile(r"cpython-3\.\d{1,3}\.\d+-linux\b")
_ELF = b"\x7fELF"


def discover_software(environ: Mapping[str, str] = os.environ) -> Software:
    """The software of this host; takes a millisecond. environ: the environment whose `PATH` and uv settings count."""
    pythons = find_pythons(environ) if find_uv(environ) else {}
    engine = find_engine(environ)
    return Software(
        python=OWN_PYTHON,
        pythons=sorted(pythons, key=_number),
        containers=engine.name if engine is not None else "",
        fray=fray_version(),
    )


def fray_version() -> str:
    """The version of the agent."""
    return importlib.metadata.version("fray-cluster")


def find_uv(environ: Mapping[str, str] = os.environ) -> str | None:
    """The path of uv: from the agent's own packages, else from the host's PATH; None if there is none."""
    own = os.path.join(sysconfig.get_path("scripts"), "uv")
    return own if os.access(own, os.X_OK) else shutil.which("uv", path=environ.get("PATH"))


def find_pythons(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The interpreters of this host by minor version, as "3.12": this process's, those on PATH, and those of uv.

    Scripts named like an interpreter are left out: version managers install them even for missing versions.
    """
    found = {OWN_PYTHON: sys.executable}
    for path in _candidates(environ):
        name = _INTERPRETER.fullmatch(path.name)
        if name and (int(name[1]), int(name[2])) >= OLDEST_PYTHON and _is_program(path):
            found.setdefault(f"{name[1]}.{name[2]}", str(path))
    return found


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    for folder in environ.get("PATH", os.defpath).split(os.pathsep):
        if folder:
            yield from Path(folder).glob("python3.*")
    data = read_variable("XDG_DATA_HOME", environ) or os.path.join(
        read_variable("HOME", environ) or os.sep, ".local", "share"
    )
    managed = Path(read_variable("UV_PYTHON_INSTALL_DIR", environ) or os.path.join(data, "uv", "python"))
    yield from (python for python in managed.glob("cpython-*/bin/python3.*") if _MANAGED.match(python.parts[-3]))


def _is_program(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return os.access(path, os.X_OK) and file.read(len(_ELF)) == _ELF
    except OSError:
        return False


def _number(minor: str) -> int:
    return int(minor.partition(".")[2])
