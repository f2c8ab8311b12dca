"""Truncate texts of models and commands, with all limits in one place.

A limit on lines is not enough: one line may have 300 MB. A truncated text keeps its beginning, which says what was
asked, and its end, which says how it ended. A mark between them says how much is missing and where to find it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from helmsman.base.structs import Value

LINE_CHARS: Final = 2_000
"""Limit for a line of recent output."""
OUTPUT_CHARS: Final = 32_000
"""Limit for all lines of recent output, or for one command in a transcript."""
TEXT_CHARS: Final = 100_000
"""Limit for a text to an agent: a result, a plan, a diff. About 25,000 tokens, the maximum of most clients."""
QUESTION_CHARS: Final = 50_000
"""Text of a question for an agent.

With its details it always fits into an answer. An agent cannot approve a longer one.
"""
ANSWER_CHARS: Final = 400_000
"""Limit for the result of one call, as JSON."""
KEPT_CHARS: Final = 2 * 1024 * 1024
"""Limit for one text of a session in progress, or one command's output: twice Codex's own limit."""

MESSAGE_CHARS: Final = 10_000
"""Limit for a message of Helmsman that quotes something: an error, a note."""

_LEAST_CHARS: Final = 200
_MAX_DEPTH: Final = 12
_MAX_ENTRIES: Final = 200
_LEAST_ENTRIES: Final = 5
_ALL: Final = math.inf


def session_file(session_id: str, agent: str) -> str:
    """Return where all of a session is, in words: an agent keeps every message and every output it was handed."""
    if agent != "codex":
        return f"all of it is in what {agent} itself keeps of session {session_id}"
    return f"all of it is in Codex's own file of the session, sessions/…/rollout-…-{session_id}.jsonl"


def cut(text: str, limit: int, whole: str = "", *, below: str = "") -> str:
    """Truncate a text to about `limit` characters.

    `whole` says where to find all of it. `below` precedes the rest of a line that was split.
    """
    return shortened_text(text, limit, whole, below=below)[0]


def shortened_text(text: str, limit: int, whole: str = "", *, below: str = "") -> tuple[str, int]:
    """Return the same, and how many characters are missing."""
    if len(text) <= limit:
        return text, 0
    # Two thirds for the end: the end of an output says how it went.
    head, tail = limit // 3, limit - limit // 3
    missing = len(text) - head - tail
    mark = _mark(missing, whole)
    if "\n" in text:
        mark = f"\n{mark}\n{below}"  # keep a single line single
    return f"{text[:head]}{mark}{text[-tail:]}", missing


def shortened(value: Any, text_limit: int) -> tuple[Any, int]:
    """Return the value with each text in it cut to about `text_limit` characters, and how many characters are missing."""
    return _Cutter(text_limit, _MAX_ENTRIES, "").cut(value, _MAX_DEPTH)


def within(value: Any, limit: int = ANSWER_CHARS, whole: str = "") -> Any:
    """Return the value cut to at most about `limit` characters of JSON, and each text in it to `TEXT_CHARS`.

    What fits, and that is nearly everything, is returned as it is. Else texts are cut, the longest first; and only where
    that is not enough, lists are.
    """
    shown, entries, text_limit = value, _ALL, TEXT_CHARS
    # The mark adds a bounded number of characters to a text at its limit.
    most = text_limit + len(_mark(2**63, whole)) + 2
    while not _fits(shown, limit, most):
        shown, _ = _Cutter(text_limit, entries, whole).cut(value, _MAX_DEPTH)
        # First shorter texts, then shorter lists.
        if text_limit > _LEAST_CHARS:
            text_limit = max(_LEAST_CHARS, text_limit // 2)
        elif entries > _LEAST_ENTRIES:
            entries = _MAX_ENTRIES if entries is _ALL else entries // 2
        else:
            break
    return shown


def listed(names: Iterable[str], most: int) -> str:
    """Join names with commas. Those beyond `most` are counted."""
    every = list(names)
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun: `1 file`, `2 files`."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def last_lines(lines: list[str], count: int) -> list[str]:
    """Return up to `count` of the last lines, each cut to `LINE_CHARS` and all of them to `OUTPUT_CHARS`."""
    shown: list[str] = []
    limit = OUTPUT_CHARS
    # From the end, as the last lines are the newest.
    for line in reversed(lines[-count:] if count else []):
        shown.append(cut(line, LINE_CHARS))
        limit -= len(shown[-1]) + 1
        # At least one line, however long.
        if limit < 0 and len(shown) > 1:
            shown[-1] = f"… {counted(len(lines) - len(shown) + 1, 'line')}"
            break
    return shown[::-1]


def _mark(missing: int, whole: str) -> str:
    return f" … {missing} characters left out{f' ({whole})' if whole else ''} … "


class _Cutter(Value, frozen=True):
    """Cuts texts to `texts` characters and lists to `entries` entries, however deep they are."""

    texts: int
    entries: float
    whole: str

    def cut(self, value: Any, depth: int) -> tuple[Any, int]:
        match value:
            case str():
                return shortened_text(value, self.texts, self.whole)
            case Mapping() if depth:
                kept, left_out = self._first(list(value.items()))
                pairs = {
                    shortened_text(str(key), self.texts, "")[0]: self.cut(content, depth - 1) for key, content in kept
                }
                missing = sum(count for _, count in pairs.values())
                return {key: content for key, (content, _) in pairs.items()}, missing + left_out
            case list() | tuple() if depth:
                kept, left_out = self._first(list(value))
                entries = [self.cut(content, depth - 1) for content in kept]
                return [content for content, _ in entries], sum(count for _, count in entries) + left_out
            case Mapping() | list() | tuple():
                # Deeper than any honest data.
                return "…", len(str(value))
            case _:
                return value, 0

    def _first(self, entries: list[Any]) -> tuple[list[Any], int]:
        if len(entries) <= self.entries:
            return entries, 0
        kept = int(self.entries)
        return entries[:kept], sum(len(str(entry)) for entry in entries[kept:])


def _fits(value: Any, limit: int, text_limit: int) -> bool:
    return _longest(value) <= text_limit and len(json.dumps(value, ensure_ascii=False, default=str)) <= limit


def _longest(value: Any) -> int:
    match value:
        case str():
            return len(value)
        case Mapping():
            return max((max(_longest(key), _longest(content)) for key, content in value.items()), default=0)
        case list() | tuple():
            return max(map(_longest, value), default=0)
        case _:
            return 0
