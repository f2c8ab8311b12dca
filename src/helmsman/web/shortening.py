"""Long texts cut for pages of many, so that a page stays small whatever Codex printed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_MAX_DEPTH: Final = 12
_MAX_ENTRIES: Final = 200


def shortened(value: Any, text_limit: int) -> tuple[Any, int]:
    """The value with each text in it cut to about `text_limit` characters, and how many characters are missing."""
    return _shortened(value, text_limit, _MAX_DEPTH)


def shortened_text(text: str, limit: int) -> tuple[str, int]:
    """The text without its middle, where it is longer: what was asked is at its beginning, how it ended at its end."""
    if len(text) <= limit:
        return text, 0
    head, tail = limit // 3, limit - limit // 3
    missing = len(text) - head - tail
    return f"{text[:head]}\n… {missing} characters …\n{text[-tail:]}", missing


def _shortened(value: Any, limit: int, depth: int) -> tuple[Any, int]:
    match value:
        case str():
            return shortened_text(value, limit)
        case Mapping() if depth:
            kept = list(value.items())[:_MAX_ENTRIES]
            pairs = {str(key): _shortened(content, limit, depth - 1) for key, content in kept}
            missing = sum(count for _, count in pairs.values())
            left_out = len(str(value)) if len(value) > _MAX_ENTRIES else 0
            return {key: content for key, (content, _) in pairs.items()}, missing + left_out
        case list() | tuple() if depth:
            entries = [_shortened(content, limit, depth - 1) for content in value[:_MAX_ENTRIES]]
            left_out = sum(len(str(content)) for content in value[_MAX_ENTRIES:])
            return [content for content, _ in entries], sum(count for _, count in entries) + left_out
        case Mapping() | list() | tuple():
            return "…", len(str(value))
        case _:
            return value, 0
