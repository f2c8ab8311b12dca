"""Counts of tokens, as the app-server, `codex exec` and the files of sessions spell them."""

from __future__ import annotations

from helmsman.base.json_values import integer, snake_case
from helmsman.model.events import Usage

_NAMES = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_output_tokens")


def read_usage(raw: object) -> Usage | None:
    """The counts in any of the spellings; None where there are none. What makes no sense counts as nothing."""
    if not isinstance(raw, dict):
        return None
    counts = {snake_case(name): count for name, count in raw.items()}
    return Usage(*(max(0, integer(counts.get(name)) or 0) for name in _NAMES))


def spent_between(before: Usage, after: Usage) -> Usage:
    """What was spent between two counts; all of the second, if counting began anew."""
    began_anew = after.input_tokens < before.input_tokens or after.output_tokens < before.output_tokens
    return after if began_anew else after - before
