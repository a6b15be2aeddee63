"""The task's log: numbered chunk files of its output.

A chunk is a sequence of pieces, each with a header `<RFC3339 UTC> <stdout|stderr> <F|P|L> `. F and P are the CRI log
format of Kubernetes: a line follows. P says that it ended without a newline, because it was too long or the chunk was
sealed before the rest came. L is followed by a number of bytes, a newline, and that many bytes of complete lines, so
that short lines do not cost a header each. Joining the contents, with a newline after each F, restores the exact bytes.
No piece ends inside a UTF-8 character. The values of the job's secrets are replaced (`SecretMask`) before anything is
written.

A chunk is written under a name with `.part` and sealed by renaming; the agent uploads it and then removes it. Memory is
bounded by one read and one unfinished line per stream. Disk is bounded by the spool limit: beyond it the runner reads
nothing, and the task blocks in its writes. Pieces that do not fit on a full disk are kept in memory, up to a chunk,
until there is room; what is lost beyond that is counted, and the log says so.
"""

from __future__ import annotations

import binascii
import errno
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CHUNK_BYTES = 256 * 1024
"""Bytes of a full chunk, which is one object, and the part of a task's log that an agent holds in memory."""

PIECE_BYTES = 16 * 1024
"""Most bytes of a piece, as of a line in Kubernetes; a longer line becomes several pieces."""

READ_BYTES = 64 * 1024
"""Bytes of one read: the capacity of a pipe."""

PAUSE, SMALL_READ_BYTES = 0.01, 4096
"""Seconds after a read that gave fewer bytes than this: what is printed meanwhile is read, and stored, together. So the
headers of a task that prints one short line after the other cost at most 4 KB a second."""

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


MIN_SECRET_BYTES = 6
"""Bytes from which the value of a secret is masked: shorter ones, such as "1" or "true", are in most lines."""

MASK = b"***"
"""What a secret's value is replaced by, as in the logs of CI systems."""


class SecretMask:
    """Replaces secrets in the bytes of one stream, also those that come in several parts or contain newlines.

    Args:
        values: the secrets; their base64 form is replaced too.
    """

    def __init__(self, values: Iterable[str]) -> None:
        texts = {value.strip().encode(errors="backslashreplace") for value in values}
        texts = {text for text in texts if len(text) >= MIN_SECRET_BYTES}
        texts |= {binascii.b2a_base64(text, newline=False).rstrip(b"=") for text in texts}
        self._values = sorted(texts, key=len, reverse=True)
        self._held = b""

    def masked(self, data: bytes, *, is_last: bool = False) -> bytes:
        """The bytes that can be written now. What may be the beginning of a secret waits for more, or for the last."""
        if not self._values:
            return data
        text, self._held = self._held + data, b""
        parts, start = list[bytes](), 0
        while True:
            end = len(text) if is_last else self._undecided_from(text, start)
            found = [(at, value) for value in self._values if 0 <= (at := text.find(value, start)) < end]
            if not found:
                break
            at, value = min(found, key=lambda each: each[0])  # of those at one place the longest, which comes first
            parts += [text[start:at], MASK]
            start = at + len(value)
        self._held = text[end:]
        return b"".join([*parts, text[start:end]])

    def _undecided_from(self, text: bytes, start: int) -> int:
        """The first place from which on the text may be the beginning of a secret."""
        first = len(text)
        for value in self._values:
            at = text.find(value[:1], max(start, len(text) - len(value) + 1))
            while 0 <= at < first:
                if value.startswith(text[at:]):
                    first = at
                at = text.find(value[:1], at + 1)
        return first


class LineFormatter:
    """Formats the bytes of one stream as pieces of the log, and keeps the unfinished line.

    secrets: values that the log does not show.
    """

    def __init__(self, name: str, secrets: Iterable[str] = ()) -> None:
        self._name = name.encode()
        self._mask = SecretMask(secrets)
        self._rest = b""

    def format(self, data: bytes) -> list[bytes]:
        """The pieces that `data` completes."""
        return self._format(self._mask.masked(data))

    def _format(self, data: bytes) -> list[bytes]:
        text, newline, rest = (self._rest + data).rpartition(b"\n")
        head = b"%s %s " % (_stamp(), self._name)
        pieces = _pieces_of_lines(text + newline, head)
        self._rest = _cut(rest, head, pieces)
        return pieces

    def flush(self, *, is_last: bool = True) -> list[bytes]:
        """The unfinished line as a piece, if there is one.

        Args:
            is_last: nothing follows; if something does, a character that is not complete waits for it.
        """
        pieces = self._format(self._mask.masked(b"", is_last=True)) if is_last else []
        end = len(self._rest) if is_last else _end_of_characters(self._rest)
        text, self._rest = self._rest[:end], self._rest[end:]
        return [*pieces, b"%s %s P %s\n" % (_stamp(), self._name, text)] if text else pieces


class OutputStream(LineFormatter):
    """One of the task's output pipes, as pieces of the log.

    Args:
        kept: bytes at the end of the output to keep in `last`.
        secrets: values that neither the log nor `last` shows.

    Attributes:
        read_at: monotonic time of the next read: soon after one that gave little.
    """

    def __init__(self, name: str, fd: int, kept: int = 0, secrets: Iterable[str] = ()) -> None:
        super().__init__(name, secrets)
        self.fd = fd
        self.open = True
        self.read_at = 0.0
        self.last = b""
        self._kept = kept

    def read(self) -> list[bytes] | None:
        """The pieces that the bytes in the pipe complete; None if the pipe is empty."""
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return None
        if data:
            self.read_at = time.monotonic() + (PAUSE if len(data) < SMALL_READ_BYTES else 0.0)
            data = self._mask.masked(data)
            self.last = (self.last + data)[-self._kept :] if self._kept else b""
            return self._format(data)
        self.open = False
        os.close(self.fd)
        rest = self._mask.masked(b"", is_last=True)
        self.last += rest if self._kept else b""
        return self._format(rest) or None


def _pieces_of_lines(text: bytes, head: bytes) -> list[bytes]:
    """The pieces of complete lines: as many lines together as fit, a single line in the CRI format."""
    pieces: list[bytes] = []
    start = 0
    while start < len(text):
        first = text.index(b"\n", start) + 1
        end = max(first, text.rfind(b"\n", start, start + PIECE_BYTES) + 1)
        if end == first:
            pieces.append(head + b"F " + _cut(text[start : end - 1], head, pieces) + b"\n")
        else:
            pieces.append(head + b"L %d\n" % (end - start) + text[start:end])
        start = end
    return pieces


def _cut(line: bytes, head: bytes, pieces: list[bytes]) -> bytes:
    """Move full pieces of a long line to `pieces`; returns the rest, which fits into one."""
    while len(line) > PIECE_BYTES:
        end = _end_of_characters(line[:PIECE_BYTES])
        pieces.append(head + b"P " + line[:end] + b"\n")
        line = line[end:]
    return line


def _end_of_characters(text: bytes) -> int:
    """Length of `text` without a UTF-8 character at its end of which bytes are missing."""
    for back, byte in enumerate(reversed(text[-3:]), 1):
        if byte >= 0xC0:  # the first byte of a character of two bytes or more
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(text) - back if length > back else len(text)
        if byte < 0x80:
            break
    return len(text)


def _stamp() -> bytes:
    now = time.time_ns()
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 10**9))
    return f"{seconds}.{now // 1000 % 10**6:06d}Z".encode()


class LogChunks:
    """The chunk files of one log.

    The folder is opened once, and the files are reached through it: a task that puts something else in its place
    does not make this process write elsewhere.

    Args:
        directory: the folder of the chunks, which exists.
        spool_limit: bytes of sealed chunks beyond which `full` returns True until the agent has removed some.
        sealed: called with the number of each chunk once it is complete.
        seal_interval: seconds after which a chunk is sealed even if it is not full.

    Attributes:
        count: number of sealed chunks.
        lacks_room: the disk is full, and later pieces are kept in memory; see `recover`.
        changed: the task has removed or made files here, so pieces are lost.
    """

    def __init__(
        self,
        directory: str,
        spool_limit: int,
        sealed: Callable[[int], None],
        seal_interval: float = SEAL_INTERVAL,
    ) -> None:
        self.count = 0
        self.lacks_room = self.changed = False
        self._unwritten: list[bytes] = []
        self._unwritten_bytes = self._lost = 0
        self._folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._spool_limit = spool_limit
        self._sealed = sealed
        self._spooled = 0
        self._fd: int | None = None
        self._size = 0  # bytes of the current chunk
        self._since = 0.0
        self._seal_interval = seal_interval
        self._sealed_at = -seal_interval

    def begin(self) -> None:
        """Begin a chunk if there is none, so that printed lines are sealed in time."""
        if self._fd is not None or self.lacks_room:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL  # never a file that the task created
        try:
            self._fd = os.open(chunk_name(self.count + 1) + PART, flags, 0o600, dir_fd=self._folder)
            self._since = time.monotonic()
        except (FileNotFoundError, FileExistsError):
            self.changed = True
        except OSError as error:
            self._note_full_disk(error)

    def append(self, pieces: list[bytes]) -> None:
        """Write pieces, sealing every chunk that is filled."""
        for piece in pieces:
            if self._size and self._size + len(piece) > CHUNK_BYTES:
                self.seal()
            if not self.lacks_room:
                self._write(piece)
            if self.lacks_room:
                self._keep(piece)

    def recover(self) -> bool:
        """Write the pieces that are kept in memory; False if the disk still lacks room, or something is lost."""
        kept = self._unwritten
        self._forget_kept()
        self.append(kept)
        return not self.lacks_room and not self._lost

    def give_up(self) -> int:
        """Write what there is room for, and how much is lost; returns the bytes that are lost."""
        self.recover()
        lost = self._lost + self._unwritten_bytes
        self._forget_kept()
        if lost:
            said = b"fray: %d bytes of the output are lost here, because the disk was full\n" % lost
            self.append(LineFormatter("stderr").format(said))
            self._forget_kept()
        return lost

    def append_file(self, path: str) -> None:
        """Append a text file as lines of stderr."""
        lines = LineFormatter("stderr")
        with open(path, "rb") as file:
            while data := file.read(READ_BYTES):
                self.append(lines.format(data))
        self.append(lines.flush())

    def seal(self) -> None:
        """Complete the current chunk, unless pieces of it are still in memory; an empty chunk is removed."""
        if self._fd is None or self.lacks_room:
            return
        os.close(self._fd)
        self._fd = None
        size, self._size = self._size, 0
        name = chunk_name(self.count + 1)
        try:
            if not size:
                os.unlink(name + PART, dir_fd=self._folder)
                return
            os.rename(name + PART, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except FileNotFoundError:
            self.changed = True
            return
        self.count += 1
        self._spooled += size
        self._sealed_at = time.monotonic()
        self._sealed(self.count)

    def close(self) -> None:
        """Close the folder; nothing can be written any more."""
        os.close(self._folder)

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
            self._spooled = sum(_size(name, self._folder) for name in os.listdir(self._folder))
        return self._spooled > self._spool_limit

    def _write(self, piece: bytes) -> None:
        """Write the whole piece, or nothing of it if the disk is full."""
        self.begin()
        if self._fd is None:
            return
        left = piece
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError as error:
            self._note_full_disk(error)
            os.ftruncate(self._fd, self._size)
            os.lseek(self._fd, self._size, os.SEEK_SET)
        else:
            self._size += len(piece)

    def _keep(self, piece: bytes) -> None:
        """Keep a piece in memory until there is room; what is too much is lost, and counted."""
        if self._lost or self._unwritten_bytes + len(piece) > CHUNK_BYTES:
            self._lost += len(piece)
        else:
            self._unwritten.append(piece)
            self._unwritten_bytes += len(piece)

    def _forget_kept(self) -> None:
        self._unwritten, self._unwritten_bytes, self.lacks_room = [], 0, False

    def _note_full_disk(self, error: OSError) -> None:
        """Note that the disk is full; raise any other `error`."""
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise error
        self.lacks_room = True


def _size(name: str, folder: int) -> int:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0  # the agent has just removed it
