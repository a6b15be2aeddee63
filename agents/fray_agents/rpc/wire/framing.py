"""A parser of HTTP/1.1 messages on top of httptools, without a socket.

Only a Content-Length says where a message ends: httptools refuses a second one, and this module refuses transfer
encodings. Only the start of a large body goes through the parser; the rest is read directly to its destination.
"""

from collections import deque

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, HttpResponseParser

from fray_agents.rpc.errors import BadMessage

LARGE_BODY = 64 * 1024
"""Bytes above which a body is large: its length is then authenticated before memory is allocated for it."""

RECEIVE_BYTES = LARGE_BODY
"""Most bytes of one read: never more than a large body has, so that a read cannot reach beyond the body."""

MAX_HEAD = 8 * 1024
"""Most bytes of a head; those of this protocol have some 300."""

MAX_HEADERS = 64
"""Most headers of a message; this protocol needs five, and HTTP libraries add some ten. In memory a header takes up to
thirty times its bytes, so the size of the head alone would not bound what a stranger costs."""


class HttpMessage:
    """A request or a response; a large one, with more than `LARGE_BODY` bytes, has only the start of its body."""

    __slots__ = ("body", "headers", "length", "path", "status")

    def __init__(self) -> None:
        self.path = b""
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.length = 0
        self.body = b""


class MessageParser:
    """Turns bytes into messages, in order.

    Args:
        requests: parse requests; otherwise responses.
        max_body: most bytes of a body; a longer one is refused as soon as its length is known.
    """

    def __init__(self, requests: bool, max_body: int) -> None:
        self._parser_type = HttpRequestParser if requests else HttpResponseParser
        self._max_body = max_body
        self._ready: deque[HttpMessage] = deque()
        self._restart()

    def next(self) -> HttpMessage | None:
        """The next message that is complete, or that has a complete head and a large body."""
        return self._ready.popleft() if self._ready else None

    @property
    def waiting(self) -> bool:
        return bool(self._ready)

    @property
    def begun(self) -> bool:
        return self._message is not None

    def feed(self, data: bytes) -> None:
        """Parse at most `RECEIVE_BYTES` bytes.

        Raises BadMessage: this is not HTTP, or not a message of this protocol.
        """
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if isinstance(error.__context__, BadMessage):
                raise error.__context__ from None
            raise BadMessage(f"not a message of this protocol: {error}") from None
        message = self._message
        if message is None:
            return
        if not self._head_complete:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD + RECEIVE_BYTES:
                raise BadMessage(f"a head of more than {MAX_HEAD} bytes")
        elif message.length > LARGE_BODY:
            message.body = b"".join(self._body)
            self._ready.append(message)
            self._restart()

    def _restart(self) -> None:
        self._parser = self._parser_type(self)
        self._message: HttpMessage | None = None
        self._body: list[bytes] = []
        self._head_bytes = 0
        self._head_complete = False

    # Callbacks of httptools.

    def on_message_begin(self) -> None:
        self._message = HttpMessage()
        self._head_bytes = 0
        self._head_complete = False

    def on_url(self, url: bytes) -> None:
        assert self._message is not None
        self._message.path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self._message is not None
        name = name.lower()
        if name == b"content-length":
            self._message.length = int(value)
        elif name == b"transfer-encoding":
            raise BadMessage("a transfer encoding is not accepted; send a Content-Length")
        elif len(self._message.headers) == MAX_HEADERS:
            raise BadMessage(f"more than {MAX_HEADERS} headers")
        else:
            self._message.headers[name] = value

    def on_headers_complete(self) -> None:
        assert self._message is not None
        self._head_complete = True
        if self._message.length > self._max_body:
            raise BadMessage(f"a body of {self._message.length} bytes; at most {self._max_body} are accepted")
        if isinstance(self._parser, HttpResponseParser):
            self._message.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        assert self._message is not None
        self._message.body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._ready.append(self._message)
        self._message = None
        self._body = []
