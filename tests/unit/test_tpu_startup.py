"""The start-up script of TPU hosts, run with stand-ins for the programs of such a host."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import fray_agents.provisioning.providers as providers

SCRIPT = Path(providers.__path__[0]) / "startup.sh"

_STAND_INS = {
    "curl": 'name="${@: -1}"; file="$ATTRIBUTES/${name##*/}"; [ -f "$file" ] && cat "$file"',
    "python3": 'mkdir -p "$3/bin"; cp "$STAND_INS/pip" "$3/bin/pip"',
    "pip": 'echo "pip $*" >>"$CALLS"; [ -z "${PIP_FAILS:-}" ] || { echo "no such package"; exit 1; }',
    "systemctl": "exit 3",
    "systemd-run": 'echo "systemd-run $*" >>"$CALLS"',
    "gcloud": 'echo "gcloud $* $(cat "$3")" >>"$CALLS"',
}


class Host:
    def __init__(self, folder: Path) -> None:
        self.calls = folder / "calls"
        self.attributes = folder / "attributes"
        self.attributes.mkdir()
        tools = folder / "tools"
        tools.mkdir()
        for name, body in _STAND_INS.items():
            (tools / name).write_text(f"#!/bin/bash\n{body}\n")
            (tools / name).chmod(0o755)
        self.home = folder / "home"
        self.environ = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "STAND_INS": str(tools),
            "CALLS": str(self.calls),
            "ATTRIBUTES": str(self.attributes),
            "FRAY_HOME": str(self.home),
            "FRAY_BOOT_LOG": str(folder / "boot.log"),
        }

    def boot(self, **attributes: str) -> tuple[int, list[str]]:
        """The script's exit code, and the calls of programs that change something."""
        for name, value in attributes.items():
            (self.attributes / name.replace("_", "-")).write_text(value)
        code = subprocess.run(["bash", SCRIPT], env=self.environ, check=False, timeout=60).returncode
        return code, self.calls.read_text().splitlines()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_fray_is_installed_and_the_agent_is_a_service(host: Host) -> None:
    code, calls = host.boot(fray_root="gs://b/c", fray_pool="tpus", fray_machine="m1")
    assert code == 0
    assert calls == [
        "pip install --quiet fray-cluster[agent,gcs]",
        "systemd-run --unit fray-agent --property Restart=on-failure --property RestartSec=5 "
        f"{host.home}/bin/fray agent --root gs://b/c",
    ]


def test_a_pool_with_an_image_runs_the_agent_in_it(host: Host) -> None:
    code, [call] = host.boot(fray_root="gs://b/c", fray_pool="tpus", fray_machine="m1", fray_image="lab/fray:1")
    assert code == 0
    assert call.endswith(
        "docker run --rm --name fray-agent --privileged --network host lab/fray:1 fray agent --root gs://b/c"
    )


def test_a_host_that_cannot_install_fray_says_why_in_the_bucket(host: Host) -> None:
    host.environ["PIP_FAILS"] = "1"
    code, calls = host.boot(
        fray_root="gs://b/c",
        fray_pool="tpus",
        fray_machines="m1,m2",
        instance_id="fray-tpus-0abc-m1-1",
        agent_worker_number="3",
    )
    assert code != 0
    assert calls[1].startswith("gcloud storage cp ")
    assert calls[1].endswith("gs://b/c/machines/tpus/m2/boot-3.log no such package")
