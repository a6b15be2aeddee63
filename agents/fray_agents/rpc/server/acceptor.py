"""Where connections arrive: one thread for all that have not yet shown that they hold the key.

Invariant: who is not authenticated costs a bounded amount of memory, descriptors, requests and time. Unsafe: a thread
for each connection, and thousands that never say anything; a read of the bucket for each key that does not exist. Why
not here: unproven connections share this thread, at most `MAX_UNAUTHENTICATED` of them wait (the oldest makes room for
the newest), each has `HANDSHAKE_TIMEOUT` seconds and a head's worth of bytes; those that name a key that is not known
wait for a read that they share, at most one a second. What goes wrong with one connection, whatever it is, ends that
connection and nothing else.

Invariant: a key that was dropped opens nothing, `KEY_RECHECK_INTERVAL` seconds later. Unsafe: it is known here, nobody
names another one, and so nobody reads the keys again. Why not here: they are read again after that time as well, and
whoever serves is told, and closes what was opened with a key that is gone. While they cannot be read, those that are
known count.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fray_agents.rpc.client.connect import enable_keep_alive
from fray_agents.rpc.errors import BadMessage, NotAuthentic
from fray_agents.rpc.wire.framing import MAX_HEAD, HttpMessage, MessageParser
from fray_agents.rpc.wire.handshake import ServerHandshake, http_response
from fray_agents.rpc.wire.session import Keyring, RpcKey, Session

if TYPE_CHECKING:
    from fray_agents.rpc.wire.tls import ServerCertificate

MAX_UNAUTHENTICATED = 256
HANDSHAKE_TIMEOUT = 10.0
"""Seconds that a connection has to show that it holds the key."""

ACCEPT_PAUSE = 0.05
"""Seconds without accepting, once the system cannot give another descriptor."""

KEY_READ_INTERVAL = 1.0
"""Seconds between the ends of reads of the keys, however many name some that are not known."""

KEY_RECHECK_INTERVAL = 60.0
"""Seconds after which the keys are read again though all that were named are known."""

_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_log = logging.getLogger(__name__)

OnAuthenticated = Callable[[socket.socket, Session, HttpMessage], None]
"""Takes over a connection that has begun a session, and its second request.

Raises:
    NotAuthentic: that request does not show that the key is held.
"""


@dataclass
class _Unauthenticated:
    """A connection that has not proven itself."""

    sock: socket.socket
    greeting: ServerHandshake
    since: float
    framing: MessageParser
    received: int = 0
    parked: HttpMessage | None = None  # the first request, while the keys are read because they lack its key
    looked_for: bool = False  # the read that its first request waits for has begun


@dataclass
class _AcceptedKeys:
    """The accepted keys as the door knows them, and when they are read again."""

    known: Sequence[RpcKey] = ()
    reading: bool = False
    read_at: float = float("-inf")
    news: deque[Sequence[RpcKey] | None] = field(default_factory=deque)  # from who reads; None: it failed


class Acceptor:
    """Accepts connections and hands over those that hold the key.

    Args:
        receive: called in the door's thread; must not wait.
        certificate: with which TCP connections are encrypted; None: they are not.
        max_body: bytes that the second request may carry.
        changed: told of the accepted keys after each read, in the door's thread.
    """

    def __init__(
        self,
        listeners: list[socket.socket],
        identity: str,
        keyring: Keyring,
        receive: OnAuthenticated,
        certificate: ServerCertificate | None = None,
        max_body: int = 0,
        changed: Callable[[Sequence[RpcKey]], None] = lambda keys: None,
    ) -> None:
        self._listeners = listeners
        self._identity = identity
        self._keyring = keyring
        self._receive = receive
        self._certificate = certificate
        self._max_body = max_body
        self._changed = changed
        self._guests: dict[int, _Unauthenticated] = {}  # by descriptor, oldest first
        self._keys = _AcceptedKeys()
        self._selector = selectors.DefaultSelector()
        self._closing = False
        self._call, self._called = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="fray-door", daemon=True)

    def start(self) -> None:
        """Accept from now on."""
        self._thread.start()

    def close(self) -> None:
        """Accept no more; whoever waits is sent away."""
        self._closing = True
        self._wake()
        if self._thread.ident is None:
            self._close_all()
        else:
            self._thread.join()

    def abandon(self) -> None:
        """In the child of a fork: close the sockets, which are the parent's."""
        for sock in (*self._listeners, *(guest.sock for guest in self._guests.values())):
            sock.close()

    def _run(self) -> None:
        self._selector.register(self._called, selectors.EVENT_READ)
        for listener in self._listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)
        while not self._closing:
            try:
                self._attend_all()
            except Exception:
                _log.exception("accepting connections goes on")
                time.sleep(ACCEPT_PAUSE)
        self._close_all()

    def _attend_all(self) -> None:
        self._read_if_due()
        for key, _ in self._selector.select(self._patience()):
            self._attend(key)
        self._expire()

    def _patience(self) -> float:
        """Seconds until something is to be done though nobody says anything."""
        glance = 1.0 if self._guests else KEY_RECHECK_INTERVAL
        return glance if self._keys.reading else max(min(glance, self._until_read(bool(self._parked()))), 0.0)

    def _attend(self, key: selectors.SelectorKey) -> None:
        if key.fileobj is self._called:
            self._called.recv(64)
            while self._keys.news:
                self._hear_of_keys(self._keys.news.popleft())
        elif key.data is None:
            self._accept(key.fileobj)  # type: ignore[arg-type]  # one of the listeners
        elif (guest := self._guests.get(key.fd)) is not None and guest is key.data:  # else it just had to make room
            self._guarded(guest, self._hear)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self._call.send(b"-")

    # Connections.

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError as error:
            if error.errno in _OUT_OF_RESOURCES:
                self._drop_oldest()
                time.sleep(ACCEPT_PAUSE)
            return  # else the caller is gone again
        try:
            self._watch(self._guest(sock))
        except Exception as error:  # it broke already
            _log.debug("a connection ended before it said anything: %s", error)
            sock.close()
        if len(self._guests) > MAX_UNAUTHENTICATED:
            self._drop_oldest()

    def _guest(self, sock: socket.socket) -> _Unauthenticated:
        certificate = None
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            enable_keep_alive(sock)
            certificate = self._certificate
        if certificate is not None:
            sock = certificate.wrap(sock)
        greeting = ServerHandshake(self._identity, certificate.fingerprint if certificate is not None else "")
        return _Unauthenticated(sock, greeting, time.monotonic(), MessageParser(requests=True, max_body=self._max_body))

    def _watch(self, guest: _Unauthenticated) -> None:
        self._selector.register(guest.sock, selectors.EVENT_READ, guest)
        self._guests[guest.sock.fileno()] = guest

    def _guarded(self, guest: _Unauthenticated, step: Callable[[_Unauthenticated], None]) -> None:
        try:
            step(guest)
        except NotAuthentic:
            with contextlib.suppress(OSError):
                guest.sock.sendall(http_response(401))
            self._drop(guest)
        except (BadMessage, OSError):
            self._drop(guest)
        except Exception:
            _log.exception("a caller is sent away")
            self._drop(guest)

    def _hear(self, guest: _Unauthenticated) -> None:
        try:
            data = guest.sock.recv(4096)
        except OSError as error:
            if _would_block(error):
                return
            raise
        guest.received += len(data)
        if not data or guest.received > MAX_HEAD:
            self._drop(guest)
            return
        guest.framing.feed(data)
        if guest.parked is not None or (message := guest.framing.next()) is None:
            return
        session = guest.greeting.session
        if session is None:
            self._greet(guest, message)
            return
        if session.key not in self._keys.known:
            raise NotAuthentic("its key was dropped meanwhile")
        self._forget(guest)
        self._receive(guest.sock, session, message)

    def _greet(self, guest: _Unauthenticated, message: HttpMessage) -> None:
        answer = guest.greeting.answer(message, self._keys.known)
        if answer is None and not guest.looked_for:
            guest.parked = message
            return
        guest.parked, guest.looked_for = None, False
        guest.sock.sendall(answer or http_response(401))

    def _expire(self) -> None:
        now = time.monotonic()
        for guest in list(self._guests.values()):
            if now - guest.since < HANDSHAKE_TIMEOUT:
                return
            self._drop(guest)

    def _drop_oldest(self) -> None:
        for guest in self._guests.values():
            self._drop(guest)
            return

    def _drop(self, guest: _Unauthenticated) -> None:
        self._forget(guest)
        guest.sock.close()

    def _forget(self, guest: _Unauthenticated) -> None:
        if self._guests.pop(guest.sock.fileno(), None) is not None:
            self._selector.unregister(guest.sock)

    def _close_all(self) -> None:
        for guest in list(self._guests.values()):
            self._drop(guest)
        for listener in self._listeners:
            listener.close()
        self._selector.close()
        self._call.close()
        self._called.close()

    # Keys.

    def _read_if_due(self) -> None:
        """Read the keys in a thread of its own, which may take long."""
        parked = self._parked()
        if self._keys.reading or self._until_read(bool(parked)) > 0:
            return
        for guest in parked:
            guest.looked_for = True
        threading.Thread(target=self._read_keys, name="fray-keys", daemon=True).start()
        self._keys.reading = True

    def _read_keys(self) -> None:
        keys: Sequence[RpcKey] | None = None
        try:
            keys = self._keyring.keys(fresh=True)
        except Exception as error:
            _log.warning("the keys of callers cannot be read: %s", error)
        self._keys.news.append(keys)
        self._wake()

    def _hear_of_keys(self, keys: Sequence[RpcKey] | None) -> None:
        self._keys.reading = False
        self._keys.read_at = time.monotonic()
        if keys is not None:
            self._keys.known = keys
        for guest in self._parked():
            if keys is not None:
                self._guarded(guest, self._greet_again)
            elif guest.looked_for:
                self._drop(guest)
        if keys is not None:
            self._changed(keys)

    def _greet_again(self, guest: _Unauthenticated) -> None:
        assert guest.parked is not None
        self._greet(guest, guest.parked)

    def _parked(self) -> list[_Unauthenticated]:
        return [guest for guest in self._guests.values() if guest.parked is not None]

    def _until_read(self, parked: bool) -> float:
        """Seconds until the keys are to be read."""
        if not parked and not self._keys.known:
            return KEY_RECHECK_INTERVAL  # nobody has called yet
        return self._keys.read_at + (KEY_READ_INTERVAL if parked else KEY_RECHECK_INTERVAL) - time.monotonic()


def _would_block(error: Exception) -> bool:
    return isinstance(error, BlockingIOError) or type(error).__name__ in ("SSLWantReadError", "SSLWantWriteError")
