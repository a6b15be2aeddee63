"""TLS, for secrecy between hosts, with a certificate that is created for one server.

Callers know the certificate's fingerprint from the endpoint record, or learn it from the handshake. The keys of a
session derive from the certificate too, so an attacker between the two cannot use a certificate of its own.
"""

import datetime
import hashlib
import select
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from fray_rpc.errors import NotAuthentic
from fray_rpc.wire.buffers import Buffer
from fray_rpc.wire.session import constant_time_equal

Done = TypeVar("Done")

_LIFETIME = datetime.timedelta(days=36500)
"""Validity of a certificate, longer than any server lives: callers trust the fingerprint, not the dates."""


class ServerCertificate:
    """A self-signed certificate for one server, and its private key.

    Attributes:
        fingerprint: SHA-256 of the certificate in hexadecimal.
    """

    def __init__(self) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fray")])
        begin = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
        certificate = x509.CertificateBuilder(
            name, name, key.public_key(), x509.random_serial_number(), begin, begin + _LIFETIME
        ).sign(key, hashes.SHA256())
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        with tempfile.TemporaryDirectory() as directory:  # readable by this user only; the ssl module needs a file
            chain = Path(directory, "chain.pem")
            chain.write_bytes(key.private_bytes(*plain) + certificate.public_bytes(serialization.Encoding.PEM))
            self._context.load_cert_chain(chain)
        self.fingerprint = certificate.fingerprint(hashes.SHA256()).hex()

    def wrap(self, sock: socket.socket) -> ssl.SSLSocket:
        """An accepted, non-blocking socket, encrypted; the TLS handshake happens with the first bytes."""
        return self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)


class TlsSocket:
    """An encrypted socket that one thread may read while another writes, which `ssl.SSLSocket` does not allow.

    OpenSSL is called under a lock and never waits there; waits for the network happen outside it. timeout: seconds
    after which a wait ends with BlockingIOError.
    """

    def __init__(self, sock: ssl.SSLSocket, timeout: float) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._timeout = timeout
        self._lock = threading.Lock()
        self.family = sock.family

    def recv(self, size: int) -> bytes:
        return self._do(partial(self._sock.recv, size))

    def recv_into(self, buffer: memoryview) -> int:
        return self._do(partial(self._sock.recv_into, buffer))

    def sendall(self, data: Buffer) -> None:
        view = memoryview(data)
        while view:
            view = view[self._do(partial(self._sock.send, view)) :]

    def readable(self, seconds: float) -> bool:
        return bool(self._sock.pending()) or _wait(self._sock, select.POLLIN, seconds)

    def shutdown(self, how: int) -> None:
        self._sock.shutdown(how)

    def close(self) -> None:
        self._sock.close()

    def _do(self, action: Callable[[], Done]) -> Done:
        while True:
            try:
                with self._lock:
                    return action()
            except ssl.SSLWantReadError:
                wanted = select.POLLIN
            except ssl.SSLWantWriteError:
                wanted = select.POLLOUT
            if not _wait(self._sock, wanted, self._timeout):
                raise BlockingIOError("nothing moved")


def _wait(sock: socket.socket, event: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(sock, event)
    return bool(poll.poll(max(seconds, 0) * 1000))


def start_tls(sock: socket.socket, fingerprint: str) -> tuple[ssl.SSLSocket, str]:
    """The encrypted socket, and the fingerprint of the certificate that the server presented.

    Args:
        sock: connected; closed if this fails.
        fingerprint: that of the expected certificate; "": any. The handshake on top of TLS proves whose it is, because
            the keys of the session derive from the certificate.

    Raises:
        NotAuthentic: the server presented another certificate.
        OSError: the TLS handshake failed.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the certificate is self-signed
    try:
        wrapped = context.wrap_socket(sock)
    except BaseException:
        sock.close()
        raise
    shown = hashlib.sha256(wrapped.getpeercert(binary_form=True) or b"").hexdigest()
    if fingerprint and not constant_time_equal(shown.encode(), fingerprint.encode()):
        wrapped.close()
        raise NotAuthentic("the server's certificate is not the one of its endpoint record")
    return wrapped, shown
