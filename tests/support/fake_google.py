"""A gRPC server on loopback for an API of Google Cloud, with the client library's own messages."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status


class FakeRefusalError(Exception):
    """The error with which a call is answered."""

    def __init__(self, code: int, text: str, reason: str = "", **metadata: str) -> None:
        super().__init__(text)
        self.status = status_pb2.Status(code=code, message=text)
        if reason:
            info = error_details_pb2.ErrorInfo(reason=reason, domain="googleapis.com", metadata=metadata)
            packed = any_pb2.Any()
            packed.Pack(info)
            self.status.details.append(packed)


@dataclass
class GoogleFaults:
    """The faults of calls, and a count of the calls.

    Attributes:
        asked: by method, the number of its calls.
        refusals: by method, the errors for its next calls, which are not executed.
        lost: by method, how many of its next calls are executed although their answers are lost.
    """

    asked: Counter[str] = field(default_factory=Counter)
    refusals: dict[str, list[FakeRefusalError]] = field(default_factory=dict)
    lost: Counter[str] = field(default_factory=Counter)

    def refuse(self, method: str, code: int, text: str, reason: str = "", times: int = 1, **metadata: str) -> None:
        refusal = FakeRefusalError(code, text, reason, **metadata)
        self.refusals.setdefault(method, []).extend([refusal] * times)


Handler = Callable[[Any], Any]


class _Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Methods of one service; a lock makes each of them atomic."""

    def __init__(self, name: str, methods: Mapping[str, tuple[Any, Handler]], faults: GoogleFaults) -> None:
        self._prefix = f"/{name}/"
        self._methods = methods
        self._faults = faults
        self._lock = threading.Lock()

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method.removeprefix(self._prefix)
        if method not in self._methods:
            return None
        request_type, handler = self._methods[method]
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._answer(method, handler, request, context),
            request_deserializer=getattr(request_type, "deserialize", None) or request_type.FromString,
            response_serializer=_serialized,
        )

    def _answer(self, method: str, handler: Handler, request: Any, context: Any) -> Any:
        with self._lock:
            self._faults.asked[method] += 1
            try:
                if waiting := self._faults.refusals.get(method):
                    raise waiting.pop(0)
                answer = handler(request)
                if self._faults.lost[method] > 0:
                    self._faults.lost[method] -= 1
                    raise FakeRefusalError(code_pb2.UNAVAILABLE, "connection reset")
                return answer
            except FakeRefusalError as refusal:
                context.abort_with_status(rpc_status.to_status(refusal.status))


def _serialized(message: Any) -> bytes:
    plain = type(message).pb(message) if hasattr(type(message), "pb") else message
    return bytes(plain.SerializeToString())


@contextmanager
def serve_google(services: Mapping[str, Mapping[str, tuple[Any, Handler]]], faults: GoogleFaults) -> Iterator[str]:
    """Start a server; yield its host and port. services: by full name, their methods with the type of the request."""
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers([_Service(name, methods, faults) for name, methods in services.items()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(grace=None).wait()
