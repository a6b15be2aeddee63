"""Runs uv as a program, shows people a part of its output, and decides whose fault a failure is."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import pty
import re
import struct
import termios
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import IO

from fray_agents.environments.cache import MAX_EXPLANATION, EnvironmentFailed, HostUnfit
from fray_agents.host.processes import kill_group, start_bound_process

BUILD_TIMEOUT = 3600.0
"""Most seconds for one run of uv: compiling a large package takes half an hour."""

_COLUMNS = 400
"""Width of the terminal that uv writes to, so that its sentences stay on one line."""

_LOG_LIMIT = 16 * 1024**2
"""Most bytes of a build's output that are kept: a package prints a few kilobytes while it is built."""

_KEPT_LINES, _LINE_LIMIT = 5000, 64 * 1024
"""Lines that are kept until uv has ended, to explain a failure, and most bytes of a line."""

_OWN_VARIABLES = ("VIRTUAL_ENV", "CONDA_PREFIX", "UV_PROJECT", "UV_PYTHON", "UV_FROZEN", "UV_LOCKED", "UV_WORKING_DIR")
"""Prefixes of variables that would make uv use another project, environment or version of Python. Other settings of the
host, such as its package index and proxy, apply to builds too."""

_HOST_TROUBLE = re.compile(
    r"error sending request|Request failed after|dns error|tcp connect|operation timed out|connection (closed|reset)"
    r"|HTTP status server error|\((401|403|407|408|429) |network was disabled|invalid peer certificate"
    r"|Permission denied|Read-only file system|Input/output error|Too many open files",
    re.IGNORECASE,
)
"""Messages of uv for failures of its index, network or disk: another host, or this one later, may succeed."""

_SHORTAGE = re.compile(r"No space left on device|Disk quota exceeded|Cannot allocate memory|os error (28|122|12)\)")
"""More of them; these count in the output of uv's subprocesses, too."""

_MOVES = re.compile(rb"[\r\n]+|\x1b\[(?:2K|\d*[AB])| +\x1b\[0m(?=error)")
"""Separates the parts of a terminal's output: ends of lines, erased lines, moves up and down, and the padding of a bar
that is followed by an error."""
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_MOVING = re.compile("[\u2800-\u28ff\u2588\u2591]")
"""Characters of spinners and bars."""
_COUNTED = re.compile("(?:Preparing packages[.]{3} +[(]|[\u2588\u2591]+ \\[)([0-9]+)/([1-9][0-9]*)[])]")
"""Matches the counts of packages in a spinner's or a bar's line."""
_EXPLANATION = re.compile(r"^(error\b|\s*×)")


class BuildLog:
    """The output of a build: a file with its lines, and its progress.

    Args:
        path: the file, to which lines are appended; None: no file.
        on_progress: called with, for example, "41 of 87 packages".
    """

    def __init__(self, path: Path | None = None, on_progress: Callable[[str], None] = lambda text: None) -> None:
        self.path = path
        self.on_progress = on_progress
        self._file: IO[str] | None = None
        self._left = _LOG_LIMIT

    def write(self, line: str) -> None:
        """Add a line, unless the log is full."""
        self._left -= len(line) + 1
        if self._left < 0:
            return
        if self.path is not None and self._file is None:
            self._file = self.path.open("a", encoding="utf-8", buffering=1)
        if self._file is not None:
            self._file.write(f"{line}\n")

    def close(self) -> None:
        """Close the file; a later line opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


async def run_uv(
    program: str,
    arguments: list[str],
    log: BuildLog,
    cwd: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> None:
    """Run uv until it exits. A cancellation kills it, and so does this process's death.

    Args:
        program: path of uv.
        arguments: without options about its output.
        log: receives its output.
        cwd: its working directory; a project there, and its settings, apply.
        variables: of its environment, in addition to this process's own.

    Raises:
        EnvironmentFailed: the packages cannot be installed, with uv's explanation.
        HostUnfit: it failed for lack of something that another host may have.
    """
    screen = Screen(log)
    leader, descriptor = pty.openpty()  # uv shows its progress on terminals only
    follower = FileIO(descriptor, "w")  # closes only once: soon after, another task's pipe may get the same number
    try:
        fcntl.ioctl(leader, termios.TIOCSWINSZ, struct.pack("HHHH", 50, _COLUMNS, 0, 0))
        os.set_blocking(leader, False)
        code = await _run([program, "--color", "never", *arguments], screen, leader, follower, cwd, variables or {})
    except OSError as error:
        raise HostUnfit(f"uv cannot be run on this host: {error.strerror or error}") from error
    finally:
        os.close(leader)
        follower.close()
    if code:
        raise failure(list(screen.lines), code)


async def _run(
    command: list[str], screen: Screen, leader: int, follower: FileIO, cwd: Path | None, variables: Mapping[str, str]
) -> int:
    """Run the command with `follower` as its terminal; its exit code."""
    env = {**_host_environment(), **variables, "TERM": "xterm"}
    process = await start_bound_process(*command, cwd=cwd, env=env, stdout=follower, stderr=follower)
    follower.close()
    loop = asyncio.get_running_loop()

    def receive() -> None:
        if not screen.receive(leader):
            loop.remove_reader(leader)

    loop.add_reader(leader, receive)
    try:
        async with asyncio.timeout(BUILD_TIMEOUT):
            return await process.wait()
    except TimeoutError:
        raise EnvironmentFailed(f"the packages were not installed within {BUILD_TIMEOUT:g} s") from None
    finally:
        kill_group(process)
        await process.wait()
        loop.remove_reader(leader)
        screen.receive(leader)
        screen.end()


def _host_environment() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("FRAY_", "PYTHON", *_OWN_VARIABLES))
    } | {"UV_PYTHON_DOWNLOADS": "never"}


class Screen:
    """The terminal of uv: lines that stay, and bars that show the progress.

    Attributes:
        lines: the last of the lines that stay.
    """

    def __init__(self, log: BuildLog) -> None:
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._log = log
        self._unread = b""
        self._progress = ""

    def receive(self, terminal: int) -> bool:
        """Read all available output; False once uv has closed the terminal."""
        try:
            while data := os.read(terminal, 1 << 16):
                *complete, self._unread = _MOVES.split(self._unread + data)
                for part in complete:
                    self._note(part)
                self._unread = self._unread[-_LINE_LIMIT:]
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno != errno.EIO:  # EIO: no process has the terminal open any more
                raise
        return False

    def end(self) -> None:
        """Record an unfinished last line, and close the log."""
        self._note(self._unread)
        self._unread = b""
        self._log.close()

    def _note(self, part: bytes) -> None:
        text = _ESCAPES.sub("", part[:_LINE_LIMIT].decode(errors="replace")).rstrip()
        if _MOVING.search(text):
            found = _COUNTED.search(text)
            if found and self._progress != (progress := f"{found[1]} of {found[2]} packages"):
                self._progress = progress
                self._log.on_progress(progress)
        elif text and not (self.lines and self.lines[-1] == text):
            self.lines.append(text)
            self._log.write(text)


def failure(lines: list[str], code: int) -> EnvironmentFailed | HostUnfit:
    """The error for a failed run of uv, with uv's explanation.

    A failure that is not known to be the host's is the job's: if it were tried elsewhere, it would fail on every host.

    Args:
        lines: its output.
        code: its exit code; negative if a signal ended it.
    """
    explanation = list(_explanation(lines))
    words = _in_one_line(explanation)[:MAX_EXPLANATION] or f"it ended with code {code} and printed nothing"
    own = "\n".join(_without_build_output(explanation))
    if code < 0 or _HOST_TROUBLE.search(own) or _SHORTAGE.search("\n".join(explanation)):
        return HostUnfit(f"uv failed on this host: {words}")
    return EnvironmentFailed(f"the job's packages cannot be installed; uv says: {words}")


def _explanation(lines: list[str]) -> list[str]:
    """The lines from the error on; if there is no error, the last five."""
    start = next((number for number, line in enumerate(lines) if _EXPLANATION.match(line)), max(0, len(lines) - 5))
    return lines[start:]


def _in_one_line(lines: list[str]) -> str:
    return re.sub(r" (?:cause|Caused by): ", ": ", " ".join(" ".join(lines).split())).removeprefix("error: ")


def _without_build_output(lines: list[str]) -> Iterator[str]:
    """The lines of uv itself: it quotes output of subprocesses, indented, below "[stdout]" and "[stderr]"."""
    depth: int | None = None
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if line.strip() in ("[stdout]", "[stderr]"):
            depth = indent
        elif depth is None or (line.strip() and indent < depth):
            depth = None
            yield line
