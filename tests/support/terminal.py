"""A shell on a pseudo-terminal, on which a test types like a person and reads the screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

_PROMPT = re.compile(r"@ready (\d+)@")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_WRITTEN_OVER = re.compile(r"[^\n]*\r")
_PATIENCE = 600.0
"""Seconds that any step may take on a busy machine; a step may run some hundred jobs."""


class Terminal:
    """bash in a window of 120 columns, in the folder `place`, with only the variables `environ`.

    Attributes:
        seen: everything that was on the screen, also overwritten text, without colours.
        code: exit code of the last command.
    """

    def __init__(self, place: Path, environ: Mapping[str, str]) -> None:
        self.seen = ""
        self.code = 0
        self._bytes = b""
        self._read = 0
        self._screen, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        shell = ["setsid", "--ctty", "bash", "--noprofile", "--norc", "--noediting", "-i"]
        environ = {"TERM": "xterm", "PS1": "@ready $?@", **environ}
        self._shell = subprocess.Popen(shell, cwd=place, env=environ, stdin=terminal, stdout=terminal, stderr=terminal)
        os.close(terminal)
        self.until(_PROMPT)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shell.send_signal(signal.SIGHUP)  # bash passes it on to its children, as when a window is closed
        os.close(self._screen)
        self._shell.wait(_PATIENCE)

    def run(self, line: str) -> str:
        """Type a line; return the screen at the next prompt. `code` is its exit code."""
        self.type(f"{line}\n")
        return self.until(_PROMPT)

    def type(self, keys: str) -> None:
        """Type a text without waiting; "\\x03" is Ctrl-C."""
        os.write(self._screen, keys.encode())

    def until(self, pattern: str | re.Pattern[str]) -> str:
        """Wait until the screen matches; return it. Raises AssertionError with the screen if that takes too long."""
        end, start = time.monotonic() + _PATIENCE, self._read
        while not (found := re.compile(pattern).search(self.seen, start)):
            ready, _, _ = select.select([self._screen], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"no {pattern} on the screen:\n{self.seen[-4000:]}"
            self._bytes += os.read(self._screen, 1 << 16)
            self.seen = _ESCAPES.sub("", self._bytes.decode(errors="replace")).replace("\r\n", "\n")
        self._read = found.end()
        if found.re is _PROMPT:
            self.code = int(found[1])
        return _WRITTEN_OVER.sub("", self.seen[start : found.start()])
