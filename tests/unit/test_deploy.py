"""The files that install agents on hosts. The start-up script runs in another root, with stand-ins on its PATH."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fray_agents.deploy import UNIT, startup_script

OPERATING = Path(__file__).parents[2] / "docs/operating.md"

STAND_INS = {
    "curl": """
for url; do :; done
case "$url" in
  */attributes/*) cat "$STAGE/attributes/${url##*/}" 2>/dev/null || exit 22 ;;
  *.whl*) printf '%s' "$url" >"$STAGE/download.url"; cp "$STAGE/wheel" "$7" ;;
  */service-accounts/default/token) echo '{"access_token":"secret","expires_in":3599,"token_type":"Bearer"}' ;;
  *)
    printf '%s\\n' "$@" >"$STAGE/upload.args"
    for word; do
      case "$word" in
        @*) cp "${word#@}" "$STAGE/upload.body" ;;
        /dev/fd/*) cat "$word" >"$STAGE/upload.config" ;;
      esac
    done ;;
esac""",
    "uv": """
echo "uv $*" >>"$STAGE/called"
if [ "$1" = venv ]; then
  for place; do :; done
  mkdir -p "$place/bin"
  printf '#!/bin/bash\\nexec "$PYTHON" "$@"\\n' >"$place/bin/python"
  chmod +x "$place/bin/python"
elif [ -e "$STAGE/no-packages" ]; then
  echo "no versions of fray-cluster"; exit 2
else
  touch "$(dirname "$5")/fray"; chmod +x "$(dirname "$5")/fray"
fi""",
    "id": "exit 1",
    "useradd": 'echo "useradd $*" >>"$STAGE/called"',
    "systemctl": 'echo "systemctl $*" >>"$STAGE/called"',
    "docker": 'echo "docker $*" >>"$STAGE/called"',
}

WHEEL = "fray_cluster-0.1.0-py3-none-any.whl"
PACKAGE = f"gs://my bucket/team/{WHEEL}#sha256={hashlib.sha256(b'a wheel').hexdigest()}".replace("my ", "my-")


class Host:
    """A VM in a folder, with these metadata attributes."""

    def __init__(self, folder: Path, **attributes: str) -> None:
        self.folder, self.root = folder, folder / "root"
        self.put("wheel", "a wheel")
        attributes = {"fray_package": PACKAGE} | attributes
        for name, script in STAND_INS.items():
            self.put(f"bin/{name}", f"#!/bin/bash\n{script}\n").chmod(0o755)
        for name, value in attributes.items():
            self.put(f"attributes/{name.replace('_', '-')}", value)

    def put(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def boot(self, **more: str) -> subprocess.CompletedProcess[str]:
        """Run the start-up script with additional variables."""
        environ = {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "STAGE": str(self.folder),
            "PYTHON": sys.executable,
            "FRAY_HOST_ROOT": str(self.root),
            **more,
        }
        return subprocess.run(
            ["bash"], input=startup_script(), env=environ, capture_output=True, text=True, timeout=120
        )


def test_a_host_installs_its_agent_and_starts_it_and_at_the_next_boot_only_starts_it(tmp_path: Path) -> None:
    host = Host(tmp_path, fray_root="gs://bucket/fray", fray_pool="tpus", fray_machine="m1")
    done = host.boot()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the agent of gs://bucket/fray was started" in done.stdout
    assert (host.root / "etc/systemd/system/fray-agent.service").read_text() == UNIT.read_text()
    cluster = (host.root / "etc/systemd/system/fray-agent.service.d/cluster.conf").read_text()
    assert cluster == '[Service]\nEnvironment="FRAY_CLUSTER_SPEC=gs://bucket/fray"\n'
    called = host.read("called")
    assert "useradd --system" in called
    assert "--python 3.11" in called
    assert f"{host.root}/opt/fray/{WHEEL}[agent,gcs,google,s3]" in called
    assert (
        host.read("download.url") == f"https://storage.googleapis.com/storage/v1/b/my-bucket/o/team%2F{WHEEL}?alt=media"
    )
    assert called.endswith("systemctl daemon-reload\nsystemctl enable fray-agent\nsystemctl start fray-agent\n")
    assert host.boot().returncode == 0
    assert host.read("called").count("uv pip install") == 1
    assert host.read("upload.body") == ""


def test_a_wheel_from_a_web_server_is_installed_too(tmp_path: Path) -> None:
    package = PACKAGE.replace("gs://my-bucket", "https://wheels.example")
    host = Host(tmp_path, fray_root="gs://bucket/fray", fray_pool="p", fray_machine="m1", fray_package=package)
    assert host.boot().returncode == 0
    assert host.read("download.url") == f"https://wheels.example/team/{WHEEL}"
    assert WHEEL in host.read("called")


@pytest.mark.parametrize(
    "package",
    ["", "fray-cluster", "fray-cluster[agent]==0.1.0", "http://wheels.example/a.whl", PACKAGE[:-1], f"{PACKAGE[:-1]}x"],
)
def test_nothing_is_installed_by_a_name_or_without_the_right_hash(tmp_path: Path, package: str) -> None:
    host = Host(tmp_path, fray_root="gs://bucket/fray", fray_pool="p", fray_machine="m1", fray_package=package)
    done = host.boot()
    assert done.returncode != 0
    assert "this host has no agent" in host.read("upload.body")
    assert "pip install" not in host.read("called")


def test_a_pool_with_an_image_runs_it(tmp_path: Path) -> None:
    host = Host(tmp_path, fray_root="gs://bucket/fray", fray_pool="p", fray_machine="m1", fray_image="registry/fray:1")
    assert host.boot().returncode == 0
    called = host.read("called")
    assert "--env FRAY_CLUSTER_SPEC=gs://bucket/fray registry/fray:1 agent\n" in called
    assert "--privileged --network host --pid host" in called, "else no process that holds a chip is seen"
    assert "uv" not in called


@pytest.mark.parametrize(
    ("attributes", "key"),
    [
        ({"fray_machine": "m1"}, "fray%2Fmachines%2Ftpus%2Fm1%2Fboot-0.log"),
        (
            {"fray_machines": "m1,m2", "instance_id": "fray-gang-1", "agent_worker_number": "3"},
            "fray%2Fmachines%2Ftpus%2Fm2%2Fboot-3.log",
        ),
    ],
)
def test_a_host_that_cannot_install_its_agent_says_why_in_the_bucket(
    tmp_path: Path, attributes: dict[str, str], key: str
) -> None:
    host = Host(tmp_path, fray_root="gs://bucket/fray", fray_pool="tpus", **attributes)
    host.put("no-packages", "")
    done = host.boot()
    assert done.returncode == 2
    told = host.read("upload.body")
    assert "no versions of fray-cluster" in told
    assert "this host has no agent: the step above failed with exit code 2" in told
    upload = host.read("upload.args").splitlines()
    assert upload[-1] == f"https://storage.googleapis.com/upload/storage/v1/b/bucket/o?uploadType=media&name={key}"
    assert "Authorization: Bearer secret" in upload
    assert "secret" not in done.stdout + done.stderr + told
    assert "systemctl" not in host.read("called")


def test_it_is_told_in_a_bucket_of_s3_with_the_keys_of_the_environment(tmp_path: Path) -> None:
    host = Host(tmp_path, fray_root="s3://bucket/fray", fray_pool="tpus", fray_machine="m1")
    host.put("no-packages", "")
    done = host.boot(AWS_ACCESS_KEY_ID="me", AWS_SECRET_ACCESS_KEY="secret", AWS_REGION="eu-west-1")
    assert done.returncode == 2
    upload = host.read("upload.args").splitlines()
    assert upload[-1] == "https://s3.eu-west-1.amazonaws.com/bucket/fray/machines/tpus/m1/boot-0.log"
    assert "aws:amz:eu-west-1:s3" in upload
    assert host.read("upload.config") == 'user = "me:secret"\n'
    assert "no versions of fray-cluster" in host.read("upload.body")
    assert "secret" not in done.stdout + done.stderr + host.read("upload.args")


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_it_is_told_in_a_folder_that_hosts_share(tmp_path: Path, scheme: str) -> None:
    host = Host(tmp_path, fray_root=f"{scheme}/shared/fray", fray_pool="tpus", fray_machine="m1")
    host.put("no-packages", "")
    assert host.boot().returncode == 2
    assert "no versions of fray-cluster" in host.read("root/shared/fray/machines/tpus/m1/boot-0.log")


def test_a_log_that_cannot_be_stored_is_printed(tmp_path: Path) -> None:
    host = Host(tmp_path, fray_root="s3://bucket/fray", fray_pool="tpus", fray_machine="m1")
    host.put("no-packages", "")
    assert "this log could not be stored under s3://bucket/fray either" in host.boot().stdout


def test_the_script_has_none_of_the_slips_that_shells_allow() -> None:
    program = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([program, "-"], input=startup_script(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_operating_has_the_unit_as_it_is_installed() -> None:
    block = "".join(f"    {line}".rstrip() + "\n" for line in UNIT.read_text().splitlines())
    assert block in OPERATING.read_text()
