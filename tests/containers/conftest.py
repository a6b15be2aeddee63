"""Jobs in real containers: podman, and an image of this host's own files, so that no registry is needed."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fray_agents.host.container_engine import ContainerEngine, find_engine

LIBRARIES = ("libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1", "libgcc_s.so.1")
"""Beside libc: every image has them, and compiled packages ask for them when they are loaded."""

PROGRAMS = ("sh", "sleep", "cat", "env", "id", "setsid", "touch", "rm")


@pytest.fixture(scope="session")
def engine() -> ContainerEngine:
    found = find_engine()
    assert found is not None, "install podman, or docker and start its daemon"
    return found


@pytest.fixture(scope="session")
def image(engine: ContainerEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image with a shell, some programs, and the Python that runs the tests."""
    archive = tmp_path_factory.mktemp("image") / "root.tar"
    with tarfile.open(archive, "w", dereference=True) as tar:
        for path in sorted(_files()):
            tar.add(path, path.lstrip("/"), filter=_is_wanted)
        _link(tar, "bin/python3", sys.base_prefix + "/bin/python3")
    name = f"localhost/fray-test-{os.getpid()}:latest"
    subprocess.run([engine.program, "import", "--change=ENV IMAGE_SAYS=hello", archive, name], check=True)
    yield name
    subprocess.run([engine.program, "rmi", "--force", name], check=True)


def _files() -> set[str]:
    programs = {path for name in PROGRAMS if (path := shutil.which(name))}
    python = os.path.realpath(sys.executable)
    folder = sysconfig.get_path("stdlib")
    compiled = [str(path) for path in Path(folder, "lib-dynload").glob("*.so")]
    libraries = {library for path in (*programs, python, *compiled) for library in _libraries(path)}
    libc = next(os.path.dirname(path) for path in libraries if os.path.basename(path) == "libc.so.6")
    libraries |= {path for name in LIBRARIES if os.path.exists(path := f"{libc}/{name}")}
    return {*programs, *libraries, folder, python, f"{sys.base_prefix}/bin/python3", "/etc/passwd", "/etc/group"}


def _libraries(path: str) -> set[str]:
    listed = subprocess.run(["ldd", path], capture_output=True, text=True).stdout
    return set(re.findall(r"(/\S+) \(0x", listed))


def _is_wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    is_ballast = {"site-packages", "test", "__pycache__", "idlelib", "ensurepip"}.intersection(member.name.split("/"))
    return None if is_ballast else member


def _link(tar: tarfile.TarFile, name: str, target: str) -> None:
    link = tarfile.TarInfo(name)
    link.type, link.linkname = tarfile.SYMTYPE, target
    tar.addfile(link)
