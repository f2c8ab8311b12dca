"""Splits a byte stream into lines, with a cap, without ever copying a long line more than once."""

from __future__ import annotations

from typing import Final

MAX_LINE_BYTES: Final = 64 * 1024 * 1024
"""Codex cuts command output at about 1 MiB, but a resumed thread's history comes as one line without such a cut."""


class LineFramer:
    """Buffer that takes chunks and returns complete lines, without line ends and blank lines.

    A line beyond the limit is an error, or is dropped with `drops_long`.
    """

    def __init__(self, limit: int = MAX_LINE_BYTES, *, drops_long: bool = False) -> None:
        self._limit = limit
        self._drops_long = drops_long
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that `chunk` completes.

        Raises:
            EngineProtocolError: The line being read is longer than the limit.
        """
        head, newline, rest = chunk.partition(b"\n")
        self._size += len(head)
        if self._size > self._limit:
            self._parts.clear()
            # The rest of the line is skipped up to its end.
            if not self._drops_long:
                from helmsman.errors import EngineProtocolError  # only here: a supervisor imports little

                raise EngineProtocolError(
                    f"The agent sent a line of more than {self._limit} bytes. Start the session again; if it is resumed, "
                    "its history may be too large to be read as a whole."
                )
        else:
            self._parts.append(head)
        if not newline:
            return []
        lines = [b"".join(self._parts), *rest.split(b"\n")]
        tail = lines.pop()
        # The last piece has no newline yet.
        self._parts, self._size = [tail], len(tail)
        return [line for line in lines if line.strip()]
