"""The output of a supervised child: an append-only file of lines, in segments named after the offset of their first byte.

The supervisor appends to it. The owner reads it from the committed offset on, and commits an offset behind which nothing is
needed any more. A line is named by the offset of its first byte. Questions that have been answered are dropped: no later
owner reads them. A segment without an uncommitted line is removed.

The output is on disk before secrets are redacted: files are 0600, in a directory of this user alone, and go with the child.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SEGMENT_BYTES: Final = 16 * 1024 * 1024
UNCOMMITTED_BYTES: Final = 256 * 1024 * 1024
"""With so much uncommitted output the supervisor stops reading, and the child blocks."""

_READ_BYTES: Final = 256 * 1024


class OutputLine(NamedTuple):
    """A line of the child, without its end, and the offset of its first byte."""

    offset: int
    line: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.line) + 1


class OutputLog:
    """The supervisor's side: appends lines, and knows which of them are still needed."""

    def __init__(
        self, directory: Path, segment_bytes: int = SEGMENT_BYTES, uncommitted_bytes: int = UNCOMMITTED_BYTES
    ) -> None:
        directory.mkdir(mode=0o700)
        self.directory = directory
        self._segment_bytes = segment_bytes
        self._uncommitted_bytes = uncommitted_bytes
        self._unwritten = bytearray()
        self._starts: list[int] = []
        self._file = -1
        self._written = 0
        self.size = 0
        """The offset behind the last whole line in the file."""
        self.committed = 0
        self.dropped: set[int] = set()
        """Uncommitted lines that the next owner must not read: questions that were answered or withdrawn."""

    @property
    def is_blocked(self) -> bool:
        """Whether the child must wait: the disk is full, or its output is not being read."""
        return bool(self._unwritten) or self.size - self.committed >= self._uncommitted_bytes

    def append(self, lines: Sequence[bytes]) -> None:
        """Append lines.

        Raises:
            OSError: The disk is full. `flush` writes the rest once there is space.
        """
        self._unwritten += b"".join(line + b"\n" for line in lines)
        self.flush()

    def flush(self) -> None:
        """Write what `append` could not write.

        Raises:
            OSError: The disk is still full.
        """
        while self._unwritten:
            if not self._starts or (self._written == self.size and self.size - self._starts[-1] >= self._segment_bytes):
                self._begin_segment()
            count = os.write(self._file, self._unwritten)
            self._written += count
            whole = self._unwritten.rfind(b"\n", 0, count) + 1
            if whole:
                self.size = self._written - count + whole
            del self._unwritten[:count]

    def _begin_segment(self) -> None:
        path = self.directory / str(self.size)
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if self._file >= 0:
            os.close(self._file)
        self._file = opened
        self._starts.append(self.size)

    def commit(self, offset: int) -> None:
        """Everything before this offset is not needed any more."""
        self.committed = max(self.committed, min(offset, self.size))
        self.dropped = {one for one in self.dropped if one >= self.committed}
        self._remove_segments()

    def drop(self, offset: int) -> None:
        """Have no later owner read this line."""
        if offset >= self.committed:
            self.dropped.add(offset)

    def _remove_segments(self) -> None:
        """Remove the segments that hold no line for the next owner, except the one that is written to."""
        for start, end in zip(self._starts[:-1], self._starts[1:], strict=True):
            if end <= self.committed:
                with contextlib.suppress(OSError):
                    (self.directory / str(start)).unlink()
                self._starts.remove(start)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)


class OutputReader:
    """The owner's side: reads whole lines from any offset that was not committed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = -1
        self._start = 0

    def read(self, offset: int, end: int | None) -> list[OutputLine]:
        """Return some whole lines from an offset on; none where there are none before `end`, or before the end of the log.

        Raises:
            OSError: The log cannot be read.
        """
        if end is not None and offset >= end:
            return []
        if self._file < 0:
            self._open(offset)
        data = self._read_lines(offset)
        if not data and self._open(offset):  # the segment has ended
            data = self._read_lines(offset)
        lines: list[OutputLine] = []
        for line in data.split(b"\n")[:-1]:
            lines.append(OutputLine(offset, line))
            offset = lines[-1].end
        return lines

    def _read_lines(self, offset: int) -> bytes:
        """Return whole lines of the open segment, as bytes."""
        if self._file < 0 or offset < self._start:
            return b""
        data, size = b"", _READ_BYTES
        while len(part := os.pread(self._file, size, offset - self._start + len(data))) > 0:
            data += part
            if (end := data.rfind(b"\n") + 1) > 0:
                return data[:end]
            size = len(data)  # a long line: fewer and longer reads
        return b""

    def _open(self, offset: int) -> bool:
        """Open the segment that has an offset; whether it is another one than before."""
        starts = [start for path in self._directory.iterdir() if (start := int(path.name)) <= offset]
        if not starts or (self._file >= 0 and max(starts) == self._start):
            return False
        opened = os.open(self._directory / str(max(starts)), os.O_RDONLY)
        self.close()
        self._file, self._start = opened, max(starts)
        return True

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
