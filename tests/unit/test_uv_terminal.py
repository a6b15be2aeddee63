"""The terminal that uv writes to, and the descriptors of the process that runs it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from fray_agents.environments.uv import BuildLog, run_uv


async def test_a_file_that_is_opened_while_uv_runs_stays_open(tmp_path: Path) -> None:
    begun, gate, uv = tmp_path / "begun", tmp_path / "gate", tmp_path / "uv"
    os.mkfifo(begun)
    os.mkfifo(gate)
    uv.write_text('#!/bin/sh\n: > "$3"\ncat "$4"\n')  # after two words about colours
    uv.chmod(0o700)
    running = asyncio.create_task(run_uv(str(uv), [str(begun), str(gate)], BuildLog()))
    async with asyncio.timeout(200):
        await asyncio.to_thread(begun.read_text)
        ends = [end for _ in range(8) for end in os.pipe()]
        await asyncio.to_thread(gate.write_text, "the end\n")
        await running
    for end in ends:
        os.close(end)  # raises OSError for one that somebody else has closed
