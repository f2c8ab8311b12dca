"""Redact text that comes in pieces: a secret may be split between two of them."""

from __future__ import annotations

import re
from typing import Final

from helmsman.base.redaction import redact

_CONTEXT_CHARS: Final = 2048
"""So much of what came before is redacted together with the next piece: `TOKEN =` and its value, `Bearer` and its word."""
_MOST_CHARS: Final = 2 * _CONTEXT_CHARS
_LONGEST_SECRET: Final = 64 * 1024
_LAST_BLANK: Final = re.compile(r"\s(?=\S*\Z)")


class RedactedStream:
    """One text that is being written. A word is passed on when it is whole, and nothing any more if that cannot be told.

    The last word is never passed on: the whole text follows by another way.
    """

    def __init__(self) -> None:
        self._said = ""
        self._passed = ""
        self._is_muted = False

    def feed(self, piece: str) -> str:
        """Return what can be passed on now."""
        if self._is_muted:
            return ""
        self._said += piece
        redacted = redact(self._said)
        if not redacted.startswith(self._passed):  # what follows has made a secret of what went before
            self._is_muted, self._said = True, ""
            return ""
        blank = _LAST_BLANK.search(redacted)
        whole = redacted[: blank.end()] if blank is not None else ""
        new = whole[len(self._passed) :]
        self._passed += new
        if len(self._said) > _MOST_CHARS:
            self._forget(redacted)
        return new

    def _forget(self, redacted: str) -> None:
        """Forget the beginning, at a place that is not inside a secret."""
        blank = _LAST_BLANK.search(self._said, 0, len(self._said) - _CONTEXT_CHARS)
        cut = blank.end() if blank is not None else 0
        head = redact(self._said[:cut])
        if cut and head + redact(self._said[cut:]) == redacted and self._passed.startswith(head):
            self._said, self._passed = self._said[cut:], self._passed[len(head) :]
        elif len(self._said) > _LONGEST_SECRET:
            self._is_muted, self._said = True, ""
