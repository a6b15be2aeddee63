"""Results that differ from their records."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fray.cluster.job_info import decode_result, fetch_result
from fray.errors import NoResult
from fray_coordinator.core import open_core
from fray_layouts.records import JobRecord, JobResult
from fray_layouts.spec_parsing import parse_spec


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("pickle", b""),
        ("pickle", b"x"),
        ("pickle", b"cno_such_module\nname\n."),
        ("json", b"{"),
        ("json", b"[" * 10**5),
    ],
)
def test_bytes_that_cannot_be_decoded_are_told_in_words(encoding: str, data: bytes) -> None:
    with pytest.raises(NoResult, match=f"cannot be read as {encoding}"):
        decode_result(JobResult(encoding=encoding, key="work/j-1/1/0/result"), data)


@pytest.mark.parametrize("data", ["%%%", "abc", "\ud800"])
def test_text_that_is_no_base64_is_told_in_words(data: str) -> None:
    async def main() -> Any:
        spec = parse_spec({"name": "j", "entrypoint": {"command": ["true"]}})
        job = JobRecord(id="j-1", spec=spec, status="succeeded", result=JobResult(encoding="bytes", data=data))
        return await fetch_result(await open_core("memory://odd-results"), job)

    with pytest.raises(NoResult, match="not base64"):
        asyncio.run(main())
