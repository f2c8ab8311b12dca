"""Make output of another machine safe for the local terminal.

A terminal obeys escape sequences: it copies to the clipboard, changes its title, clears the screen, and types answers.
Only text and colours of another machine pass; everything else is written out, as for the text of models
(`helmsman.base.sanitize`).
"""

from __future__ import annotations

import codecs
import re
from typing import Final

from helmsman.base.sanitize import visible

_COLOURS: Final = re.compile(r"(\x1b\[[0-9;:]{0,64}m)")
_BEGUN: Final = re.compile(r"\x1b(?:\[[0-9;:]{0,64})?\Z")
"""Start of a possible colour sequence whose rest is in the next chunk."""
_RESET: Final = "\x1b[0m"
_COLOUR: Final = r"(?:5;\d{1,3}|2;\d{1,3};\d{1,3};\d{1,3})"
_ALLOWED: Final = re.compile(
    # Reset, weight, underline, reverse and colours. Nothing that hides text (8) or blinks (5, 6).
    rf"(?:0?|[1-4]|7|9|2[1-5]|27|29|[34][0-79]|9[0-7]|10[0-7]|[34]8;{_COLOUR})"
    rf"(?:;(?:0?|[1-4]|7|9|2[1-5]|27|29|[34][0-79]|9[0-7]|10[0-7]|[34]8;{_COLOUR}))*"
)


class TerminalFilter:
    """Filters one stream, however its bytes are cut into pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._begun = ""
        self._is_coloured = False

    @classmethod
    def whole(cls, data: bytes) -> bytes:
        """Return a complete text, made safe."""
        one = cls()
        return one.feed(data) + one.finish()

    def feed(self, data: bytes) -> bytes:
        """Return these bytes, made safe. The start of a colour sequence is kept for the next call."""
        text = self._begun + self._decoder.decode(data)
        begun = _BEGUN.search(text)
        self._begun = begun[0] if begun else ""
        return self._filtered(text[: len(text) - len(self._begun)])

    def finish(self) -> bytes:
        """Return the rest, and end every colour."""
        text, self._begun = self._begun + self._decoder.decode(b"", final=True), ""
        filtered = self._filtered(text)
        return filtered + _RESET.encode() if self._is_coloured else filtered

    def _filtered(self, text: str) -> bytes:
        parts = _COLOURS.split(text)  # every second one is a colour
        shown = (self._colour(part) if place % 2 else visible(part) for place, part in enumerate(parts))
        return "".join(shown).encode("utf-8", "backslashreplace")

    def _colour(self, sequence: str) -> str:
        codes = sequence[2:-1]
        if _ALLOWED.fullmatch(codes) is None:
            return ""
        self._is_coloured = codes not in ("", "0")
        return sequence
