"""Redact text that arrives in chunks: a secret may be split between two of them."""

from __future__ import annotations

import re
from typing import Final

from helmsman.base.redaction import redact

_CONTEXT_CHARS: Final = 2048
"""Number of earlier characters that are redacted together with the next chunk: `TOKEN =` and its value."""
_MOST_CHARS: Final = 2 * _CONTEXT_CHARS
_LONGEST_SECRET: Final = 64 * 1024
_LAST_BLANK: Final = re.compile(r"\s(?=\S*\Z)")


class RedactedStream:
    """Text that is being written. Complete words are passed on, and nothing after a word that may be a secret.

    The last word is never passed on: the complete text follows separately.
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
        if not redacted.startswith(self._passed):  # later text has turned earlier text into a secret
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
