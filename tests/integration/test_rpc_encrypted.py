"""A cluster whose calls between hosts are encrypted."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
import subprocess
import sys
from pathlib import Path

from msgspec.structs import replace

from fray.cluster import StorageCluster
from fray.rpc import ActorServer
from fray_coordinator.core import LOCAL_SETTINGS, open_core

_CALLER = """
import sys
from fray.cluster import StorageCluster
from fray.rpc import ClusterResolver
from fray_rpc import connect
cluster = StorageCluster(sys.argv[1], namespace="team")
[endpoint] = ClusterResolver(cluster).find("greeter")
far = endpoint.target._replace(unix="")  # as from another host
print(connect(far, cluster.keyring).call("greeter", "greet", ("world",), {}))
"""


class Greeter:
    def greet(self, name: str) -> str:
        return f"hello {name}"


def certificate_at(address: str) -> bytes:
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain) as encrypted:
        assert encrypted.version() == "TLSv1.3"
        found = encrypted.getpeercert(binary_form=True)
    assert found is not None
    return found


def test_calls_from_other_hosts_are_encrypted(tmp_path: Path) -> None:
    root = str(tmp_path / "root")

    async def make() -> None:
        await (await open_core(root, replace(LOCAL_SETTINGS, encrypt=True))).store.close()

    asyncio.run(make())
    with StorageCluster(root, namespace="team") as cluster:
        server = ActorServer(cluster)
        server.register("greeter", Greeter())
        server.serve_background()
        try:
            [record] = server.records.values()
            assert hashlib.sha256(certificate_at(record.address)).hexdigest() == record.fingerprint
            answer = subprocess.run([sys.executable, "-c", _CALLER, root], capture_output=True, text=True, check=True)
            assert answer.stdout == "hello world\n"
        finally:
            server.shutdown()
