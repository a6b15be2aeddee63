"""The object calls of the GCS JSON API that Fray uses, with every precondition.

Each call is atomic, because nothing is awaited between its check and its change.
Faults are injected by the proxy in front of it (fault_proxy.py), as for every other server.
"""

from __future__ import annotations

import bisect
import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any
from urllib.parse import unquote

from aiohttp import web

BUCKET = "bucket"


@dataclass
class Stored:
    data: bytes
    generation: int
    updated: datetime


@dataclass
class Emulator:
    """One bucket in memory.

    Attributes:
        settings: the fields of the bucket resource besides its name (soft delete, lifecycle and so on).
        ignore_preconditions: behave like an emulator without preconditions.
        denied: kinds of requests that get 403 (`GET`, `POST`, `DELETE`, `LIST`, `SETTINGS`).
        token: the token that requests must have; "" for none.
        folders_first: list a folder by its own name, as file systems do, before longer names that begin with it.
        clock_ahead: seconds by which its clock is wrong.
        without_times: reads say nothing about when the object was written.
        one_version: a part of names whose objects all have the same version.
        unanswered: by kind of request, how many of the next ones get HTTP 503.
        asked: the number of requests of each kind.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    ignore_preconditions: bool = False
    denied: frozenset[str] = frozenset()
    token: str = ""
    clock_ahead: float = 0
    folders_first: bool = False
    without_times: bool = False
    one_version: str = "?"
    unanswered: Counter[str] = field(default_factory=Counter)
    objects: dict[str, Stored] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    generation: int = 1_000_000
    asked: Counter[str] = field(default_factory=Counter)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**30)
        app.router.add_get("/storage/v1/b/{bucket}", self.bucket)
        app.router.add_get("/storage/v1/b/{bucket}/o", self.list)
        app.router.add_post("/upload/storage/v1/b/{bucket}/o", self.upload)
        app.router.add_get("/download/storage/v1/b/{bucket}/o/{name:.+}", self.download)
        app.router.add_delete("/storage/v1/b/{bucket}/o/{name:.+}", self.delete)
        app.on_response_prepare.append(self._stamp)
        return app

    async def bucket(self, request: web.Request) -> web.Response:
        self._admit(request, "SETTINGS")
        return web.json_response({"name": BUCKET, **self.settings})

    async def list(self, request: web.Request) -> web.Response:
        self._admit(request, "LIST")
        query = request.query
        prefix = query.get("prefix", "")
        start = max(prefix, query.get("startOffset", ""), query.get("pageToken", ""))
        limit = min(int(query.get("maxResults", 1000)), 1000)
        position = bisect.bisect_left(self.names, start)
        names = [name for name in self.names[position : position + limit + 1] if name.startswith(prefix)]
        if self.folders_first:
            names.sort(key=lambda name: name.split("/"))
        answer: dict[str, Any] = {"items": [self._resource(name) for name in names[:limit]]}
        if len(names) > limit:
            answer["nextPageToken"] = names[limit]
        return web.json_response(answer)

    async def upload(self, request: web.Request) -> web.Response:
        body = await request.read()
        self._admit(request, "POST")
        boundary = request.headers["Content-Type"].split("boundary=")[1].strip('"').encode()
        _, about, content = body.split(b"--" + boundary, 2)
        name = json.loads(about.split(b"\r\n\r\n", 1)[1])["name"]
        data = content.split(b"\r\n\r\n", 1)[1].removesuffix(b"\r\n--" + boundary + b"--")
        self._check(name, request)
        self.generation += 1
        if name not in self.objects:
            bisect.insort(self.names, name)
        self.objects[name] = Stored(data, self.generation, datetime.now(UTC))
        return web.json_response(self._resource(name))

    async def download(self, request: web.Request) -> web.Response:
        self._admit(request, "GET")
        name = self._name(request)
        found = self.objects.get(name)
        if found is None:
            return web.Response(status=404, text=f"No such object: {BUCKET}/{name}")
        if not self.ignore_preconditions and request.query.get("ifGenerationNotMatch") == str(found.generation):
            return web.Response(status=304)
        headers = {"x-goog-generation": self._generation(name)}
        if not self.without_times:
            headers["Last-Modified"] = format_datetime(found.updated + timedelta(seconds=self.clock_ahead), True)
        return web.Response(body=found.data, headers=headers)

    async def delete(self, request: web.Request) -> web.Response:
        self._admit(request, "DELETE")
        name = self._name(request)
        if name not in self.objects:
            return web.Response(status=404, text=f"No such object: {BUCKET}/{name}")
        self._check(name, request)
        del self.objects[name]
        self.names.remove(name)
        return web.Response(status=204)

    def _admit(self, request: web.Request, kind: str) -> None:
        if request.match_info["bucket"] != BUCKET:
            raise web.HTTPNotFound(text="The specified bucket does not exist.")
        self.asked[kind] += 1
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            raise web.HTTPUnauthorized(text="Invalid Credentials")
        if self.unanswered[kind] > 0:
            self.unanswered[kind] -= 1
            raise web.HTTPServiceUnavailable
        if kind in self.denied:
            raise web.HTTPForbidden(text=f"the caller does not have {kind} access")

    def _check(self, name: str, request: web.Request) -> None:
        wanted = request.query.get("ifGenerationMatch")
        found = self.objects.get(name)
        if (
            wanted is not None
            and not self.ignore_preconditions
            and wanted != (self._generation(name) if found else "0")
        ):
            raise web.HTTPPreconditionFailed(text="At least one of the pre-conditions you specified did not hold.")

    def _name(self, request: web.Request) -> str:
        return unquote(request.rel_url.raw_path.rpartition("/")[2])

    def _resource(self, name: str) -> dict[str, str]:
        found = self.objects[name]
        updated = found.updated + timedelta(seconds=self.clock_ahead)
        return {"name": name, "generation": self._generation(name), "updated": updated.isoformat()}

    def _generation(self, name: str) -> str:
        return "7" if self.one_version in name else str(self.objects[name].generation)

    async def _stamp(self, request: web.Request, response: web.StreamResponse) -> None:
        now = datetime.fromtimestamp(datetime.now(UTC).timestamp() + self.clock_ahead, UTC)
        response.headers["Date"] = format_datetime(now, usegmt=True)
