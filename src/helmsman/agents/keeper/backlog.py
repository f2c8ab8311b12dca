"""What a child has said and nobody has taken yet: numbered lines, the first in memory, the rest in a file."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

MEMORY_BYTES: Final = 1024 * 1024
FILE_BYTES: Final = 256 * 1024 * 1024
_MOVED_BYTES: Final = 1024 * 1024


class _Filed(NamedTuple):
    number: int
    begin: int
    end: int


class Backlog:
    """Lines in order. Once the file is in use all that is new goes there, until everything has been taken."""

    def __init__(self, file: Path, file_bytes: int = FILE_BYTES) -> None:
        self._path = file
        self._file_bytes = file_bytes
        self._file: int | None = None
        self._memory: deque[bytes] = deque()
        self._memory_bytes = 0
        self._taken = 0
        self._taken_offset = 0
        self._read_offset = 0
        self._end_offset = 0
        self._read_from_file: deque[_Filed] = deque()
        self._not_again: set[int] = set()
        self._next = 1
        self.last = 0
        self.kept: dict[int, bytes] = {}

    @property
    def is_full(self) -> bool:
        """Nothing more is to be read from the child until somebody takes what there is."""
        return self._end_offset - self._taken_offset >= self._file_bytes

    def add(self, line: bytes) -> None:
        """One more line. Raises `OSError` when the disk is full."""
        if self._file is None and self._memory_bytes + len(line) <= MEMORY_BYTES:
            self._memory.append(line)
            self._memory_bytes += len(line)
        else:
            self._append(line + b"\n")
        self.last += 1

    def _append(self, data: bytes) -> None:
        if self._file is None:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        written = 0
        while written < len(data):
            written += os.pwrite(self._file, data[written:], self._end_offset + written)
        self._end_offset += len(data)

    # --- for the owner -----------------------------------------------------------------------------------------------

    def rewind(self) -> None:
        """A new owner: all that was not taken is said again."""
        self._next = self._taken + 1
        self._read_offset = self._taken_offset
        self._read_from_file.clear()

    def next(self) -> tuple[int, bytes] | None:
        """The next line to say; None when everything has been said."""
        while self._next <= self.last:
            number, line = self._next, self._read()
            self._next += 1
            if number not in self._not_again:
                return number, line
        return None

    def _read(self) -> bytes:
        in_memory = self._next - self._taken - 1
        if in_memory < len(self._memory):
            return self._memory[in_memory]
        assert self._file is not None
        data = b""
        while b"\n" not in data:
            data += os.pread(self._file, 65536, self._read_offset + len(data))
        line = data.partition(b"\n")[0]
        end = self._read_offset + len(line) + 1
        self._read_from_file.append(_Filed(self._next, self._read_offset, end))
        self._read_offset = end
        return line

    def take(self, number: int) -> None:
        """All up to this line has been taken, and is not needed any more."""
        number = min(number, self._next - 1)
        while self._taken < number and self._memory:
            self._memory_bytes -= len(self._memory.popleft())
            self._taken += 1
        while self._read_from_file and self._read_from_file[0].number <= number:
            filed = self._read_from_file.popleft()
            self._taken, self._taken_offset = filed.number, filed.end
        self._not_again = {one for one in self._not_again if one > self._taken}
        if self._taken == self.last and self._file is not None:
            self.close()
        elif self._taken_offset >= self._file_bytes:
            self._move_to_the_front()

    def _move_to_the_front(self) -> None:
        """The file has grown by what was taken long ago."""
        assert self._file is not None
        gone = self._taken_offset
        for offset in range(gone, self._end_offset, _MOVED_BYTES):
            data = os.pread(self._file, min(_MOVED_BYTES, self._end_offset - offset), offset)
            os.pwrite(self._file, data, offset - gone)
        self._taken_offset, self._read_offset, self._end_offset = 0, self._read_offset - gone, self._end_offset - gone
        os.ftruncate(self._file, self._end_offset)
        self._read_from_file = deque(
            _Filed(one.number, one.begin - gone, one.end - gone) for one in self._read_from_file
        )

    def keep(self, number: int) -> None:
        """This line is to be said to every new owner, until it is dropped. To be asked for before it is taken."""
        if number in self._not_again or not self._taken < number < self._next:
            return
        in_memory = number - self._taken - 1
        if in_memory < len(self._memory):
            self.kept[number] = self._memory[in_memory]
            return
        filed = next((one for one in self._read_from_file if one.number == number), None)
        if filed is not None and self._file is not None:
            self.kept[number] = os.pread(self._file, filed.end - filed.begin - 1, filed.begin)

    def drop(self, number: int) -> None:
        """This line is not to be said again, kept or not taken yet."""
        self.kept.pop(number, None)
        if number > self._taken:
            self._not_again.add(number)

    def close(self) -> None:
        """Remove the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            with contextlib.suppress(OSError):
                self._path.unlink()
        self._read_offset = self._end_offset = self._taken_offset = 0
