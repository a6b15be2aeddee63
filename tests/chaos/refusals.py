"""Commands that must be refused, with the right words."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from tests.chaos.fleet import FRAY

SECONDS = 120.0
"""Seconds that a command may take on a busy machine until it refuses."""


async def accepted(command: Sequence[str], root: str, words: str) -> str:
    """What went wrong if `fray COMMAND` on the root did not end with a failure that has these words; "" if it did."""
    process = await asyncio.create_subprocess_exec(
        str(FRAY),
        command[0],
        "--root",
        root,
        *command[1:],
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(SECONDS):
            said = (await process.communicate())[0].decode(errors="replace")
    except TimeoutError:
        said = f"it still runs after {SECONDS:g} s"
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    right = process.returncode not in (0, None) and words in said
    return (
        "" if right else f"`fray {' '.join(command)}` was not refused: exit code {process.returncode}: {said[-1000:]}"
    )
