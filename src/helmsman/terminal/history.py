"""Input history for the arrow keys, in a private, bounded file without secrets."""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING, Final

from prompt_toolkit.history import History

from helmsman.base.files import replace_file
from helmsman.base.redaction import redact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

log = logging.getLogger(__name__)

MOST_LINES: Final = 500
_APPEND: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
_LONGEST: Final = 4000
"""Longest input to keep, in characters. Longer input was pasted and is not worth recalling."""


class KeptHistory(History):
    """History with one JSON string per line, newest last. File errors are ignored."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def load_history_strings(self) -> Iterable[str]:
        lines = self._lines()
        if len(lines) > 2 * MOST_LINES:
            self._try(lambda: replace_file(self._file, "".join(f"{line}\n" for line in lines[-MOST_LINES:])))
        return reversed([text for line in lines[-MOST_LINES:] if (text := _text_in(line))])

    def store_string(self, string: str) -> None:
        if len(string) <= _LONGEST:
            self._try(lambda: self._append(json.dumps(redact(string)) + "\n"))

    def _append(self, line: str) -> None:
        descriptor = os.open(self._file, _APPEND, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(line)

    def _lines(self) -> list[str]:
        try:
            return self._file.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):
            return []

    def _try(self, do: Callable[[], None]) -> None:
        try:
            do()
        except OSError as error:
            log.debug("what was typed is not kept: %s", error)


def _text_in(line: str) -> str:
    try:
        text = json.loads(line)
    except ValueError:
        return ""
    return text if isinstance(text, str) else ""
