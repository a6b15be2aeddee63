"""An agent's hint endpoint does nothing for strangers, nor for a caller that has the key and sends other messages."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from fray_agents.agent import hint_listener
from fray_agents.agent.hint_listener import HintListener
from fray_agents.agent.pool_notices import PlacementHints
from fray_coordinator.actors.rpc_secrets import rotate_keys, rpc_keys
from fray_coordinator.core import Core, open_core
from fray_coordinator.jobs.gang_peers import PeerAnswer
from fray_layouts.records import HintEndpoint
from fray_rpc import (
    ConnectionLost,
    NotAuthentic,
    RpcKey,
    Target,
)
from fray_rpc.client.connect import open_connection, open_session
from fray_rpc.hints import MAX_HINT_BYTES, _seal, send_hint
from fray_rpc.server import acceptor
from fray_rpc.wire.handshake import ClientHandshake, http_request
from fray_rpc.wire.session import Session
from fray_runtime.network import NetworkSettings
from tests.support.rpc import Keys, dial_tcp


class Bomb:
    """Unpickling it leaves a trace."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Path]]:
        return Path.touch, (self.path,)


class Hinted:
    """The part of an agent that hints reach."""

    def __init__(self) -> None:
        self.hints: list[str] = []
        self.member, self.is_sure = self, True

    def vouches(self) -> bool:
        return self.is_sure

    def look_for_work(self) -> None:
        self.hints.append("submitted")

    def check_jobs(self) -> None:
        self.hints.append("stopped")


@contextlib.asynccontextmanager
async def listening(root: Path) -> AsyncIterator[tuple[Core, Target, Hinted]]:
    core, agent = await open_core(str(root)), Hinted()
    listener = HintListener(core, NetworkSettings())
    listener.listen(agent)  # type: ignore[arg-type]  # all that it needs
    yield core, Target("agent", listener.endpoint.address, identity=listener.endpoint.nonce), agent
    await asyncio.to_thread(listener.close)
    await core.store.close()


async def test_an_endpoint_is_told_as_an_address_that_all_readers_of_urls_know(tmp_path: Path) -> None:
    core = await open_core(str(tmp_path / "root"))
    listener = HintListener(core, NetworkSettings(advertise="fd00::1"))
    try:
        assert re.fullmatch(r"\[fd00::1\]:\d+", listener.endpoint.address)
    finally:
        await asyncio.to_thread(listener.close)
        await core.store.close()


async def keys_of(core: Core) -> Keys:
    return Keys(*(RpcKey(name, secret) for name, secret in await rpc_keys(core)))


async def takes_hints(core: Core, target: Target, agent: Hinted) -> bool:
    agent.hints.clear()
    await asyncio.to_thread(send_hint, target, await keys_of(core), "submitted")
    while not agent.hints:  # noqa: ASYNC110  the hint is on its way through the loop
        await asyncio.sleep(0.001)
    return agent.hints == ["submitted"]


def accepted(target: Target, keys: Keys) -> bool:
    try:
        send_hint(target, keys, "submitted")
    except NotAuthentic:
        return False
    return True


def say(body: bytes, path: bytes = b"/hint", sealed: bool = True) -> Callable[[ClientHandshake, Session], int]:
    """Send this as a second request. Returns the status of the answer."""

    def then(conversation: ClientHandshake, session: Session) -> int:
        seal = _seal(session, body) if sealed else b"0" * 32
        status = conversation.ask(http_request(path, body, seal=seal, proof=session.to_server.proof())).status
        conversation.sock.close()
        return status

    return then


async def test_a_caller_with_the_key_gets_nothing_unpickled_and_no_calls(tmp_path: Path) -> None:
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))

    async with listening(tmp_path / "root") as (core, target, agent):
        keys = await keys_of(core)
        with pytest.raises(NotAuthentic):
            await asyncio.to_thread(open_connection, target, keys)
        for odd in (bomb, b"\x80", b"null", b'{"hint": 1}', b'{"hint": "submitted", "more": 1}', b"[" * MAX_HINT_BYTES):
            with pytest.raises(ConnectionLost):
                await asyncio.to_thread(open_session, target, keys, None, say(odd))
        with pytest.raises(ConnectionLost):
            await asyncio.to_thread(open_session, target, keys, None, say(b" " * (MAX_HINT_BYTES + 1)))
        with pytest.raises(NotAuthentic, match="terminate"):
            await asyncio.to_thread(send_hint, target, keys, "terminate")
        good = b'{"hint": "stopped"}'
        for refused in (say(good, sealed=False), say(good, path=b"/proof"), say(good, path=b"/calls")):
            assert (await asyncio.to_thread(open_session, target, keys, None, refused))[0] == 401
        assert agent.hints == []
        assert await takes_hints(core, target, agent)
    assert not (tmp_path / "exploded").exists()


async def test_only_an_agent_that_vouches_for_its_replicas_says_that_it_lives(tmp_path: Path) -> None:
    async with listening(tmp_path / "root") as (core, target, agent):
        asking = PlacementHints(await keys_of(core))
        endpoint = HintEndpoint(address=target.tcp, nonce=target.identity)
        assert await asking.ask(endpoint) is PeerAnswer.LIVES
        agent.is_sure = False
        assert await asking.ask(endpoint) is PeerAnswer.SILENT
    assert await asking.ask(endpoint) is PeerAnswer.GONE


async def test_a_hint_that_was_heard_by_others_is_worth_nothing(tmp_path: Path) -> None:
    said: list[bytes] = []

    class Recorded(ClientHandshake):
        def ask(self, data: bytes) -> object:  # type: ignore[override]
            said.append(data)
            return super().ask(data)

    async with listening(tmp_path / "root") as (core, target, agent):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("fray_rpc.client.connect.ClientHandshake", Recorded)
            assert await takes_hints(core, target, agent)
        agent.hints.clear()
        with dial_tcp(target.tcp) as sock:
            sock.sendall(said[0])
            assert sock.recv(4096).startswith(b"HTTP/1.1 200")
            sock.sendall(said[1])
            assert sock.recv(4096).startswith(b"HTTP/1.1 401")
        await asyncio.sleep(0)
        assert agent.hints == []


async def test_a_key_that_was_dropped_gives_no_hints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "KEY_RECHECK_INTERVAL", 0.02)
    monkeypatch.setattr(acceptor, "KEY_READ_INTERVAL", 0.0)
    monkeypatch.setattr("fray_rpc.wire.key_cache.KEY_READ_INTERVAL", 0.0)

    async with listening(tmp_path / "root") as (core, target, agent):
        leaked = await keys_of(core)
        await asyncio.to_thread(send_hint, target, leaked, "submitted")
        await rotate_keys(core, kept=0)
        while await asyncio.to_thread(accepted, target, leaked):
            pass
        assert await takes_hints(core, target, agent)


async def test_keys_are_read_once_however_many_hints_come_and_never_while_none_do(tmp_path: Path) -> None:
    async with listening(tmp_path / "root") as (core, target, _):
        keys = await keys_of(core)
        before = core.store.usage.snapshot().reads
        await asyncio.sleep(0)
        assert core.store.usage.snapshot().reads == before
        for _ in range(30):
            await asyncio.to_thread(send_hint, target, keys, "submitted")
        assert core.store.usage.snapshot().reads == before + 1


@pytest.mark.parametrize("hint", ["submitted", "stopped"])
async def test_a_caller_with_the_key_makes_the_agent_look_no_more_often_than_it_allows(
    hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hint_listener, "SUBMITTED_INTERVAL", 3600.0)
    monkeypatch.setattr(hint_listener, "STOPPED_INTERVAL", 3600.0)

    async with listening(tmp_path / "root") as (core, target, agent):
        keys = await keys_of(core)
        for _ in range(20):
            await asyncio.to_thread(send_hint, target, keys, hint)
        await asyncio.to_thread(send_hint, target, keys, {"submitted": "stopped", "stopped": "submitted"}[hint])
        while len(set(agent.hints)) < 2:  # noqa: ASYNC110  the last hint is on its way through the loop
            await asyncio.sleep(0.001)
        assert agent.hints.count(hint) == 1
