"""The container file for agents, built with a wheel of this project on an image of this host's own files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fray_agents.deploy import UNIT
from fray_agents.host.container_engine import ContainerEngine

PROJECT = Path(__file__).parents[2]
CONTAINERFILE = UNIT.with_name("Containerfile")
BASE = """
FROM scratch
COPY wheels /wheels
COPY pip /usr/bin/pip
COPY sh /bin/sh
ENV PATH=/usr/local/bin:{prefix}/bin:/usr/bin:/bin PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels
"""
PIP = """#!/bin/sh
PYTHONPATH="$(echo /wheels/pip-*.whl)" exec python3 -m pip "$@"
"""


@pytest.fixture(scope="module")
def built(engine: ContainerEngine, image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The image of the container file. Its packages come from the index that pip uses here; the container has none."""
    folder = tmp_path_factory.mktemp("build")
    context, wheels = folder / "context", folder / "wheels"
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", context, PROJECT], check=True)
    [wheel] = context.iterdir()
    subprocess.run([*pip, "download", "--quiet", "--dest", wheels, f"{wheel}[agent,gcs,s3]", "pip"], check=True)
    shutil.copy("/bin/sh", folder / "sh")
    (folder / "pip").write_text(PIP)
    (folder / "pip").chmod(0o755)
    base, name = (f"localhost/fray-{what}-{os.getpid()}:latest" for what in ("base", "agent"))
    build(engine, base, image, BASE.format(prefix=sys.base_prefix), folder)
    build(engine, name, base, CONTAINERFILE.read_text(), context)
    yield name
    subprocess.run([engine.program, "rmi", "--force", name, base], check=True)


def build(engine: ContainerEngine, name: str, base: str, steps: str, context: Path) -> str:
    """Build an image on another base; what was printed. Podman's steps run in a changed root: any kernel has that."""
    file = context.with_suffix(".steps")
    file.write_text(re.sub("^FROM .*", f"FROM {base}", steps, flags=re.MULTILINE))
    command = [engine.program, "build", "--no-cache", "--network", "host", "--tag", name]
    env = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
    done = subprocess.run(
        [*command, "--file", file, context], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_image_runs_fray_with_what_agents_need(engine: ContainerEngine, built: str, tmp_path: Path) -> None:
    used = f"localhost/fray-used-{os.getpid()}:latest"
    said = build(engine, used, built, "FROM agent\nRUN fray agent --help && fray doctor /cluster\n", tmp_path)
    subprocess.run([engine.program, "rmi", "--force", used], check=True)
    assert "Usage: fray agent" in said


def test_without_words_it_is_an_agent_that_is_ended_by_sigterm(engine: ContainerEngine, built: str) -> None:
    shown = "{{.Config.Entrypoint}} {{.Config.Cmd}} {{.Config.StopSignal}}"
    said = subprocess.run(
        [engine.program, "image", "inspect", "--format", shown, built], check=True, capture_output=True, text=True
    )
    assert said.stdout.split() in (["[fray]", "[agent]", "SIGTERM"], ["[fray]", "[agent]", "15"])
