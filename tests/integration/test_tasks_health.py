"""The health check, against real servers on the loopback address."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Sequence

import pytest

from fray_agents.tasks.health_check import watch_health
from fray_coordinator.clock import SystemClock
from fray_layouts.spec import HealthCheckSpec

OK = b"HTTP/1.1 204 No Content\r\n\r\n"
SICK = b"HTTP/1.1 503 Service Unavailable\r\n\r\n"
SILENCE = b""


class Job:
    """A server that gives one answer after the other and repeats the last. It keeps the requests' first lines."""

    def __init__(self, answers: Sequence[bytes]) -> None:
        self.requests: list[str] = []
        self.served: list[asyncio.Task[None] | None] = []
        self._answers: Iterator[bytes] = iter(answers[:-1])
        self._last = answers[-1]

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.served.append(asyncio.current_task())
        self.requests.append((await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[0])
        text = next(self._answers, self._last)
        if text == SILENCE:
            await reader.read()  # until the other side gives up
        writer.write(text)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


class SleepsOnly(SystemClock):
    """Time passes in sleeps alone, at once."""

    def __init__(self) -> None:
        self.slept = 0.0

    def boottime(self) -> float:
        return self.slept

    async def sleep(self, seconds: float) -> None:
        self.slept += seconds
        await asyncio.sleep(0)


def failure(job: Job, **fields: float) -> str:
    """The failure that `watch_health` reports about a server of `job`."""
    said: list[str] = []

    async def main() -> None:
        async with await asyncio.start_server(job.answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            usual = {"interval": 0.01, "grace": 0.0, "timeout": 200.0}
            check = HealthCheckSpec(path="/health?full=1", port=port, **usual | fields)  # type: ignore[arg-type]
            await watch_health(check, SleepsOnly(), said.append)
            await asyncio.gather(*filter(None, job.served))

    asyncio.run(main())
    (message,) = said
    return message


def test_failures_in_a_row_end_the_watch_and_others_do_not() -> None:
    job = Job([OK, SICK, SICK, OK, SICK, SICK, SICK, OK])
    message = failure(job, failures=3)
    assert job.requests == ["GET /health?full=1 HTTP/1.1"] * 7
    assert message.startswith("the health check of http://127.0.0.1:")
    assert message.endswith("/health?full=1 failed 3 times in a row: 503 Service Unavailable")


def test_failures_in_the_grace_do_not_count() -> None:
    job = Job([SICK])
    failure(job, failures=2, grace=1.0, interval=0.3)
    assert len(job.requests) == 3 + 2


@pytest.mark.parametrize(
    ("answer", "seen"),
    [
        (SILENCE, "no answer within 0.05 s"),
        (b"SSH-2.0\r\n", "the answer is not HTTP: b'SSH-2.0"),
        (b"x" * 200_000, "no answer: "),
        (b"HTTP/1.1 302 Found\r\n\r\n", "302 Found"),
    ],
)
def test_a_failed_health_check_says_what_it_got(answer: bytes, seen: str) -> None:
    assert seen in failure(Job([answer]), failures=1, **({"timeout": 0.05} if answer == SILENCE else {}))


async def test_nobody_listening() -> None:
    said: list[str] = []

    with socket.socket() as bound:  # so that nobody else listens there
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        await watch_health(HealthCheckSpec(port=port, interval=0.01, grace=0.0, failures=2), SystemClock(), said.append)
    url = f"http://127.0.0.1:{port}/"
    assert said == [f"the health check of {url} failed 2 times in a row: connection refused"]
