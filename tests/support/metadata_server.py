"""A metadata server of Google Cloud for one VM: `GCE_METADATA_HOST` points Fray at it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from tests.support.serving import serving

TPU_ENV = """\
ACCELERATOR_TYPE: 'v5litepod-16'
CHIPS_PER_HOST_BOUNDS: '2,2,1'
NODE_ID: '{node}'
PREEMPTIBLE: 'false'
TOPOLOGY: '4x4'
TYPE: 'V5LITE_POD'
UID: '{uid}'
WORKER_ID: '{worker}'
ZONE: 'us-east5-a'
"""
"""Some of the lines on a VM of a TPU."""


def vm(**attributes: str) -> dict[str, Any]:
    """The contents of `instance/` for a VM with these attributes; an underscore stands for a hyphen."""
    return {
        "attributes": {name.replace("_", "-"): value for name, value in attributes.items()},
        "hostname": "vm.us-east5-a.c.project.internal",
        "id": 4567890123456789123,
        "machineType": "projects/123/machineTypes/ct5lp-hightpu-4t",
        "maintenanceEvent": "NONE",
        "name": "t1v-n-9472280f-w-2",
        "preempted": "FALSE",
        "scheduling": {"automaticRestart": "TRUE", "onHostMaintenance": "TERMINATE", "preemptible": "FALSE"},
        "zone": "projects/123/zones/us-east5-a",
    }


def tpu_vm(worker: str = "2", node: str = "blue", uid: str = "6502082742571311568", **others: str) -> dict[str, Any]:
    """A VM of a slice of four."""
    endpoints = ",".join(f"unknown:unknown:10.0.0.{number}" for number in range(4))
    own = {
        "accelerator_type": "v5litepod-16",
        "agent_worker_number": worker,
        "instance_id": node,
        "tpu_env": TPU_ENV.format(worker=worker, node=node, uid=uid),
        "worker_network_endpoints": endpoints,
    }
    return vm(**(own | others))


class MetadataServer:
    """A server that answers for one VM.

    Attributes:
        instance: the contents of `instance/`; a change appears in the next answer.
        status: HTTP status of its answers.
        asked: number of requests so far.
        host: its address, for `GCE_METADATA_HOST`.
    """

    def __init__(self, instance: dict[str, Any]) -> None:
        self.instance = instance
        self.status = 200
        self.asked = 0
        self.host = ""

    def _app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/computeMetadata/v1/instance/{path:.*}", self._answer)
        return app

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        if request.headers.get("Metadata-Flavor") != "Google":
            return web.Response(status=403, text="Missing Metadata-Flavor:Google header.")
        if self.status != 200:
            return web.Response(status=self.status, text="out of order")
        match request.match_info["path"].split("/"):
            case [""]:
                return web.json_response(self.instance)
            case ["preempted"]:
                return web.Response(text=self.instance["preempted"])
            case ["maintenance-event"]:
                return web.Response(text=self.instance["maintenanceEvent"])
            case ["attributes", name] if name in self.instance["attributes"]:
                return web.Response(text=self.instance["attributes"][name])
        return web.Response(status=404)


@contextmanager
def metadata_server(instance: dict[str, Any]) -> Iterator[MetadataServer]:
    server = MetadataServer(instance)
    with serving(server._app()) as served:
        server.host = served.url.removeprefix("http://")
        yield server
