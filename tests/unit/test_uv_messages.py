"""The messages of uv: which failures are the job's own, and which part of its output people see."""

import os
from pathlib import Path

import pytest

from fray_agents.environments.cache import EnvironmentFailed, HostUnfit
from fray_agents.environments.uv import BuildLog, Screen, failure

BUILD_FAILED = """\
error: Failed to build `bad @ file:///bad`
  cause: The build backend returned an error
  cause: Call to `setuptools.build_meta.build_wheel` failed (exit status: 1)
         [stdout]
         {quoted}
hint: Build failures usually indicate a problem with the package or the build environment"""

JOBS_FAULT = [
    "error: No solution found when resolving dependencies\n  cause: Because nothing was found in the package registry "
    "and you require nothing, we can conclude that your requirements are unsatisfiable.",
    "  × No solution found when resolving dependencies:\n  ╰─▶ Because you require six==1.16 and six==1.15, ...",
    "error: Failed to parse: `bad req`",
    "error: Failed to download `a==1`\n  cause: Failed to fetch: https://host/a.whl\n"
    "  cause: HTTP status client error (404 Not Found) for url (https://host/a.whl)",
    BUILD_FAILED.format(quoted="dns error: operation timed out"),
    "something that no version of uv has said yet",
    "",
]

HOSTS_TROUBLE = [
    "error: Request failed after 3 retries in 7.6s\n  cause: Failed to fetch: http://host/simple/a/\n"
    "  cause: error sending request for url (http://host/simple/a/)\n  cause: Connection refused (os error 111)",
    "error: Failed to fetch: https://host/simple/a/\n  Caused by: HTTP status server error (503 Service Unavailable)",
    "error: Failed to fetch: https://host/simple/a/\n  Caused by: HTTP status client error (401 Unauthorized) for url",
    "error: Failed to install: a.whl\n  cause: failed to copy file\n  cause: No space left on device (os error 28)",
    "error: failed to create directory `/cache`: Permission denied (os error 13)",
    BUILD_FAILED.format(quoted="cc1: fatal error: a.o: No space left on device"),
    "error: No solution found\n  cause: Because a was not found in the cache\n\nhint: Packages were unavailable "
    "because the network was disabled. When it is, registry packages may only be read from the cache.",
]


@pytest.mark.parametrize("said", JOBS_FAULT)
def test_a_failure_that_every_host_would_meet_is_the_jobs(said: str) -> None:
    error = failure(["Resolved 3 packages in 1ms", *said.splitlines()], 1)
    assert isinstance(error, EnvironmentFailed)


@pytest.mark.parametrize("said", HOSTS_TROUBLE)
def test_a_failure_for_want_of_network_or_disk_is_the_hosts(said: str) -> None:
    assert isinstance(failure(said.splitlines(), 2), HostUnfit)


def test_uv_that_something_killed_is_the_hosts_trouble() -> None:
    assert isinstance(failure([], -9), HostUnfit)


def test_the_reason_is_in_uvs_own_words_on_one_line() -> None:
    lines = ["Using Python 3.11.7 environment at: /cache", "error: No solution found", "  cause: Because a", "    b"]
    assert str(failure(lines, 1)).endswith("uv says: No solution found: Because a b")


def test_the_screen_keeps_lines_and_tells_of_bars(tmp_path: Path) -> None:
    written = (
        b"\x1b[37m\xe2\xa0\x8b\x1b[0m \x1b[2mResolving dependencies...  \x1b[0m\r\x1b[2KResolved 3 packages in 5ms\r\n"
        b"\xe2\xa0\x8b \x1b[2mPreparing packages...\x1b[0m (0/3)   \r\x1b[2K\xe2\xa0\x8b Preparing packages... (2/3)   "
        b"\r\x1b[2K\xe2\xa0\x8b Preparing packages... (2/3)   \x1b[1A\r\x1b[2KPrepared 3 packages\r\n"
        b"\xe2\x96\x88\xe2\x96\x91 [1/3] Installing wheels...\r\x1b[2K + six==1.17.0\r\n"
        b"\xe2\xa0\x8b Resolving dependencies...     \x1b[0merror: No solution\r\n  cause: none"
    )
    seen: list[str] = []
    screen = Screen(BuildLog(tmp_path / "log", seen.append))
    read, write = os.pipe()
    os.set_blocking(read, False)
    for byte in range(0, len(written), 7):  # the reads may cut the output anywhere
        os.write(write, written[byte : byte + 7])
        assert screen.receive(read)
    os.close(write)
    assert not screen.receive(read)
    os.close(read)
    screen.end()
    kept = [
        "Resolved 3 packages in 5ms",
        "Prepared 3 packages",
        " + six==1.17.0",
        "error: No solution",
        "  cause: none",
    ]
    assert list(screen.lines) == kept
    assert (tmp_path / "log").read_text().splitlines() == kept
    assert seen == ["0 of 3 packages", "2 of 3 packages", "1 of 3 packages"]


def test_the_kept_output_is_bounded(tmp_path: Path) -> None:
    screen = Screen(BuildLog(tmp_path / "log"))
    with (tmp_path / "printed").open("wb+") as file:
        file.write(b"x" * 1_000_000 + b"\n" + b"line\nother\n" * 3_000 + b"y" * 3_000_000)
        file.seek(0)
        assert not screen.receive(file.fileno())
    screen.end()
    assert len(screen.lines) == 5000
    assert max(map(len, screen.lines)) == 64 * 1024
    assert (tmp_path / "log").stat().st_size < 2**20
