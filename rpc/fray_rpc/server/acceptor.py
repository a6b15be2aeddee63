"""The acceptor of connections: one thread for all callers that have not yet proved that they hold the key.

A separate thread reads the keys that a server accepts again, because that may take long.

**Invariant.** From `KEY_RECHECK_INTERVAL` seconds after a key was dropped, it opens nothing. **Unsafe sequence.** The
server knows the dropped key. No caller names another, so the server never reads them again. **Why this cannot happen.**
The server also reads them again after that time, and closes connections that were opened with a key that is gone. While
the keys cannot be read, the known ones stay valid.

**Invariant.** Callers that are not authenticated cost a bounded amount of memory, descriptors, requests and time.
**Unsafe sequence.** Each connection gets a thread, and thousands of callers never send anything. Or each unknown key
makes the server read the bucket. **Why this cannot happen.** Unauthenticated callers share this thread. At most
`MAX_UNAUTHENTICATED` of them wait, and each has `HANDSHAKE_TIMEOUT` seconds and the bytes of one head. Those that name
an unknown key wait for a shared read of the keys, at most one a second (`AcceptedKeys`). A failure of one connection
ends only that connection.

**Invariant.** Callers from one host keep no caller from another host away. **Unsafe sequence.** A caller waits for an
answer from far away. Meanwhile more connections come than may wait, and the oldest, which is this caller's, is dropped
for them. **Why this cannot happen.** What is dropped for a new connection is the oldest of the host that has the most.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import selectors
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fray_rpc.errors import BadMessage, NotAuthentic
from fray_rpc.wire.handshake import ServerHandshake, http_response
from fray_rpc.wire.http_connection import MAX_HEAD, HttpMessage, MessageParser, prepare_tcp
from fray_rpc.wire.session import KEY_READ_INTERVAL, KEY_RECHECK_INTERVAL, Keyring, RpcKey, Session
from fray_runtime.threads import start_loop, start_thread

if TYPE_CHECKING:
    import threading

    from fray_rpc.wire.tls import ServerCertificate


_log = logging.getLogger(__name__)


class AcceptedKeys:
    """The accepted keys as last read; one thread uses this, and is woken after each read.

    Args:
        wake: called in the thread that has read the keys.

    Attributes:
        known: empty until the first read.
        reading: a thread is reading them.
    """

    def __init__(self, keyring: Keyring, wake: Callable[[], None]) -> None:
        self._keyring = keyring
        self._wake = wake
        self._read_at = float("-inf")
        self._results: deque[Sequence[RpcKey] | None] = deque()
        self.known: Sequence[RpcKey] = ()
        self.reading = False

    def due_in(self, wanted: bool) -> float:
        """Seconds until the keys must be read; `wanted`: callers have named an unknown key."""
        if not wanted and not self.known:
            return KEY_RECHECK_INTERVAL  # nobody has called yet
        return self._read_at + (KEY_READ_INTERVAL if wanted else KEY_RECHECK_INTERVAL) - time.monotonic()

    def read(self) -> None:
        """Start to read the keys. Raises RuntimeError: no thread can be started."""
        start_thread(self._read, "fray-keys", lambda error: self._have_read(None))
        self.reading = True

    def news(self) -> Iterator[bool]:
        """Apply the results of finished reads; for each, whether it succeeded."""
        while self._results:
            keys = self._results.popleft()
            self.reading = False
            self._read_at = time.monotonic()
            if keys is not None:
                self.known = keys
            yield keys is not None

    def _read(self) -> None:
        keys: Sequence[RpcKey] | None = None
        try:
            keys = self._keyring.keys(fresh=True)
        except Exception as error:
            _log.warning("the keys of callers cannot be read: %s", error)
        self._have_read(keys)

    def _have_read(self, keys: Sequence[RpcKey] | None) -> None:
        self._results.append(keys)
        self._wake()


MAX_UNAUTHENTICATED = 256
"""Most callers that are not authenticated, each with a descriptor: a quarter of the usual 1024 of a process."""

HANDSHAKE_TIMEOUT = 10.0
"""Seconds in which a caller must prove that it holds the key: as long as callers try (`connect.CONNECT_TIMEOUT`)."""

ACCEPT_PAUSE = 0.05
"""Seconds without accepting after the system had no descriptor left."""

_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

OnAuthenticated = Callable[[socket.socket, Session, HttpMessage], None]
"""Takes over a connection with its session and its second request.

Raises:
    NotAuthentic: the request does not prove that the caller holds the key.
"""


@dataclass
class _Unauthenticated:
    """A caller that has not yet proved that it holds the key.

    Attributes:
        host: the address from which it comes, without the port; the network, if it is one of IPv6's many.
        since: time of its connection, of `time.monotonic`.
        received: number of bytes that it has sent.
        parked: its first request, while the server reads the keys because it does not know the caller's key.
        read_begun: the read for which its first request waits has begun.
    """

    sock: socket.socket
    handshake: ServerHandshake
    host: str
    since: float
    parser: MessageParser
    received: int = 0
    parked: HttpMessage | None = None
    read_begun: bool = False


class Acceptor:
    """Accepts connections, and hands over those whose callers hold the key.

    Args:
        identity: the server's identity.
        on_authenticated: called in the acceptor's thread; must not wait.
        certificate: encrypts TCP connections; None: they are not encrypted.
        max_body: most bytes of the body of the second request.
        on_keys: called with the accepted keys after each read, in the acceptor's thread.
    """

    def __init__(
        self,
        listeners: list[socket.socket],
        identity: str,
        keyring: Keyring,
        on_authenticated: OnAuthenticated,
        certificate: ServerCertificate | None = None,
        max_body: int = 0,
        on_keys: Callable[[Sequence[RpcKey]], None] = lambda keys: None,
    ) -> None:
        self._listeners = listeners
        self._identity = identity
        self._on_authenticated = on_authenticated
        self._certificate = certificate
        self._max_body = max_body
        self._on_keys = on_keys
        self._callers: dict[int, _Unauthenticated] = {}  # by descriptor, oldest first
        self._keys = AcceptedKeys(keyring, self._wake)
        self._selector = selectors.DefaultSelector()
        self._closing = False
        self._wake_writer, self._wake_reader = socket.socketpair()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Accept from now on, in a thread. Raises RuntimeError: no thread can be started."""
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        for listener in self._listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)
        self._thread = start_loop(self._run, "fray-acceptor")

    def close(self) -> None:
        """Stop accepting, and drop the callers that wait."""
        self._closing = True
        self._wake()
        if self._thread is None:
            self._close_all()
        else:
            self._thread.join()

    def abandon(self) -> None:
        """In the child of a fork: close the sockets, which belong to the parent."""
        for sock in (*self._listeners, *(caller.sock for caller in self._callers.values())):
            sock.close()

    def _run(self) -> None:
        while not self._closing:
            try:
                self._run_once()
            except Exception:
                _log.exception("accepting connections failed; it goes on")
                time.sleep(ACCEPT_PAUSE)
        self._close_all()

    def _run_once(self) -> None:
        self._read_keys_if_due()
        for key, _ in self._selector.select(self._wait_limit()):
            self._handle_event(key)
        self._expire()

    def _wait_limit(self) -> float | None:
        """Seconds until something is due even if no caller sends anything; None: nothing is due."""
        limits = [1.0] if self._callers else []  # callers expire
        if not self._keys.reading:
            limits.append(max(self._keys.due_in(bool(self._parked())), 0.0))
        return min(limits, default=None)

    def _handle_event(self, key: selectors.SelectorKey) -> None:
        if key.fileobj is self._wake_reader:
            self._wake_reader.recv(64)
            for succeeded in self._keys.news():
                self._keys_were_read(succeeded)
        elif key.data is None:
            self._accept(key.fileobj)  # type: ignore[arg-type]  # one of the listeners
        elif (caller := self._callers.get(key.fd)) is not None and caller is key.data:  # else it was just dropped
            self._guarded(caller, self._receive)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # the acceptor has ended
            self._wake_writer.send(b"-")

    # Connections.

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, address = listener.accept()
        except OSError as error:
            if error.errno in _OUT_OF_RESOURCES:
                self._drop_one()
                time.sleep(ACCEPT_PAUSE)
            return  # otherwise the caller has gone already
        try:
            self._register(self._unauthenticated(sock, _host_of(sock, address)))
        except Exception as error:  # the connection broke already
            _log.debug("a connection ended before its first byte: %s", error)
            sock.close()
        if len(self._callers) > MAX_UNAUTHENTICATED:
            self._drop_one()

    def _unauthenticated(self, sock: socket.socket, host: str) -> _Unauthenticated:
        certificate = None
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            prepare_tcp(sock)
            certificate = self._certificate
        if certificate is not None:
            sock = certificate.wrap(sock)
        greeting = ServerHandshake(self._identity, certificate.fingerprint if certificate is not None else "")
        parser = MessageParser(requests=True, max_body=self._max_body)
        return _Unauthenticated(sock, greeting, host, time.monotonic(), parser)

    def _register(self, caller: _Unauthenticated) -> None:
        self._selector.register(caller.sock, selectors.EVENT_READ, caller)
        self._callers[caller.sock.fileno()] = caller

    def _guarded(self, caller: _Unauthenticated, step: Callable[[_Unauthenticated], None]) -> None:
        try:
            step(caller)
        except NotAuthentic:
            with contextlib.suppress(OSError):
                caller.sock.sendall(http_response(401))
            self._drop(caller)
        except (BadMessage, OSError):
            self._drop(caller)
        except Exception:
            _log.exception("a caller is dropped after an unexpected error")
            self._drop(caller)

    def _receive(self, caller: _Unauthenticated) -> None:
        try:
            data = caller.sock.recv(MAX_HEAD + 1)  # all of it: what OpenSSL has read already wakes no selector
        except OSError as error:
            if _would_block(error):
                return
            raise
        caller.received += len(data)
        if not data or caller.received > MAX_HEAD:
            self._drop(caller)
            return
        caller.parser.feed(data)
        message = caller.parser.next()
        if caller.parked is not None or (message is not None and (caller.parser.waiting or caller.parser.begun)):
            raise BadMessage("it sent more before it had its answer")  # who takes the connection over would not see it
        if message is None:
            return
        session = caller.handshake.session
        if session is None:
            self._answer(caller, message)
            return
        if session.key not in self._keys.known:
            raise NotAuthentic("its key was dropped meanwhile")
        self._forget(caller)
        self._on_authenticated(caller.sock, session, message)

    def _answer(self, caller: _Unauthenticated, message: HttpMessage) -> None:
        answer = caller.handshake.answer(message, self._keys.known)
        if answer is None and not caller.read_begun:
            caller.parked = message
            return
        caller.parked, caller.read_begun = None, False
        caller.sock.sendall(answer or http_response(401))

    def _expire(self) -> None:
        now = time.monotonic()
        for caller in list(self._callers.values()):
            if now - caller.since < HANDSHAKE_TIMEOUT:
                return
            self._drop(caller)

    def _drop_one(self) -> None:
        """Drop the oldest caller of the host that has the most."""
        for host, _ in Counter(caller.host for caller in self._callers.values()).most_common(1):
            self._drop(next(caller for caller in self._callers.values() if caller.host == host))

    def _drop(self, caller: _Unauthenticated) -> None:
        self._forget(caller)
        caller.sock.close()

    def _forget(self, caller: _Unauthenticated) -> None:
        if self._callers.pop(caller.sock.fileno(), None) is not None:
            self._selector.unregister(caller.sock)

    def _close_all(self) -> None:
        for caller in list(self._callers.values()):
            self._drop(caller)
        for listener in self._listeners:
            listener.close()
        self._selector.close()
        self._wake_writer.close()
        self._wake_reader.close()

    # Keys.

    def _read_keys_if_due(self) -> None:
        parked = self._parked()
        if self._keys.reading or self._keys.due_in(bool(parked)) > 0:
            return
        for caller in parked:
            caller.read_begun = True
        self._keys.read()

    def _keys_were_read(self, succeeded: bool) -> None:
        for caller in self._parked():
            if succeeded:
                self._guarded(caller, self._answer_parked)
            elif caller.read_begun:
                self._drop(caller)
        if succeeded:
            self._on_keys(self._keys.known)

    def _answer_parked(self, caller: _Unauthenticated) -> None:
        assert caller.parked is not None
        self._answer(caller, caller.parked)

    def _parked(self) -> list[_Unauthenticated]:
        return [caller for caller in self._callers.values() if caller.parked is not None]


def _host_of(sock: socket.socket, address: Any) -> str:
    """The host of a caller; callers through a Unix socket are one host. address: as `socket.accept` returns it."""
    if sock.family == socket.AF_UNIX:
        return ""
    host: str = address[0]
    if sock.family == socket.AF_INET or host.startswith("::ffff:"):
        return host
    return socket.inet_pton(socket.AF_INET6, host.partition("%")[0])[:8].hex()


def _would_block(error: Exception) -> bool:
    return isinstance(error, BlockingIOError) or type(error).__name__ in ("SSLWantReadError", "SSLWantWriteError")
