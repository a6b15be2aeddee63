"""The task's log: numbered chunk files of lines in the CRI log format.

A line is `<RFC3339 UTC> <stdout|stderr> <F|P> <bytes>`. P says that the piece ended without a newline: it was too long,
or the chunk was sealed before the rest came. Joining the pieces, with a newline after each F, restores the exact bytes.
A chunk is written under a name with `.part` and sealed by renaming; the agent uploads it and then removes it. Memory is
bounded by one read and one unfinished line per stream. Disk is bounded by the spool limit: beyond it the runner reads
nothing, and the task blocks in its writes. Lines that do not fit on a full disk are kept in memory, up to a chunk,
until there is room.
"""

from __future__ import annotations

import errno
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK_BYTES = 256 * 1024
"""Bytes of a full chunk, which is one object, and the part of a task's log that an agent holds in memory."""

LINE_BYTES = 16 * 1024
"""Most bytes of a line, as in Kubernetes; a longer line becomes several pieces."""

READ_BYTES = 64 * 1024
"""Bytes of one read: the capacity of a pipe."""

SEAL_INTERVAL, LOCAL_SEAL_INTERVAL = 5.0, 1.0
"""Least seconds between two seals of chunks that are not full; each seal is a write to the store, or to local files."""

FIRST_SEAL_PART = 0.2
"""Part of the interval until the first seal after a silence, so that followers soon see what a task prints rarely."""

STREAMS = ("stdout", "stderr")
"""The streams of a log, by their names in it."""

PART = ".part"
"""Suffix of the name of the chunk that is being written."""


def chunk_name(number: int) -> str:
    """File name of chunk `number`, counted from 1."""
    return f"{number:08d}"


class LineFormatter:
    """Formats the bytes of one stream as lines of the log, and keeps the unfinished line."""

    def __init__(self, name: str) -> None:
        self._name = name.encode()
        self._rest = b""

    def format(self, data: bytes) -> bytes:
        """The lines that `data` completes; b"" if it completes none."""
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
        kept: bytes at the end of the output to keep in `last`.
    """

    def __init__(self, name: str, fd: int, kept: int = 0) -> None:
        super().__init__(name)
        self.fd = fd
        self.open = True
        self.last = b""
        self._kept = kept

    def read(self) -> bytes | None:
        """Formatted lines of the bytes in the pipe, b"" if they complete none; None if the pipe is empty."""
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
    """Move full pieces of a long line to `out`; returns the rest, which fits one line."""
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
        directory: the folder of the chunks, which exists.
        spool_limit: bytes of sealed chunks beyond which `full` returns True until the agent has removed some.
        sealed: called with the number of each chunk once it is complete.
        seal_interval: seconds after which a chunk is sealed even if it is not full.

    Attributes:
        count: number of sealed chunks.
        lacks_room: the disk is full, and later lines are kept in memory; see `find_room`.
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
        self._size = self._complete_bytes = 0  # bytes of the current chunk, and of its lines that are complete
        self._since = 0.0
        self._seal_interval = seal_interval
        self._sealed_at = -seal_interval

    def begin(self) -> None:
        """Begin a chunk if there is none, so that printed lines are sealed in time."""
        if self._fd is not None or self.lacks_room:
            return
        path = os.path.join(self._directory, chunk_name(self.count + 1) + PART)
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # never a file that the task created
            self._since = time.monotonic()
        except OSError as error:
            self._note_full_disk(error)

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
        """Write the lines that are kept in memory; lines for which the disk still has no room are lost."""
        kept, self._unwritten, self.lacks_room = self._unwritten, b"", False
        self.append(kept)
        if self.lacks_room and self._fd is not None:
            os.ftruncate(self._fd, self._complete_bytes)  # removes an incomplete line
            self._size = self._complete_bytes
        self._unwritten, self.lacks_room = b"", False

    def append_file(self, path: str) -> None:
        """Append a text file as lines of stderr."""
        lines = LineFormatter("stderr")
        with open(path, "rb") as file:
            while data := file.read(READ_BYTES):
                self.append(lines.format(data))
        self.append(lines.flush())

    def seal(self) -> None:
        """Complete the current chunk, unless lines of it are still in memory; an empty chunk is removed."""
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
        self._size = self._complete_bytes = 0
        self._sealed_at = time.monotonic()
        self._sealed(self.count)

    def due(self) -> float | None:
        """Monotonic time at which the current chunk must be sealed, however small; None if there is none.

        Soon after its first line, so that followers see it, but not more often than the interval.
        """
        if self._fd is None:
            return None
        return max(self._since + self._seal_interval * FIRST_SEAL_PART, self._sealed_at + self._seal_interval)

    def full(self) -> bool:
        """Whether too many chunks wait for the agent. Reads the folder only if that is possible."""
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
            self._complete_bytes = self._size
        except OSError as error:
            self._note_full_disk(error)
        self._unwritten += lines

    def _note_full_disk(self, error: OSError) -> None:
        """Note that the disk is full; raise any other `error`."""
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise error
        self.lacks_room = True


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0  # the agent has just removed it
