"""The task's log: numbered chunk files of lines in the CRI log format.

A line is `<RFC3339 UTC> <stdout|stderr> <F|P> <bytes>`; P says that the piece ended without a newline: it was too
long, or the chunk was sealed before the rest came. Putting pieces together, adding a newline after each F, gives back
the exact bytes. A chunk is written under a name with `.part` and sealed by renaming; the agent uploads and then removes
it. Memory is bounded by one read and one unfinished line per stream, disk by the spool limit: beyond it nothing is
read, and the task waits in its write. What a full disk does not take is kept in memory, up to a chunk, until there is
room.
"""

from __future__ import annotations

import errno
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK_BYTES = 256 * 1024
"""Bytes of a full chunk: one object each, and what an agent holds in memory of a task's log."""

LINE_BYTES = 16 * 1024
"""Bytes of a line, as in Kubernetes; what is longer becomes several pieces."""

READ_BYTES = 64 * 1024
"""Bytes of one read: what a pipe holds."""

SEAL_INTERVAL, LOCAL_SEAL_INTERVAL = 5.0, 1.0
"""Seconds between two seals of chunks that are not full, at least: each is a write to the store, or to local files."""

FIRST_SEAL_PART = 0.2
"""Of the interval: until the first seal after a silence, so that followers see soon what a task prints now and then."""

STREAMS = ("stdout", "stderr")
"""The streams of a log, by their names in it."""

PART = ".part"
"""Suffix of the chunk that is being written."""


def chunk_name(number: int) -> str:
    """File name of chunk `number`, counted from 1."""
    return f"{number:08d}"


class LineFormatter:
    """Formats the bytes of one stream as lines of the log; keeps the line that is not finished."""

    def __init__(self, name: str) -> None:
        self._name = name.encode()
        self._rest = b""

    def format(self, data: bytes) -> bytes:
        """The lines that `data` finishes, b"" if it finishes none."""
        head = b"%s %s " % (_stamp(), self._name)
        *lines, rest = (self._rest + data).split(b"\n")
        out: list[bytes] = []
        for line in lines:
            out.append(head + b"F " + _cut(line, head, out))
        self._rest = _cut(rest, head, out)
        return b"\n".join([*out, b""])

    def flush(self) -> bytes:
        """The unfinished line, formatted as a piece."""
        rest, self._rest = self._rest, b""
        return b"%s %s P %s\n" % (_stamp(), self._name, rest) if rest else b""


class OutputStream(LineFormatter):
    """One of the task's output pipes, as lines of the log.

    Args:
        kept: bytes of its end to keep in `last`.
    """

    def __init__(self, name: str, fd: int, kept: int = 0) -> None:
        super().__init__(name)
        self.fd = fd
        self.open = True
        self.last = b""
        self._kept = kept

    def read(self) -> bytes | None:
        """Formatted lines of what the pipe holds now, b"" if that finishes none; None if it holds nothing."""
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return None
        if data:
            self.last = (self.last + data)[-self._kept :] if self._kept else b""
            return self.format(data)
        self.open = False
        os.close(self.fd)
        return None


def _cut(line: bytes, head: bytes, out: list[bytes]) -> bytes:
    """Move full pieces of a long line to `out`; what is left fits one line."""
    while len(line) > LINE_BYTES:
        out.append(head + b"P " + line[:LINE_BYTES])
        line = line[LINE_BYTES:]
    return line


def _stamp() -> bytes:
    now = time.time_ns()
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 10**9))
    return f"{seconds}.{now // 1000 % 10**6:06d}Z".encode()


class LogChunks:
    """The chunk files of one log.

    Args:
        directory: where they are; exists.
        spool_limit: bytes of sealed chunks beyond which `full` says so until the agent has removed some.
        sealed: called with the number of each chunk once it is complete.
        seal_interval: seconds between two seals of chunks that are not full.

    Attributes:
        count: of sealed chunks.
        lacks_room: the disk has taken no more, and what came since is in memory; see `find_room`.
    """

    def __init__(
        self,
        directory: str,
        spool_limit: int,
        sealed: Callable[[int], None],
        seal_interval: float = SEAL_INTERVAL,
    ) -> None:
        self.count = 0
        self.lacks_room = False
        self._unwritten = b""
        self._directory = directory
        self._spool_limit = spool_limit
        self._sealed = sealed
        self._spooled = 0
        self._fd: int | None = None
        self._size = self._whole = 0  # bytes of the current chunk, and of its lines that are complete
        self._since = 0.0
        self._seal_interval = seal_interval
        self._sealed_at = -seal_interval

    def begin(self) -> None:
        """Begin a chunk if there is none: something was printed, and must be sealed in time."""
        if self._fd is not None or self.lacks_room:
            return
        path = os.path.join(self._directory, chunk_name(self.count + 1) + PART)
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # never what the task put there
            self._since = time.monotonic()
        except OSError as error:
            self._note_lack(error)

    def append(self, lines: bytes) -> None:
        """Write formatted lines, sealing every chunk that is filled."""
        start = 0
        while start < len(lines) and not self.lacks_room:
            end = start + CHUNK_BYTES - self._size
            if end < len(lines):
                end = lines.rfind(b"\n", start, end) + 1
            if end > start:
                self._write(lines[start:end])
                start = end
            if start < len(lines) and not self.lacks_room:
                self.seal()
        kept = self._unwritten + lines[start:]
        self._unwritten = kept if len(kept) <= CHUNK_BYTES else kept[: kept.rfind(b"\n", 0, CHUNK_BYTES) + 1]

    def find_room(self) -> None:
        """Write what was kept in memory; what the disk still has no room for is lost."""
        kept, self._unwritten, self.lacks_room = self._unwritten, b"", False
        self.append(kept)
        if self.lacks_room and self._fd is not None:
            os.ftruncate(self._fd, self._whole)  # a line that has no end
            self._size = self._whole
        self._unwritten, self.lacks_room = b"", False

    def append_file(self, path: str) -> None:
        """Append a file of text as lines of stderr."""
        lines = LineFormatter("stderr")
        with open(path, "rb") as file:
            while data := file.read(READ_BYTES):
                self.append(lines.format(data))
        self.append(lines.flush())

    def seal(self) -> None:
        """Complete the current chunk if it has all that it should have; one without a line is removed."""
        if self._fd is None or self.lacks_room:
            return
        os.close(self._fd)
        self._fd = None
        path = os.path.join(self._directory, chunk_name(self.count + 1))
        if not self._size:
            os.unlink(path + PART)
            return
        self.count += 1
        os.rename(path + PART, path)
        self._spooled += self._size
        self._size = self._whole = 0
        self._sealed_at = time.monotonic()
        self._sealed(self.count)

    def due(self) -> float | None:
        """Monotonic time at which the current chunk is to be sealed, however small; None if there is none.

        Soon after its first line, so that followers see it, but not more often than the interval.
        """
        if self._fd is None:
            return None
        return max(self._since + self._seal_interval * FIRST_SEAL_PART, self._sealed_at + self._seal_interval)

    def full(self) -> bool:
        """Whether too many chunks wait for the agent. Reads the folder only when that may be so."""
        if self._spooled > self._spool_limit:
            self._spooled = sum(_size(os.path.join(self._directory, name)) for name in os.listdir(self._directory))
        return self._spooled > self._spool_limit

    def _write(self, lines: bytes) -> None:
        self.begin()
        try:
            while lines and self._fd is not None:
                written = os.write(self._fd, lines)
                self._size += written
                lines = lines[written:]
            self._whole = self._size
        except OSError as error:
            self._note_lack(error)
        self._unwritten += lines

    def _note_lack(self, error: OSError) -> None:
        """Note that the disk is full; raise `error` if it is another one."""
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise error
        self.lacks_room = True


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0  # the agent has just removed it
