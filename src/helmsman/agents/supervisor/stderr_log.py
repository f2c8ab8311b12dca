"""The standard error of a supervised process."""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

LOG_BYTES: Final = 256 * 1024
COLOURS: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Log:
    """The end of it on disk, without secrets, and never more than twice the limit."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unfinished = b""
        self._size = 0

    def write(self, data: bytes) -> None:
        lines, newline, self._unfinished = (self._unfinished + data).rpartition(b"\n")
        key = lines.rfind(b"-----BEGIN ")
        if key >= 0 and b"PRIVATE KEY" in lines[key : key + 70] and lines.find(b"-----END ", key) < 0:
            # Later pieces of a key would not be recognised.
            lines, self._unfinished = lines[:key], lines[key:] + newline + self._unfinished
        if len(self._unfinished) > LOG_BYTES:
            lines, newline, self._unfinished = lines + self._unfinished, b"\n", b""
        if newline:
            self._append(lines.decode("utf-8", "replace") + "\n")

    def _append(self, text: str) -> None:
        from helmsman.base.redaction import redact

        shown = redact(COLOURS.sub("", text)).encode()[-LOG_BYTES:]
        with contextlib.suppress(OSError):  # a full disk must not stop the process
            if self._size + len(shown) > LOG_BYTES:
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))
                self._size = 0
            with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
                file.write(shown)
            self._size += len(shown)

    @property
    def tail(self) -> str:
        with contextlib.suppress(OSError):
            return self._path.read_text(encoding="utf-8", errors="replace")
        return ""
