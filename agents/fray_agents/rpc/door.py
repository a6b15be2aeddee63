"""Where connections arrive: one thread for all that have not yet shown that they hold the key.

Invariant: who is not authenticated costs a bounded amount of memory, descriptors and time. Unsafe: a thread for each
connection, and thousands that never say anything. Why not here: unproven connections share this thread, at most
`WAITING` of them wait (the oldest makes room for the newest), each has `PATIENCE` seconds and a head's worth of
bytes. What goes wrong with one connection, whatever it is, ends that connection and nothing else.
"""

from __future__ import annotations

import errno
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from fray_agents.rpc.dial import keep_alive
from fray_agents.rpc.errors import BadMessage
from fray_agents.rpc.framing import MAX_HEAD, Framing, Message
from fray_agents.rpc.handshake import Greeting, response
from fray_agents.rpc.link import Link
from fray_agents.rpc.session import Keyring

WAITING = 256
PATIENCE = 10.0  # seconds
PAUSE = 0.05  # seconds without accepting, once the system cannot give another descriptor
FRESH = 1.0  # seconds between two readings of the keys because somebody named one that is not known

_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_log = logging.getLogger(__name__)


@dataclass
class _Guest:
    """A connection that has not proven itself."""

    sock: socket.socket
    greeting: Greeting
    since: float
    framing: Framing = field(default_factory=lambda: Framing(requests=True, max_body=0))
    received: int = 0


class Door:
    """Accepts connections and hands over those that hold the key.

    Args:
        welcome: takes an authenticated link; called in the door's thread.
        wrap: turns an accepted socket into the one to speak on (TLS).
    """

    def __init__(
        self,
        listeners: list[socket.socket],
        identity: str,
        keyring: Keyring,
        welcome: Callable[[Link], None],
        wrap: Callable[[socket.socket], socket.socket],
    ) -> None:
        self._listeners = listeners
        self._identity = identity
        self._keyring = keyring
        self._welcome = welcome
        self._wrap = wrap
        self._guests: dict[int, _Guest] = {}  # by descriptor, oldest first
        self._fresh_at = float("-inf")
        self._selector = selectors.DefaultSelector()
        self._closing = False
        self._back: deque[_Guest] = deque()  # whose key has been looked for
        self._call, self._called = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="fray-door", daemon=True)

    def start(self) -> None:
        """Accept from now on."""
        self._thread.start()

    def close(self) -> None:
        """Accept no more; whoever waits is sent away."""
        self._closing = True
        self._call.send(b"-")
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
                time.sleep(PAUSE)
        self._close_all()

    def _attend_all(self) -> None:
        for key, _ in self._selector.select(1.0 if self._guests else None):
            self._attend(key)
        self._expire()

    def _attend(self, key: selectors.SelectorKey) -> None:
        if key.fileobj is self._called:
            self._called.recv(64)
            while self._back:
                self._watch(self._back.popleft())
        elif key.data is None:
            self._accept(key.fileobj)  # type: ignore[arg-type]  # one of the listeners
        elif key.fd in self._guests:  # else it had to make room in this very round
            self._hear(key.data)

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError as error:
            if error.errno in _SHORT:
                self._drop_oldest()
                time.sleep(PAUSE)
            return  # else the caller is gone again
        try:
            self._watch(_Guest(self._prepared(sock), Greeting(self._identity, self._keyring), time.monotonic()))
        except Exception as error:  # it broke already
            _log.debug("a connection ended before it said anything: %s", error)
            sock.close()
        if len(self._guests) > WAITING:
            self._drop_oldest()

    def _prepared(self, sock: socket.socket) -> socket.socket:
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(sock)
        sock.setblocking(False)
        return self._wrap(sock)

    def _watch(self, guest: _Guest) -> None:
        self._guests[guest.sock.fileno()] = guest
        self._selector.register(guest.sock, selectors.EVENT_READ, guest)

    def _hear(self, guest: _Guest) -> None:
        try:
            data = guest.sock.recv(4096)
            guest.received += len(data)
            if not data or guest.received > MAX_HEAD:
                self._drop(guest)
                return
            guest.framing.feed(data)
            message = guest.framing.next()
            if message is not None:
                self._answer(guest, message)
        except (BadMessage, OSError) as error:
            if not _would_block(error):
                self._drop(guest)
        except Exception:
            _log.exception("a caller is sent away")
            self._drop(guest)

    def _answer(self, guest: _Guest, message: Message) -> None:
        if guest.greeting.session is None:
            answer = guest.greeting.answer(message, fresh=False)
            if answer is None and self._may_refresh():
                self._forget(guest)
                threading.Thread(target=self._look_again, args=(guest, message), name="fray-keys", daemon=True).start()
                return
            guest.sock.sendall(answer or response(401))
        elif guest.greeting.proven(message):
            guest.sock.sendall(response(200))
            self._let_in(guest)
        else:
            guest.sock.sendall(response(401))
            self._drop(guest)

    def _look_again(self, guest: _Guest, message: Message) -> None:
        """Reading the keys again may take long: in a thread of its own."""
        try:
            answer = guest.greeting.answer(message, fresh=True)
            guest.sock.sendall(answer or response(401))
        except Exception:
            _log.exception("a caller named a key that is not known, and the keys cannot be read again")
            guest.sock.close()
            return
        self._back.append(guest)
        self._call.send(b"-")

    def _let_in(self, guest: _Guest) -> None:
        self._forget(guest)
        session = guest.greeting.session
        assert session is not None
        link = Link(guest.sock, requests=True, incoming=session.to_server, outgoing=session.to_client)
        self._welcome(link)

    def _may_refresh(self) -> bool:
        """Strangers must not make us read the keys again and again."""
        now = time.monotonic()
        if now - self._fresh_at < FRESH:
            return False
        self._fresh_at = now
        return True

    def _expire(self) -> None:
        now = time.monotonic()
        for guest in list(self._guests.values()):
            if now - guest.since < PATIENCE:
                return
            self._drop(guest)

    def _drop_oldest(self) -> None:
        for guest in self._guests.values():
            self._drop(guest)
            return

    def _drop(self, guest: _Guest) -> None:
        self._forget(guest)
        guest.sock.close()

    def _forget(self, guest: _Guest) -> None:
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


def _would_block(error: Exception) -> bool:
    return isinstance(error, BlockingIOError) or type(error).__name__ in ("SSLWantReadError", "SSLWantWriteError")
