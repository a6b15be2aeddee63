"""A client of the storage contract on local files: the standard library, plain file calls, and layouts/README.md.

`python contract_client.py ROOT NAME < SPEC` submits, follows to the end, and prints status, log and result as JSON.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from pathlib import Path
from typing import Any

ENDED = ("succeeded", "failed", "stopped")


def drop(root: Path, name: str, spec: bytes) -> None:
    """Submit: put a file into the inbox, written under another name and renamed, so that nobody reads half of it."""
    inbox = root / "inbox"
    inbox.mkdir(parents=True, exist_ok=True)
    (inbox / f".{name}").write_bytes(spec)
    (inbox / f".{name}").rename(inbox / f"{name}.json")


def jobs_of(root: Path, name: str) -> list[dict[str, Any]]:
    """The jobs that were made from drops of that name, oldest first."""
    jobs = [json.loads(path.read_bytes()) for path in (root / "jobs").glob("*.json")]
    made = [job for job in jobs if job.get("inbox", {}).get("key") == f"inbox/{name}.json"]
    return sorted(made, key=lambda job: job["submitted_at"])


def rejections_of(root: Path, name: str) -> list[dict[str, Any]]:
    """The reasons why drops of that name were not admitted."""
    return [json.loads(path.read_bytes()) for path in (root / "inbox/rejected").glob(f"{name}.*.json")]


def log_of(root: Path, job: dict[str, Any], stream: str = "stdout") -> bytes:
    """The output of the last attempt of a job that has ended."""
    out = b""
    for number in range(1, job["exit"].get("log_chunks", 0) + 1):
        chunk = root / f"work/{job['id']}/{job.get('attempt', 1)}/0/log-{number:08d}"
        left = chunk.read_bytes()
        while left:
            line, _, left = left.partition(b"\n")
            _stamp, source, tag, content = line.split(b" ", 3)
            if tag == b"L":
                content, left = left[: int(content)], left[int(content) :]
            if source.decode() == stream:
                out += content + (b"\n" if tag == b"F" else b"")
    return out


def result_of(root: Path, job: dict[str, Any]) -> Any:
    """The result of the job: the value if it is JSON, else bytes; None if there is none."""
    result = job.get("result") or {"encoding": "json"}
    if key := result.get("key"):
        data = (root / key).read_bytes()
        return json.loads(data) if result["encoding"] == "json" else data
    return result.get("value") if result["encoding"] == "json" else base64.b64decode(result.get("data", ""))


if __name__ == "__main__":
    root, name = Path(sys.argv[1]), sys.argv[2]
    drop(root, name, sys.stdin.buffer.read())
    while not (jobs := jobs_of(root, name)) or jobs[-1]["status"] not in ENDED:
        time.sleep(0.05)
    job = jobs[-1]
    print(json.dumps({"status": job["status"], "log": log_of(root, job).decode(), "result": result_of(root, job)}))
