"""Checks a task's health: an HTTP route of the job must answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from fray_coordinator.clock import Clock
from fray_layouts.spec import HealthCheckSpec

_STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3} ?[^\r\n]*)")
_HOST = "127.0.0.1"


async def watch_health(check: HealthCheckSpec, clock: Clock, on_failure: Callable[[str], None]) -> None:
    """Check from now on, every `check.interval` seconds; return after `check.failures` failures in a row.

    Args:
        on_failure: called then with a sentence for people that says what failed.
    """
    started = clock.boottime()
    failures = 0
    while True:
        await clock.sleep(check.interval)
        problem = await _ask(check)
        excused = clock.boottime() - started < check.grace
        failures = 0 if problem is None or excused else failures + 1
        if failures >= check.failures:
            url = f"http://{_HOST}:{check.port}{check.path}"
            on_failure(f"the health check of {url} failed {failures} times in a row: {problem}")
            return


async def _ask(check: HealthCheckSpec) -> str | None:
    """What is wrong with the answer; None if its status is 2xx."""
    try:
        async with asyncio.timeout(check.timeout):
            line = await _status_line(check)
    except TimeoutError:
        return f"no answer within {check.timeout:g} s"
    except ConnectionRefusedError:
        return "connection refused"
    except Exception as error:  # any failure counts as no answer
        return f"no answer: {type(error).__name__}: {error}"
    found = _STATUS_LINE.match(line)
    if found is None:
        return f"the answer is not HTTP: {line[:80]!r}"
    return None if found[1].startswith(b"2") else found[1].decode(errors="replace").strip()


async def _status_line(check: HealthCheckSpec) -> bytes:
    reader, writer = await asyncio.open_connection(_HOST, check.port)
    try:
        writer.write(f"GET {check.path} HTTP/1.1\r\nHost: {_HOST}:{check.port}\r\nConnection: close\r\n\r\n".encode())
        return await reader.readline()
    finally:
        writer.close()
