"""A proxy in front of a storage server that injects the faults of faults.py, with real statuses and connections."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from tests.support.distortions import Distortion
from tests.support.faults import LATENCY, Fault, Plan
from tests.support.serving import Served, serving

NOT_FORWARDED = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}


class FaultProxy:
    """Forwards requests to `upstream`; tests may change its `plan` and its `distortion` at any time."""

    def __init__(self, upstream: str) -> None:
        self.plan = Plan()
        self.distortion = Distortion()
        self.served: Served
        self._upstream = upstream
        self._late: list[tuple[web.Request, bytes]] = []
        self._session: aiohttp.ClientSession

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        app.on_startup.append(self._open)
        app.on_cleanup.append(self._close)
        return app

    def release(self) -> None:
        """Let all late writes land."""
        self.served.run(self._release(0))

    async def _release(self, keep: int) -> None:
        while len(self._late) > keep:
            await self._forward(*self._late.pop(0))

    async def _handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        await self._release(self.plan.held_back)
        match self.plan.next(is_write=request.method != "GET"):
            case Fault.FAIL_BEFORE:
                return web.Response(status=503)
            case Fault.APPLY_THEN_FAIL:
                await self._forward(request, body)
                return web.Response(status=503)
            case Fault.APPLY_THEN_DROP:
                await self._forward(request, body)
                return _drop(request)
            case Fault.APPLY_LATE:
                self._late.append((request, body))
                return web.Response(status=504)
            case Fault.CONFLICT:
                return web.Response(status=409)
            case Fault.TOO_MANY:
                return web.Response(status=429)
            case Fault.LATENCY:
                await asyncio.sleep(LATENCY)
        return await self._forward(request, body)

    async def _forward(self, request: web.Request, body: bytes) -> web.Response:
        if (own := self.distortion.own_answer(request)) is not None:
            return own
        url = URL(self._upstream + request.raw_path, encoded=True)
        headers = _kept(request.headers)
        try:
            async with self._session.request(request.method, url, headers=headers, data=body or None) as answer:
                headers, read = _kept(answer.headers), await answer.read()
                return self.distortion.changed(request, web.Response(status=answer.status, headers=headers, body=read))
        except aiohttp.ClientError as error:  # the server has ended
            return web.Response(status=502, text=str(error))

    async def _open(self, app: web.Application) -> None:
        self._session = aiohttp.ClientSession(auto_decompress=False)

    async def _close(self, app: web.Application) -> None:
        await self._session.close()


@contextmanager
def fault_proxy(upstream: str) -> Iterator[FaultProxy]:
    proxy = FaultProxy(upstream)
    with serving(proxy.app()) as proxy.served:
        yield proxy


def _kept(headers: aiohttp.typedefs.LooseHeaders) -> CIMultiDict[str]:
    return CIMultiDict(
        (name, value) for name, value in CIMultiDict(headers).items() if name.lower() not in NOT_FORWARDED
    )


def _drop(request: web.Request) -> web.Response:
    if request.transport is not None:  # otherwise the client has given up already
        request.transport.abort()
    return web.Response()
